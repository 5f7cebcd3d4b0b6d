"""Signals: the first lets jobs finish, the second gives them back, the third ends the process."""

import signal
from datetime import timedelta

import pytest
from witness import attempts, backends, ended, insert, insert_many, row, until

BOTH = [signal.SIGTERM, signal.SIGINT]
KINDS = ["Wait", "WaitInThread", "WaitInProcess"]


async def start(db, gate, kind, **columns):
    job_id = await insert(db, kind, {"path": gate.path}, **columns)
    await gate.begun()
    return job_id


@pytest.mark.parametrize("number", BOTH)
async def test_the_first_signal_lets_running_jobs_finish_and_claims_nothing_more(db, launch, gate, number):
    process, gates = await launch().ready(), [gate(kind) for kind in KINDS]
    running = [await start(db, one, kind) for one, kind in zip(gates, KINDS, strict=True)]

    process.send(number)
    await process.says("running jobs may finish")
    later = await insert(db, "Echo")
    for one in gates:
        one.open()

    assert await process.exits() == 0
    found = await ended(db, *running)
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}
    assert (await row(db, later))["status"] == "PENDING"
    assert await db.fetchval("SELECT count(*) FROM scheduler.attempts") == 0
    assert await db.fetchval("SELECT count(*) FROM scheduler.workers") == 0
    assert await backends(db) == set()


async def test_an_idle_worker_ends_at_once(launch):
    process = await launch(grace=60).ready()

    process.send(signal.SIGTERM)

    assert await process.exits(20) == 0


@pytest.mark.parametrize("number", BOTH)
async def test_the_second_signal_gives_running_jobs_back_and_counts_nothing(db, launch, gate, number):
    process, gates = await launch(grace=60).ready(), [gate(kind) for kind in KINDS]
    running = [await start(db, one, kind) for one, kind in zip(gates, KINDS, strict=True)]

    process.send(number)
    await process.says("running jobs may finish")
    process.send(number)

    assert await process.exits(20) == 6
    for job_id in running:
        job, (attempt,) = await row(db, job_id), await attempts(db, job_id)
        assert (job["status"], job["failures"], job["crashes"]) == ("PENDING", 0, 0)
        assert (attempt["outcome"], attempt["error"]) == ("released", None)


async def test_another_worker_runs_what_was_given_back_at_once(db, launch, gate):
    process, gate = await launch(grace=60, lease=30).ready(), gate()
    job_id = await start(db, gate, "FirstOnly")
    await launch(lease=30).ready()

    process.send(signal.SIGTERM)
    await process.says("running jobs may finish")
    process.send(signal.SIGTERM)

    job = await ended(db, job_id, seconds=20)
    assert (job["result"], job["attempt"], job["failures"], job["crashes"]) == ("2", 2, 0, 0)


async def test_the_third_signal_ends_the_process(db, launch, gate):
    process, gate = await launch(grace=60).ready(), gate()
    await start(db, gate, "Stubborn")

    process.send(signal.SIGTERM)
    await process.says("running jobs may finish")
    process.send(signal.SIGTERM)
    process.send(signal.SIGINT)  # another, for two of one kind that are pending become one

    assert await process.exits() == 7


async def test_what_runs_on_at_the_end_of_grace_is_given_back(db, launch, gate):
    process, gate = await launch(grace=0.3).ready(), gate()
    job_id = await start(db, gate, "Wait")

    process.send(signal.SIGTERM)

    assert await process.exits() == 6
    assert gate.notes("stopped") == [(1, process.pid)]
    assert (await row(db, job_id))["status"] == "PENDING"


@pytest.mark.parametrize("kind", ["Stubborn", "StubbornInThread"])
async def test_f06_no_handler_keeps_the_process_alive_after_grace(db, launch, gate, kind):
    process, gate = await launch(grace=0.5).ready(), gate()
    job_id = await start(db, gate, kind)

    process.send(signal.SIGTERM)

    assert await process.exits(20) == 6
    job, (attempt,) = await row(db, job_id), await attempts(db, job_id)
    assert (job["status"], job["failures"], attempt["outcome"]) == ("PENDING", 0, "released")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Stubborn", "StubbornInThread"])
