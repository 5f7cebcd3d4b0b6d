"""Workers are killed, paused or blocked: nothing is lost or overwritten, and only what they held runs again."""

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from witness import attempts, ended, has_status, insert, insert_many, row, until

LEASE = 2


async def take_the_lease_away(db):
    """Do what the reaper does once a lease has lapsed."""
    await db.execute("UPDATE scheduler.jobs_active SET lease_expires_at = clock_timestamp() - interval '1 s'")
    await db.execute("SELECT scheduler.reap('0 s')")


@pytest.mark.slow  # no more than 10 s, but it wants both cores
async def test_of_a_killed_worker_only_what_it_held_runs_again(db, launch):
    ids = await insert_many(db, 2000, "Short")
    doomed = await launch(lease=LEASE).ready()
    await launch(lease=LEASE).ready()
    doomed_id = await db.fetchval("SELECT id FROM scheduler.workers WHERE pid = $1", doomed.pid)

    async def is_half_done():
        return await db.fetchval("SELECT count(*) > 500 FROM scheduler.jobs_finished")

    await until(is_half_done, "500 jobs should have completed")
    doomed.send(signal.SIGKILL)
    killed_at = await db.fetchval("SELECT clock_timestamp()")
    found = await ended(db, *ids, seconds=60)

    assert {job["status"] for job in found.values()} == {"COMPLETED"}
    again = {job_id for job_id, job in found.items() if job["attempt"] > 1}
    lost = await db.fetch("SELECT * FROM scheduler.attempts")
    assert {(attempt["outcome"], attempt["worker_id"]) for attempt in lost} == {("lost", doomed_id)}
    assert {attempt["job_id"] for attempt in lost} == again
    assert 1 <= len(again) <= 20 + 20  # its slots, and outcomes that were on their way
    assert {(found[job_id]["attempt"], found[job_id]["crashes"], found[job_id]["failures"]) for job_id in again} == {
        (2, 1, 0)
    }
    reaper_period = LEASE / 6 * 1.2
    last = max(attempt["ended_at"] for attempt in lost)
    assert last - killed_at < timedelta(seconds=LEASE + reaper_period + 0.5)


async def test_b50_a_job_of_a_killed_worker_runs_again_after_its_lease(db, launch, gate):
    gate = gate()
    doomed = await launch(lease=LEASE).ready()
    job_id = await insert(db, "FirstOnly", {"path": gate.path})
    await gate.begun()
    await launch(lease=LEASE).ready()

    doomed.send(signal.SIGKILL)

    job = await ended(db, job_id)
    assert (job["status"], job["result"], job["attempt"], job["crashes"]) == ("COMPLETED", "2", 2, 1)
    (attempt,) = await attempts(db, job_id)
    assert (attempt["outcome"], attempt["error"]) == ("lost", "the worker did not renew its lease")


async def test_f02_a_paused_worker_overwrites_nothing_when_it_goes_on(db, launch, gate):
    late, endless = gate("late"), gate("endless")
    paused = await launch(lease=LEASE).ready()
    late_id = await insert(db, "FirstOnly", {"path": late.path})
    endless_id = await insert(db, "Wait", {"path": endless.path})
    await late.begun()
    await endless.begun()

    paused.send(signal.SIGSTOP)
    other = await launch(lease=LEASE).ready()
    done = await ended(db, late_id)
    await endless.begun(times=2)
    late.open()  # the first attempt of it ends as soon as its worker goes on
    paused.send(signal.SIGCONT)

    await endless.noted("stopped")
    assert endless.notes("stopped") == [(1, paused.pid)]
    await paused.says("is lost, attempt 1 is stopped")
    endless.open()
    assert (await ended(db, endless_id))["result"] == "2"
    paused.send(signal.SIGTERM)
    assert await paused.exits() == 0
    assert await row(db, late_id) == done
    assert (done["result"], done["attempt"]) == ("2", 2)
    assert [attempt["outcome"] for attempt in await attempts(db, late_id)] == ["lost"]
    assert other.popen.poll() is None


async def test_the_outcome_of_a_worker_that_lost_its_lease_is_refused(db, work, gate, caplog):
    await work(lease=60, async_slots=1)
    first, second = gate("each-1"), gate("each-2")
    job_id = await insert(db, "EachItsGate", {"path": first.path.removesuffix("-1")})
    await first.begun()
    await work(lease=60)
    await take_the_lease_away(db)
    await second.begun()  # in the second worker, for the first one is full

    first.open()
    await until(lambda: f"the outcome of job {job_id} was refused" in caplog.text, "the outcome should be refused")

    assert ((await row(db, job_id))["status"], (await row(db, job_id))["attempt"]) == ("RUNNING", 2)
    second.open()
    assert (await ended(db, job_id))["result"] == "2"


async def test_an_attempt_whose_lease_was_taken_away_is_stopped_by_the_next_heartbeat(db, work, gate):
    await work(lease=60, renew_every=1, async_slots=1)  # by its own clock the worker would stop it after 54 s
    gate = gate()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await take_the_lease_away(db)

    await gate.noted("stopped", seconds=40)
    await gate.begun(times=2)
    gate.open()
    assert (await ended(db, job_id))["result"] == "2"


async def test_an_older_attempt_in_the_same_worker_is_stopped(db, work, gate):
    await work(lease=60)
    gate = gate()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await take_the_lease_away(db)
    await gate.begun(times=2)

    assert [attempt for attempt, _ in await gate.noted("stopped", seconds=15)] == [1]
    gate.open()
    assert (await ended(db, job_id))["result"] == "2"


async def test_f04_a_blocked_event_loop_keeps_its_leases_and_is_reported(db, launch, gate):
    gate = gate()
    os.mkfifo(f"{gate.path}.pipe")
    process = await launch(lease=3).ready()
    job_id = await insert(db, "BlockTheLoop", {"path": gate.path})
    await gate.begun()
    await launch(lease=3).ready()  # which would run the job if the lease lapsed
    first = (await has_status(db, job_id, "RUNNING"))["lease_expires_at"]

    async def two_leases_are_over():
        return (await row(db, job_id))["lease_expires_at"] > first + timedelta(seconds=6)

    await until(two_leases_are_over, "the lease should have been renewed")
    await asyncio.to_thread(Path(f"{gate.path}.pipe").write_text, "released")

    job = await ended(db, job_id)
    assert (job["status"], job["result"], job["attempt"]) == ("COMPLETED", '"released"', 1)
    assert await attempts(db, job_id) == []
    assert gate.notes("began") == [(1, process.pid)]
    await process.says("the event loop has been blocked for")
    await process.says('return Path(f"{self.path}.pipe").read_text()')


async def test_a_locked_row_does_not_stop_the_renewal_of_the_others(db, connect, launch, gate):
    held, free = gate("held"), gate("free")
    await launch(lease=3).ready()
    held_id = await insert(db, "Wait", {"path": held.path})
    free_id = await insert(db, "Wait", {"path": free.path})
    await held.begun()
    await free.begun()
    first = (await row(db, free_id))["lease_expires_at"]

    async def two_leases_are_over():
        return (await row(db, free_id))["lease_expires_at"] > first + timedelta(seconds=6)

    user = await connect()
    async with user.transaction():
        await user.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", held_id)
        await until(two_leases_are_over, "the other lease should have been renewed")
        free.open()
        assert (await ended(db, free_id))["attempt"] == 1
    held.open()
    await ended(db, held_id)
