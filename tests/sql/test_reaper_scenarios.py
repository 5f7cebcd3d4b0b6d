"""What went wrong in the reapers of others: hidden behind a page, ended twice, stopped by a key, run too soon."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from .steps import (
    LEASE,
    attempts,
    cancel,
    claim,
    end,
    hold,
    insert,
    insert_many,
    promote,
    reap,
    renew,
    row,
    start,
    status,
)


async def test_b03_a_page_of_jobs_that_are_alive_hides_no_dead_one(db, clock):
    alive = await insert_many(db, 50)
    jobs = await claim(db, 50)
    dead = await start(db)
    await clock.advance(31)
    await renew(db, jobs)

    assert (await reap(db, limit=1))["reaped"] == [dead["id"]]
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE status = 'RUNNING'") == len(alive)


async def test_b03_a_page_of_jobs_that_are_held_hides_no_dead_one(db, connect, clock):
    await insert_many(db, 5)
    held, user = await claim(db, 5), await connect()
    dead = await start(db)
    await clock.advance(31)

    async with user.transaction():
        for job in held:
            await hold(user, job)
        assert (await reap(db, limit=2))["reaped"] == [dead["id"]]


async def test_f11_b14_nobody_takes_the_unique_key_of_a_job_whose_worker_is_lost(db, clock):
    lapsed = await start(db, unique_key="one")
    others = await insert_many(db, 20)
    await claim(db, 20)
    with pytest.raises(asyncpg.UniqueViolationError, match="unique_key"):
        await insert(db, unique_key="one")
    await clock.advance(31)

    assert sorted((await reap(db))["reaped"]) == [lapsed["id"], *others]

    assert {await status(db, job_id) for job_id in (lapsed["id"], *others)} == {"PENDING"}
    with pytest.raises(asyncpg.UniqueViolationError, match="unique_key"):
        await insert(db, unique_key="one")


async def test_f11_b14_a_lost_job_asked_to_cancel_frees_its_unique_key_for_who_comes_next(db, clock):
    lapsed, other = await start(db, unique_key="one"), await start(db)
    await cancel(db, lapsed["id"])
    await clock.advance(31)

    assert (await reap(db))["reaped"] == [lapsed["id"], other["id"]]

    assert await insert(db, unique_key="one") is not None
    assert await status(db, lapsed["id"]) == "CANCELLED"


async def test_f09_b40_four_reapers_at_once_end_each_of_1_000_attempts_once(db, connect, clock):
    await insert_many(db, 1000)
    await claim(db, 1000)
    await clock.advance(31)
    reapers = [await connect() for _ in range(4)]

    answers = await asyncio.gather(*(reap(reaper) for reaper in reapers))

    reaped = [job_id for answer in answers for job_id in answer["reaped"]]
    assert len(reaped) == len(set(reaped)) == 1000
    once = "SELECT count(*) FROM scheduler.jobs_active WHERE crashes = 1 AND attempt = 1 AND status = 'PENDING'"
    assert await db.fetchval(once) == 1000
    assert await db.fetchval("SELECT count(*) FROM scheduler.attempts WHERE outcome = 'lost'") == 1000
    assert await db.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


@pytest.mark.parametrize("late", ["completed", "failed"])
@pytest.mark.parametrize("first", ["completed", "failed", None])
async def test_b30_what_a_worker_says_too_late_ends_nothing_twice(db, clock, first, late):
    job = await start(db)
    await clock.advance(31)
    await reap(db)
    (again,) = await claim(db)
    if first is not None:
        await end(db, again, first, retryable=False, result={"by": "the second"})
    before = dict(await row(db, job["id"]))

    assert (await end(db, job, late, retryable=False, result={"by": "the first"}))["lost"] == [job["id"]]

    assert dict(await row(db, job["id"])) == before
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs WHERE id = $1", job["id"]) == 1
    assert [a["outcome"] for a in await attempts(db, job["id"])] == ["lost", *(["failed"] if first == "failed" else [])]


async def test_b44_a_job_ten_leases_ahead_is_not_claimed_before_its_time_and_runs_once(db, clock):
    job_id = await insert(db, run_at=await clock.now() + 10 * LEASE)

    for _ in range(10):
        assert ((await promote(db))["promoted"], await claim(db), (await reap(db))["reaped"]) == (0, [], [])
        await clock.advance(29.9)
    assert (await promote(db))["promoted"] == 0
    await clock.advance(1)
    assert (await promote(db))["promoted"] == 1

    (job,) = await claim(db, 10)
    await end(db, job)
    await clock.advance(20 * LEASE / timedelta(seconds=1))
    assert ((await promote(db))["promoted"], await claim(db), (await reap(db))["reaped"]) == (0, [], [])
    assert ((await row(db, job_id))["attempt"], await status(db, job_id)) == (1, "COMPLETED")
