"""Attempts are counted in 32 bits: a job that has used them up ends, and harms no other."""

from datetime import timedelta

import pytest

from .steps import attempts, claim, end, insert, row, start, status

LAST = 2**31 - 1
AT_ITS_LAST = (
    "UPDATE scheduler.jobs_active SET attempt = $2, fence = fence >> 32 << 32 | $2::int WHERE id = $1 RETURNING fence"
)


@pytest.mark.parametrize("ending", ["snoozed", "failed"])
async def test_f75_a_job_that_has_used_up_its_attempts_ends(db, ending):
    job = await start(db, max_attempts=LAST)
    fence = await db.fetchval(AT_ITS_LAST, job["id"], LAST)

    await end(db, {"id": job["id"], "fence": fence}, ending, error="again")

    assert await status(db, job["id"]) == "FAILED"
    assert [a["attempt"] for a in await attempts(db, job["id"])] == [LAST]


async def test_f75_a_job_without_attempts_left_is_passed_over_and_keeps_no_other_waiting(db):
    spent, other = await insert(db), await insert(db)
    await db.execute("UPDATE scheduler.jobs_active SET attempt = $2 WHERE id = $1", spent, LAST)

    assert [job["id"] for job in await claim(db, 5)] == [other]
    assert await claim(db, 1) == []
    assert (await row(db, spent))["status"] == "PENDING"


async def test_f75_the_attempt_before_the_last_is_claimed_and_its_fence_is_the_greatest(db):
    job_id = await insert(db)
    await db.execute("UPDATE scheduler.jobs_active SET attempt = $2 WHERE id = $1", job_id, LAST - 1)

    (job,) = await claim(db)

    assert (job["attempt"], job["fence"] & 0xFFFFFFFF) == (LAST, LAST)


@pytest.mark.parametrize("delay", [-5, -1e300, 0])
@pytest.mark.parametrize("ending", ["failed", "snoozed"])
async def test_f75_a_delay_in_the_past_is_none_and_does_not_jump_the_queue(db, clock, ending, delay):
    job = await start(db)

    await end(db, job, ending, delay=delay)

    found = await row(db, job["id"])
    assert (found["status"], found["run_at"]) == ("DELAYED", await clock.now())


@pytest.mark.parametrize("ending", ["failed", "snoozed"])
async def test_f75_the_longest_delay_is_a_year_and_a_day(db, clock, ending):
    job = await start(db, retry_jitter=False)

    await end(db, job, ending, delay=1e300)

    assert (await row(db, job["id"]))["run_at"] == await clock.now() + timedelta(days=366)
