"""Workers are killed with SIGKILL: what they held runs again under a higher fence, and nothing is forgotten."""

import json
import signal

import pytest
from witness import attempts, ended, has_status, insert, insert_many, row, rows, until

LEASE = 2


async def test_f01_b56_the_job_of_a_worker_killed_and_forgotten_runs_again_under_a_higher_fence(db, launch, gate):
    gate = gate()
    doomed = await launch(lease=LEASE).ready()
    job_id = await insert(db, "FirstOnly", {"path": gate.path})
    await gate.begun()
    first = await row(db, job_id)

    doomed.send(signal.SIGKILL)
    await doomed.exits()
    await db.execute("DELETE FROM scheduler.workers WHERE id = $1", first["worker_id"])
    await launch(lease=LEASE).ready()

    job = await ended(db, job_id)
    assert (job["status"], job["result"], job["attempt"], job["crashes"]) == ("COMPLETED", "2", 2, 1)
    assert job["fence"] == first["fence"] + 1
    (lost,) = await attempts(db, job_id)
    assert (lost["attempt"], lost["outcome"], lost["worker_id"]) == (1, "lost", first["worker_id"])
    late = json.dumps([{"id": job_id, "fence": first["fence"], "outcome": "completed", "result": "the dead one"}])
    told = await db.fetchval("SELECT scheduler.settle($1, $2) -> 'lost'", first["worker_id"], late)
    assert (told, await row(db, job_id)) == (f"[{job_id}]", job)


@pytest.mark.slow
async def test_f18_a_child_of_1_000_parents_runs_once_after_all_though_half_of_the_workers_are_killed(db, launch):
    """Six workers, of which three are killed; 32 would measure the two cores of a small machine."""
    doomed = [launch(lease=LEASE, processes=0, threads=0) for _ in range(3)]
    for process in [*doomed, *(launch(lease=LEASE, processes=0, threads=0) for _ in range(3))]:
        await process.ready()
    parents = await insert_many(db, 1000, "Short")
    child = await insert(db, "Echo", {"value": "child"}, depends_on=parents)

    for count, process in enumerate(doomed, 1):
        await until(lambda count=count: have_ended(db, count * 200), "some parents should have completed")
        unmet = (await row(db, child))["unmet"]
        open_edges = await db.fetchval(
            "SELECT count(*) FROM scheduler.dependencies WHERE child = $1 AND NOT applied", child
        )
        assert 0 < open_edges <= unmet <= 1000
        process.send(signal.SIGKILL)

    job = await ended(db, child)
    found = await rows(db, parents)
    assert {parent["status"] for parent in found.values()} == {"COMPLETED"}
    assert (job["status"], job["attempt"]) == ("COMPLETED", 1)
    assert job["started_at"] >= max(parent["finished_at"] for parent in found.values())
    assert sum(parent["crashes"] for parent in found.values()) >= 1
    left = "SELECT count(*) FROM scheduler.dependencies WHERE child = $1 AND NOT (ended AND applied)"
    assert await db.fetchval(left, child) == 0


async def have_ended(db, number):
    return await db.fetchval("SELECT count(*) FROM scheduler.jobs_finished") > number


async def test_f18_the_count_of_parents_is_that_of_the_edges_at_every_step(db, work, gate):
    gates = [gate(str(n)) for n in range(4)]
    await work()
    parents = [await insert(db, "Wait", {"path": one.path}) for one in gates]
    child = await insert(db, "Echo", depends_on=parents)

    for count, one in enumerate(gates[:-1], 1):
        one.open()
        await ended(db, parents[count - 1])
        await until(lambda count=count: is_counted(db, child, 4 - count), "the child should have taken notice")
        assert (await row(db, child))["status"] == "BLOCKED"
    gates[-1].open()

    assert (await has_status(db, child, "COMPLETED"))["attempt"] == 1


async def is_counted(db, child, expected):
    edges = "SELECT count(*) FROM scheduler.dependencies WHERE child = $1 AND NOT applied"
    return (await row(db, child))["unmet"] == expected == await db.fetchval(edges, child)
