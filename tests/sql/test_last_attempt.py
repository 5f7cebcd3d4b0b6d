"""Attempts are counted in 32 bits: a job that has used them up ends, and harms no other."""

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