async def test_a_handler_that_was_given_up_before_does_not_keep_the_process_alive(db, launch, gate, kind):
    process, gate = await launch(grace=1).ready(), gate()
    job_id = await start(db, gate, kind, max_attempts=1, timeout=timedelta(seconds=0.1))
    assert (await ended(db, job_id))["status"] == "TIMED_OUT"

    process.send(signal.SIGTERM)

    assert await process.exits(20) == 0


async def test_f59_b52_a_drain_of_more_than_a_lease_keeps_the_lease(db, launch, gate):
    process, gate = await launch(lease=3, grace=60).ready(), gate()
    job_id = await start(db, gate, "Wait")
    await launch(lease=3).ready()  # which would run the job if the lease lapsed
    process.send(signal.SIGTERM)
    await process.says("running jobs may finish")
    first = (await row(db, job_id))["lease_expires_at"]

    async def two_leases_are_over():
        return (await row(db, job_id))["lease_expires_at"] > first + timedelta(seconds=6)

    await until(two_leases_are_over, "the lease should have been renewed")
    gate.open()

    assert await process.exits() == 0
    job = await row(db, job_id)
    assert (job["status"], job["attempt"]) == ("COMPLETED", 1)


async def test_an_outcome_whose_row_is_held_is_recorded_when_it_is_let_go_within_the_grace(db, connect, launch, gate):
    process, gate, holder = await launch(grace=30, lease=60).ready(), gate(), await connect()
    job_id = await start(db, gate, "Wait")
    async with holder.transaction():
        await holder.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR KEY SHARE", job_id)
        process.send(signal.SIGTERM)
        await process.says("running jobs may finish")
        gate.open()

        with pytest.raises(AssertionError, match="should have ended"):
            await process.exits(3)  # twice as long as a step of stopping

    assert await process.exits(15) == 0
    job = await row(db, job_id)
    assert (job["status"], job["attempt"], job["crashes"]) == ("COMPLETED", 1, 0)


async def test_a_cancellation_during_the_drain_is_heard(scheduler, db, launch, gate):
    process, gate = await launch(grace=60, lease=60).ready(), gate()
    job_id = await start(db, gate, "Wait")
    process.send(signal.SIGTERM)
    await process.says("running jobs may finish")

    await scheduler.cancel(job_id)

    assert await process.exits(15) == 0
    assert (await row(db, job_id))["status"] == "CANCELLED"


async def test_a_job_cancelled_while_it_is_given_back_ends_cancelled(scheduler, db, launch, gate):
    process, gate = await launch(grace=0.1, lease=60).ready(), gate()
    job_id = await start(db, gate, "StubbornInThread")
    process.send(signal.SIGTERM)
    await process.says("running jobs may finish")

    await scheduler.cancel(job_id)

    assert await process.exits() in {0, 6}
    assert (await row(db, job_id))["status"] == "CANCELLED"


async def test_a_signal_during_the_start_ends_the_worker(db, connect, launch):
    blocker = await connect()
    async with blocker.transaction():
        await blocker.execute("LOCK TABLE scheduler.kinds")
        process = launch()

        async def waits():
            query = (
                "SELECT FROM pg_stat_activity WHERE application_name = 'scheduler-worker' AND wait_event_type = 'Lock'"
            )
            return await db.fetch(query)

        await until(waits, "the start should wait for the lock")
        process.send(signal.SIGTERM)

        assert await process.exits(15) == 0
    assert "Traceback" not in process.log


@pytest.mark.slow
async def test_workers_drained_one_after_the_other_lose_and_count_nothing(db, launch):
    ids = await insert_many(db, 600, "Short")

    for _ in range(3):
        process = await launch(**{"async": 5}).ready()
        done = await db.fetchval("SELECT count(*) FROM scheduler.jobs_finished")

        async def goes_on(done=done):
            return await db.fetchval("SELECT count(*) > $1 FROM scheduler.jobs_finished", done + 20)

        await until(goes_on, "the worker should complete jobs")
        process.send(signal.SIGTERM)
        assert await process.exits() == 0
        assert await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE status = 'RUNNING'") == 0
    await launch(**{"async": 100}).ready()

    found = await ended(db, *ids)
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}
