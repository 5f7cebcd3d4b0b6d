"""How soon a job starts, and what a worker costs that has nothing to do."""

import asyncio
import time
from datetime import timedelta

import jobs
import pytest
from wire import Wire
from witness import asleep, attempts, cpu_seconds, ended, insert, until

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
SOON = timedelta(minutes=1)


def lag(job):
    """Return how long a job waited after its time, in seconds."""
    return (job["started_at"] - max(job["submitted_at"], job["run_at"])).total_seconds()


@pytest.mark.parametrize("kind", ["Echo", "EchoInThread", "EchoInProcess"])
async def test_an_idle_worker_starts_an_inserted_job_long_before_its_poll(db, work, kind):
    await work(poll=60)
    await asleep(db)

    jobs_found = [await ended(db, await insert(db, kind)) for _ in range(3)]

    assert max(lag(job) for job in jobs_found) < 10


async def test_without_notices_an_idle_worker_starts_a_job_within_its_poll(db, work):
    await work(poll=2, listen_dsn=NOWHERE)
    await asleep(db)

    jobs_found = [await ended(db, await insert(db, "Echo")) for _ in range(3)]

    assert max(lag(job) for job in jobs_found) < 2 * 1.2 + 3


async def test_a_delayed_job_starts_at_its_time(scheduler, db, work):
    await work(poll=60)
    await asleep(db)

    handles = [await scheduler.submit(jobs.Echo(), delay=timedelta(seconds=0.3 + n / 10)) for n in range(5)]

    lags = sorted(lag(job) for job in (await ended(db, *(handle.id for handle in handles))).values())
    assert lags[0] >= 0
    assert lags[-1] < 10


async def test_a_job_delayed_while_the_worker_is_busy_starts_at_its_time(scheduler, db, work, gate):
    gates = [gate(str(n)) for n in range(4)]
    await work(poll=60, async_slots=5)
    for one in gates:  # claims that found jobs: the worker is not marked asleep
        await insert(db, "Wait", {"path": one.path})
        await one.begun()

    handle = await scheduler.submit(jobs.Echo(), delay=timedelta(seconds=0.5))

    assert 0 <= lag(await ended(db, handle.id)) < 10


async def test_a_retry_starts_at_its_time(scheduler, db, work):
    await work(poll=60)
    await asleep(db)

    handle = await scheduler.submit(jobs.Steer(how="fail", until=3))

    await handle.result(SOON)
    job, (first, second) = await ended(db, handle.id), await attempts(db, handle.id)
    assert (second["started_at"] - first["ended_at"]).total_seconds() < 10
    assert (job["started_at"] - second["ended_at"]).total_seconds() < 10


async def test_a_job_given_back_wakes_another_worker(db, work, gate):
    gate = gate()
    first = await work(poll=60)
    job_id = await insert(db, "FirstOnly", {"path": gate.path})
    await gate.begun()
    second = await work(poll=60)

    async def second_sleeps():
        return await db.fetchval("SELECT sleeping FROM scheduler.workers WHERE id = $1", second.id)

    await until(second_sleeps, "the second worker should have fallen asleep")
    await first.stop(cancel_running=True)

    job = await ended(db, job_id)
    (attempt,) = await attempts(db, job_id)
    assert (job["started_at"] - attempt["ended_at"]).total_seconds() < 10


async def test_an_idle_worker_asks_little(db, dsn, work):
    wire = await Wire(dsn).open()
    worker = await work(wire.dsn, lease=30)
    await asleep(db)
    before, began = wire.calls.total(), time.monotonic()

    await asyncio.sleep(3)  # a measurement, not a wait

    asked, seconds = wire.calls.total() - before, time.monotonic() - began
    await worker.stop()
    await wire.close()
    # Once a second three executors claim, and one each promotes, fires and listens; jitter, and what was under way.
    assert 1 <= asked <= 6 / 0.8 * seconds + 4


async def test_an_idle_worker_uses_little_of_a_processor(db, launch):
    process = await launch(lease=30).ready()
    await asleep(db)
    before, began, seconds = cpu_seconds(process.pid), time.monotonic(), 2.5

    await asyncio.sleep(seconds)  # a measurement, not a wait

    used = (cpu_seconds(process.pid) - before) / (time.monotonic() - began)
    assert used < 0.1


@pytest.mark.slow
async def test_a_worker_with_one_long_job_asks_little_too(db, dsn, work, gate):
    gate, wire = gate(), await Wire(dsn).open()
    worker = await work(wire.dsn, lease=30)
    await asleep(db)
    await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    await asleep(db)
    before, seconds = wire.calls.total(), 3

    await asyncio.sleep(seconds)  # a measurement, not a wait

    asked = wire.calls.total() - before
    gate.open()
    await worker.stop()
    await wire.close()
    assert asked / seconds < 8
