"""Jobs end, and whoever waits learns how."""

import asyncio
from datetime import timedelta

import jobs
import pytest
from witness import attempts, ended, insert, row

from scheduler import JobCancelled, JobFailed, JobNotFound, JobTimedOut, ResultTimeout

SOON = timedelta(minutes=1)


@pytest.mark.parametrize("kind", [jobs.Echo, jobs.EchoInThread, jobs.EchoInProcess])
async def test_a_job_completes_with_its_result(scheduler, db, work, kind):
    await work()
    values = [None, 0, "ä\U0001f600", [1, {"a": None}], {"nested": [1.5, True]}]

    handles = [await scheduler.submit(kind(value=value)) for value in values]

    assert [await handle.result(SOON) for handle in handles] == values
    for handle in handles:
        stored = await row(db, handle.id)
        assert (stored["status"], stored["attempt"], stored["failures"], stored["error"]) == ("COMPLETED", 1, 0, None)
        assert await attempts(db, handle.id) == []


@pytest.mark.parametrize("kind", ["Act", "ActInThread", "ActInProcess"])
async def test_a_failure_is_stored_readably(db, work, kind):
    await work()

    job_id = await insert(db, kind, {"action": "plain"}, max_attempts=1)

    job = await ended(db, job_id)
    assert (job["status"], job["failures"], job["result"]) == ("FAILED", 1, None)
    assert job["error"] == "ValueError: plainly wrong"
    (attempt,) = await attempts(db, job_id)
    assert (attempt["outcome"], attempt["error_type"], attempt["error"]) == ("failed", "ValueError", "plainly wrong")
    assert "jobs.py" in attempt["traceback"]
    assert "throw(ValueError" in attempt["traceback"]
    assert attempt["traceback"].endswith("ValueError: plainly wrong\n")
    assert "worker/child.py" not in attempt["traceback"].splitlines()[-2]


async def test_waiting_for_a_failed_job_raises_job_failed(scheduler, db, work):
    await work()
    job_id = await insert(db, "Act", {"action": "plain"}, max_attempts=1)

    with pytest.raises(JobFailed, match="plainly wrong") as caught:
        await scheduler.handle(job_id).result(SOON)

    assert (caught.value.job_id, caught.value.status) == (job_id, "FAILED")


async def test_waiting_for_a_job_that_timed_out_raises_job_timed_out(scheduler, db, work, gate):
    await work()
    job_id = await insert(db, "Wait", {"path": gate().path}, max_attempts=1, timeout=timedelta(seconds=0.1))

    with pytest.raises(JobTimedOut, match=r"timeout of 0\.1 s"):
        await scheduler.handle(job_id).result(SOON)


async def test_waiting_for_a_cancelled_job_raises_job_cancelled(scheduler):
    handle = await scheduler.submit(jobs.Echo())
    await scheduler.cancel(handle)

    with pytest.raises(JobCancelled):
        await handle.result(SOON)


async def test_waiting_no_longer_than_asked_raises_result_timeout_and_the_job_goes_on(scheduler, work):
    handle = await scheduler.submit(jobs.Echo(value=1))

    with pytest.raises(ResultTimeout) as caught:
        await handle.result(timedelta(seconds=0.05))

    assert isinstance(caught.value, TimeoutError)
    await work()
    assert await handle.result(SOON) == 1


async def test_waiting_for_a_job_that_never_was_raises_job_not_found(scheduler):
    with pytest.raises(JobNotFound):
        await scheduler.handle(10**12).result(SOON)


async def test_one_waiter_giving_up_does_not_disturb_another(scheduler, work):
    handle = await scheduler.submit(jobs.Echo(value="for both"))
    patient = asyncio.create_task(handle.result(SOON))

    with pytest.raises(ResultTimeout):
        await handle.result(timedelta(seconds=0.05))
    await work()

    assert await patient == "for both"


async def test_a_thousand_waiters_share_one_poll(scheduler, work, monkeypatch):
    calls, asked = [], scheduler.store.outcomes

    async def outcomes(ids):
        calls.append(len(ids))
        return await asked(ids)

    monkeypatch.setattr(scheduler.store, "outcomes", outcomes)
    handles = [await scheduler.submit(jobs.Echo(value=n)) for n in range(200)]
    waiters = [asyncio.create_task(handle.result(SOON)) for handle in handles for _ in range(5)]
    await asyncio.sleep(0)  # all of them wait now
    await work()

    results = await asyncio.gather(*waiters)

    assert results == [n for n in range(200) for _ in range(5)]
    assert len(calls) < 50
    assert max(calls) == 200


async def test_a_handler_sees_its_job(scheduler, db, work):
    await work()
    plain = await scheduler.submit(jobs.Facts())
    dressed = await scheduler.submit(jobs.Facts(), tenant="acme", metadata={"trace": "t1"}, idempotency_key="once")

    assert (await plain.result(SOON))["key"] == f"scheduler:{plain.id}"
    expected = {"key": "once", "metadata": {"trace": "t1"}, "tenant": "acme", "queue": "default"}
    assert await dressed.result(SOON) == expected
