"""A job that kills its worker again and again ends, and what ran beside it does not."""

from datetime import timedelta

import pytest
from witness import ended, insert, insert_many, until

NEIGHBOURS = 12


@pytest.mark.slow  # five workers, one after the other
@pytest.mark.parametrize("kind", ["Act", "ActInThread"])
async def test_a_job_that_kills_every_worker_ends_alone(db, launch, kind):
    poison = await insert(db, kind, {"action": "os_exit"})
    neighbours = await insert_many(db, NEIGHBOURS // 2, "Short") + await insert_many(
        db, NEIGHBOURS // 2, "EchoInThread"
    )
    deaths = 0

    async def all_ended():
        return await db.fetchval("SELECT count(*) FROM scheduler.jobs_finished") == 1 + NEIGHBOURS

    while not await all_ended():
        worker = launch(lease=1)
        await until(lambda worker=worker: ended_or(worker, all_ended), "the worker should die, or all jobs end")
        deaths += worker.popen.poll() is not None

    found = await ended(db, poison, *neighbours)
    job = found.pop(poison)
    assert (job["status"], job["crashes"]) == ("FAILED", 4)
    assert job["error"] == "WorkerLost: 4 workers were lost while they ran this job (max_crashes 3)"
    assert {job["status"] for job in found.values()} == {"COMPLETED"}
    assert {job["failures"] for job in found.values()} == {0}
    assert deaths == 4


async def ended_or(worker, all_ended):
    return worker.popen.poll() is not None or await all_ended()


async def test_a_child_that_dies_again_and_again_charges_only_its_own_job(db, launch):
    process = await launch(processes=1).ready()
    soon = timedelta(milliseconds=10)
    poison = await insert(db, "ActInProcess", {"action": "segfault"}, max_attempts=4, retry_base=soon, retry_cap=soon)
    neighbours = await insert_many(db, 10, "EchoInProcess") + await insert_many(db, 10, "Echo")

    found = await ended(db, poison, *neighbours)

    job = found.pop(poison)
    assert (job["status"], job["failures"], job["crashes"]) == ("FAILED", 4, 0)
    assert job["error"] == "ChildDied: the process that ran the job was ended by SIGSEGV"
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}
    assert process.popen.poll() is None
