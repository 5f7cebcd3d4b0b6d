"""Leases while something blocks, pauses or starves: kept as long as they should be, and lost when they should be."""

import asyncio
import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from witness import attempts, ended, has_status, insert, is_alive, row, until

LEASE = 2


async def begin(db, gate, kind, **columns):
    job_id = await insert(db, kind, {"path": gate.path}, **columns)
    return job_id, await gate.begun()


async def go_on(gate):
    """Let a handler that reads a pipe on the event loop go on."""
    await asyncio.to_thread(Path(f"{gate.path}.pipe").write_text, "late")


async def test_b37_a_job_that_blocks_the_loop_beyond_its_timeout_loses_its_lease_and_its_outcome(db, launch, gate):
    gate = gate()
    os.mkfifo(f"{gate.path}.pipe")
    blocked = await launch(lease=LEASE).ready()
    job_id, _ = await begin(db, gate, "BlockTheLoopFirst", timeout=timedelta(seconds=1))

    await launch(lease=LEASE).ready()
    done = await ended(db, job_id)
    await go_on(gate)

    await blocked.says(f"the outcome of job {job_id} was refused: its lease had been lost")
    assert (done["status"], done["result"], done["attempt"], done["crashes"]) == ("COMPLETED", "2", 2, 1)
    assert [attempt["outcome"] for attempt in await attempts(db, job_id)] == ["lost"]
    assert (await ended(db, await insert(db, "Echo")))["attempt"] == 1
    blocked.send(signal.SIGTERM)
    assert await blocked.exits() == 0
    assert await row(db, job_id) == done


async def test_f02_a_worker_paused_while_its_loop_is_blocked_stops_threads_and_children_when_it_goes_on(
    db, launch, gate
):
    loop, thread, child = gate("loop"), gate("thread"), gate("child")
    os.mkfifo(f"{loop.path}.pipe")
    paused = await launch(lease=LEASE).ready()
    thread_id, _ = await begin(db, thread, "WaitInThread")
    child_id, ((_, pid),) = await begin(db, child, "HogInC")
    loop_id, _ = await begin(db, loop, "BlockTheLoopFirst")

    paused.send(signal.SIGSTOP)
    await launch(lease=LEASE).ready()
    await thread.begun(times=2)
    await child.begun(times=2)
    done = await ended(db, loop_id)
    paused.send(signal.SIGCONT)

    assert (1, paused.pid) in await thread.noted("stopped")
    await until(lambda: not is_alive(pid), "the child should have been killed, although the loop is blocked")
    assert "is stopped" not in paused.log  # that is what the loop would say
    await go_on(loop)
    await paused.says(f"the outcome of job {loop_id} was refused: its lease had been lost")
    thread.open()
    assert (await ended(db, thread_id))["result"] == "2"
    assert (await row(db, child_id))["attempt"] == 2
    assert await row(db, loop_id) == done


@pytest.mark.slow
async def test_b39_b25_b19_b11_f60_a_job_of_many_leases_runs_once_beside_workers_with_other_leases(db, launch, gate):
    gate = gate()
    workers = {lease: await launch(lease=lease).ready() for lease in (1, 4, 60)}
    ids = [await insert(db, "Wait", {"path": gate.path}) for _ in range(3 * 20)]  # as many as all of them have slots
    await gate.begun(times=3 * 20)
    pids = {process.pid: lease for lease, process in workers.items()}
    of_worker = {
        listed["id"]: pids[listed["pid"]] for listed in await db.fetch("SELECT id, pid FROM scheduler.workers")
    }
    beats, lapsed = {1: set(), 4: set()}, []

    async def have_been_renewed():
        query = "SELECT worker_id, lease_expires_at, lease_expires_at < clock_timestamp() AS lapsed FROM scheduler.jobs"
        for found in await db.fetch(query):
            lapsed.extend([found] if found["lapsed"] else [])
            if found["worker_id"] in of_worker and of_worker[found["worker_id"]] in beats:
                beats[of_worker[found["worker_id"]]].add(found["lease_expires_at"])
        return all(max(seen) - min(seen) > timedelta(seconds=5 * lease) for lease, seen in beats.items())

    await until(have_been_renewed, "the leases should have been renewed five times over")
    gate.open()

    found = await ended(db, *ids)
    assert {(job["status"], job["attempt"], job["crashes"]) for job in found.values()} == {("COMPLETED", 1, 0)}
    assert await db.fetchval("SELECT count(*) FROM scheduler.attempts") == 0
    assert lapsed == []


@pytest.mark.slow
async def test_f04_a_blocked_loop_does_not_keep_a_process_that_ran_out_of_time(db, launch, gate):
    loop, child = gate("loop"), gate("child")
    os.mkfifo(f"{loop.path}.pipe")
    await launch(lease=LEASE).ready()
    await ended(db, await insert(db, "EchoInProcess"))
    child_id, ((_, pid),) = await begin(db, child, "HogInC", timeout=timedelta(seconds=2))
    await begin(db, loop, "BlockTheLoop")

    await until(lambda: not is_alive(pid), "the child should have been killed when its lease was over")

    await go_on(loop)
    assert (await has_status(db, child_id, "PENDING"))["crashes"] <= 1


async def test_f02_what_a_zombie_says_is_refused_verb_by_verb(db, launch, gate):
    gate = gate()
    paused = await launch(lease=LEASE).ready()
    job_id, _ = await begin(db, gate, "FirstOnly")
    zombie = await row(db, job_id)
    paused.send(signal.SIGSTOP)
    await launch(lease=LEASE).ready()
    done = await ended(db, job_id)

    claim = zombie["worker_id"], [job_id], [zombie["fence"]]
    outcome = json.dumps([{"id": job_id, "fence": zombie["fence"], "outcome": "completed", "result": "stale"}])
    said = [
        await db.fetchval("SELECT scheduler.renew($1, $2, $3, '1 min')", *claim),
        await db.fetchval("SELECT scheduler.release($1, $2, $3)", *claim),
        await db.fetchval("SELECT scheduler.settle($1, $2)", zombie["worker_id"], outcome),
    ]

    assert [json.loads(answer)["lost"] for answer in said] == [[job_id]] * 3
    assert await row(db, job_id) == done
