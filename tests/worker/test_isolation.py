"""Jobs do not see one another, and no executor runs more of them than it has slots."""

import json
from datetime import timedelta

import jobs
import pytest
from witness import ended, insert_many

SOON = timedelta(minutes=1)


@pytest.mark.parametrize("kind", [jobs.Peek, jobs.PeekInThread])
async def test_a_context_variable_does_not_leak_into_another_job(scheduler, work, kind):
    jobs.SEEN.set("set around the worker")
    await work(async_slots=1, threads=1)

    handles = [await scheduler.submit(kind()) for _ in range(10)]

    assert [await handle.result(SOON) for handle in handles] == [None] * 10


async def test_executors_do_not_exceed_their_slots(db, work):
    for count in jobs.COUNTS.values():
        count.most = 0
    worker = await work(async_slots=3, threads=2, processes=2)

    ids = [job_id for kind in ("Overlap", "OverlapInThread") for job_id in await insert_many(db, 100, kind)]
    await ended(db, *ids, *await insert_many(db, 20, "EchoInProcess"))

    assert {name: count.most for name, count in jobs.COUNTS.items()} == {"async": 3, "thread": 2}
    assert worker.peak_running == {"async": 3, "thread": 2, "process": 2}


async def test_an_executor_without_slots_claims_nothing(db, work):
    worker = await work(threads=0, processes=0)
    waiting = await insert_many(db, 3, "EchoInThread")

    await ended(db, *await insert_many(db, 3, "Echo"))

    assert set(worker.peak_running) == {"async"}
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE status = 'PENDING'") == len(waiting)


async def test_a_full_executor_does_not_hold_up_another(db, work, gate):
    gates = [gate(str(n)) for n in range(2)]
    await work(threads=2)
    ids = [(await insert_many(db, 1, "StubbornInThread", {"path": one.path}))[0] for one in gates]
    for one in gates:
        await one.begun()
    more = await insert_many(db, 5, "EchoInThread", {"value": 1})

    others = await ended(db, *await insert_many(db, 20, "Echo"), *await insert_many(db, 4, "EchoInProcess"))

    assert {job["status"] for job in others.values()} == {"COMPLETED"}
    for one in gates:
        one.open()
    found = await ended(db, *ids, *more)
    assert {json.loads(job["result"]) for job in found.values()} == {"too late", 1}
