"""What a handler raises decides whether and when it runs again."""

from datetime import timedelta

import jobs
import pytest
from witness import attempts, ended, has_status, insert

from scheduler import JobFailed

SOON = timedelta(minutes=1)


async def outcomes(db, job_id):
    return [attempt["outcome"] for attempt in await attempts(db, job_id)]


async def test_a_failed_job_is_tried_again_until_it_completes(scheduler, db, work):
    await work()

    handle = await scheduler.submit(jobs.Steer(how="fail", until=3))

    assert await handle.result(SOON) == {"attempt": 3, "failures": 2}
    assert await outcomes(db, handle.id) == ["failed", "failed"]


async def test_a_job_fails_for_good_when_its_attempts_are_used_up(scheduler, db, work):
    await work()

    handle = await scheduler.submit(jobs.Steer(how="fail", until=100))

    with pytest.raises(JobFailed, match="failure of attempt 3"):
        await handle.result(SOON)
    assert [attempt["error"] for attempt in await attempts(db, handle.id)] == [
        f"failure of attempt {number}" for number in (1, 2, 3)
    ]


async def test_the_backoff_stands_in_the_row(db, work):
    await work()

    job_id = await insert(
        db, "Act", {"action": "plain"}, retry_base=timedelta(seconds=40), retry_cap=timedelta(seconds=60),
        retry_jitter=False,
    )  # fmt: skip

    job = await has_status(db, job_id, "DELAYED")
    (attempt,) = await attempts(db, job_id)
    assert job["failures"] == 1
    assert abs((job["run_at"] - attempt["ended_at"]).total_seconds() - 40) < 1


async def test_a_non_retryable_error_ends_the_job_whatever_attempts_are_left(scheduler, db, work):
    await work()

    handle = await scheduler.submit(jobs.Steer(how="non_retryable"))

    with pytest.raises(JobFailed, match="never"):
        await handle.result(SOON)
    assert await outcomes(db, handle.id) == ["failed"]


async def test_retry_after_counts_a_failure_and_never_starts_earlier(scheduler, db, work):
    await work()

    handles = [await scheduler.submit(jobs.Steer(how="retry_after", seconds=0.4)) for _ in range(5)]

    for handle in handles:
        assert await handle.result(SOON) == {"attempt": 2, "failures": 1}
        (attempt,) = await attempts(db, handle.id)
        job = await ended(db, handle.id)
        assert job["started_at"] - attempt["ended_at"] >= timedelta(seconds=0.4)
        assert attempt["error"] == "again after 0.4 s: the far side is busy"


async def test_a_snooze_counts_no_failure(scheduler, db, work):
    await work()

    handle = await scheduler.submit(jobs.Steer(how="snooze", until=8, seconds=0.02))

    assert await handle.result(SOON) == {"attempt": 8, "failures": 0}
    assert await outcomes(db, handle.id) == ["snoozed"] * 7


async def test_a_snoozed_job_does_not_start_before_its_time(scheduler, db, work):
    await work()

    handle = await scheduler.submit(jobs.Steer(how="snooze", seconds=0.4))

    await handle.result(SOON)
    (attempt,) = await attempts(db, handle.id)
    assert (await ended(db, handle.id))["started_at"] - attempt["ended_at"] >= timedelta(seconds=0.4)
