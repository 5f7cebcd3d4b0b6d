"""Submitting from any thread to the event loop of a scheduler, with a worker in the same process."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest
from notes import Note

from scheduler import AsyncJob, Context, DatabaseUnavailable, InvalidJob, Scheduler
from worker import Worker

THREADS, CALLS, SLOTS = 8, 25, 6


class Effect(AsyncJob, kind="client_effect"):
    """Leave one row in a table of effects."""

    dsn: str
    thread: int
    call: int

    async def run(self, ctx: Context) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute("INSERT INTO effects VALUES ($1, $2, $3)", ctx.job_id, self.thread, self.call)
        finally:
            await connection.close()


@pytest.mark.slow
async def test_eight_threads_submit_25_jobs_each_and_each_has_one_completed_row_and_one_effect(scheduler, dsn, db):
    await db.execute("CREATE TABLE effects (job bigint, thread int, call int)")
    together = threading.Barrier(THREADS)

    def submit(thread):
        together.wait()
        return [scheduler.submit_threadsafe(Effect(dsn, thread, call)).result(60) for call in range(CALLS)]

    async with Worker(dsn, kinds=[Effect], async_slots=SLOTS, processes=0) as worker:
        with ThreadPoolExecutor(THREADS) as threads:
            loop = asyncio.get_running_loop()
            lists = await asyncio.gather(*(loop.run_in_executor(threads, submit, n) for n in range(THREADS)))
        handles = [handle for handles in lists for handle in handles]
        await asyncio.gather(*(handle.result() for handle in handles))
        peak = worker.peak_running["async"]

    rows = await db.fetch("SELECT id, status::text, attempt FROM scheduler.jobs ORDER BY id")
    effects = await db.fetch("SELECT job, thread, call FROM effects")
    assert [tuple(row) for row in rows] == [(n, "COMPLETED", 1) for n in sorted(handle.id for handle in handles)]
    assert len(rows) == THREADS * CALLS
    assert sorted(row["job"] for row in effects) == [row["id"] for row in rows]
    assert {(row["thread"], row["call"]) for row in effects} == {(t, c) for t in range(THREADS) for c in range(CALLS)}
    assert 1 < peak <= SLOTS


async def test_a_refusal_comes_with_the_future(scheduler):
    with pytest.raises(InvalidJob, match="priority"):
        await asyncio.wrap_future(scheduler.submit_threadsafe(Note(), priority=101))


async def test_a_scheduler_that_is_not_open_says_so_at_once(dsn):
    scheduler = Scheduler.connect(dsn)
    with pytest.raises(DatabaseUnavailable, match="not open: use it within"):
        scheduler.submit_threadsafe(Note())
    async with scheduler:
        await asyncio.wrap_future(scheduler.submit_threadsafe(Note()))
    with pytest.raises(DatabaseUnavailable, match="not open"):
        scheduler.submit_threadsafe(Note())


def test_a_scheduler_whose_loop_has_ended_says_so_at_once(dsn):
    async def abandoned():
        scheduler = await Scheduler.connect(dsn).open()
        await scheduler._pool.close()
        return scheduler

    scheduler = asyncio.run(abandoned())

    with pytest.raises(DatabaseUnavailable, match="not open"):
        scheduler.submit_threadsafe(Note())
