"""Waiting for results: one task asks for all, and every end of a job has its error."""

import asyncio
import gc
from datetime import timedelta

import pytest

from scheduler.errors import (
    DatabaseUnavailable,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTimedOut,
    ResultTimeout,
    SchemaMismatch,
)
from scheduler.waiting import Waiting

SOON = timedelta(seconds=5)


class Outcomes:
    """Stands where PostgreSQL stands: answers from `rows`, or with the errors in `failures`, and counts."""

    def __init__(self):
        self.rows = {}
        self.failures = []
        self.asked = []
        self.was_asked = asyncio.Event()

    async def outcomes(self, ids):
        self.asked.append(sorted(ids))
        self.was_asked.set()
        if self.failures:
            raise self.failures.pop(0)
        return [{"id": job_id, **self.rows[job_id]} for job_id in ids if job_id in self.rows]

    def set(self, job_id, status, result=None, error=None):
        self.rows[job_id] = {"status": status, "result": result, "error": error}


@pytest.fixture
def store():
    return Outcomes()


@pytest.fixture
async def waiting(store):
    waiting = Waiting(store)
    yield waiting
    await waiting.close(DatabaseUnavailable("the test is over"))


@pytest.mark.parametrize(("stored", "result"), [(None, None), ("null", None), ('{"a": [1]}', {"a": [1]})])
async def test_a_completed_job_gives_its_result(store, waiting, stored, result):
    store.set(1, "COMPLETED", stored)

    assert await waiting.result(1, SOON) == result


@pytest.mark.parametrize(
    ("status", "error"), [("FAILED", JobFailed), ("TIMED_OUT", JobTimedOut), ("CANCELLED", JobCancelled)]
)
async def test_every_other_end_has_its_error(store, waiting, status, error):
    store.set(1, status, error="why")

    with pytest.raises(error, match="why") as caught:
        await waiting.result(1, SOON)

    assert (caught.value.job_id, caught.value.status, caught.value.error) == (1, status, "why")


async def test_a_job_that_does_not_exist_is_not_found(waiting):
    with pytest.raises(JobNotFound):
        await waiting.result(1, SOON)


async def test_all_waiters_are_asked_for_in_one_call(store, waiting):
    for job_id in range(100):
        store.set(job_id, "RUNNING")
    waiters = [asyncio.create_task(waiting.result(job_id, SOON)) for job_id in range(100) for _ in range(3)]
    await store.was_asked.wait()
    for job_id in range(100):
        store.set(job_id, "COMPLETED", str(job_id))

    results = await asyncio.gather(*waiters)

    assert sorted(results) == sorted(job_id for job_id in range(100) for _ in range(3))
    assert store.asked == [list(range(100))] * 2


async def test_what_has_ended_is_not_asked_for_again(store, waiting):
    store.set(1, "COMPLETED")
    store.set(2, "RUNNING")
    second = asyncio.create_task(waiting.result(2, SOON))
    await waiting.result(1, SOON)
    store.set(2, "COMPLETED")

    await second

    assert store.asked[0] == [1, 2]
    assert set(map(tuple, store.asked[1:])) == {(2,)}


async def test_nobody_asks_when_nobody_waits(store, waiting):
    store.set(1, "RUNNING")
    with pytest.raises(ResultTimeout):
        await waiting.result(1, timedelta(seconds=0.05))
    await asyncio.wait([waiting._task], timeout=5)
    asked = len(store.asked)

    assert waiting._task.done()
    store.set(1, "COMPLETED", "7")
    assert await waiting.result(1, SOON) == 7  # and it asks again for the next who waits
    assert len(store.asked) == asked + 1


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_timeout_names_the_job_and_leaves_it_be(store, waiting, seconds):
    store.set(1, "RUNNING")

    with pytest.raises(ResultTimeout, match="job 1 has not ended") as caught:
        await waiting.result(1, timedelta(seconds=seconds))

    assert caught.value.timeout == seconds


async def test_a_cancelled_waiter_leaves_the_others_waiting(store, waiting):
    store.set(1, "RUNNING")
    first, second = (asyncio.create_task(waiting.result(1, SOON)) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()
    await asyncio.wait([first])
    store.set(1, "COMPLETED", "1")

    assert await second == 1


async def test_a_database_that_is_away_for_a_while_fails_nobody(store, waiting):
    store.set(1, "COMPLETED", "1")
    store.failures = [DatabaseUnavailable("away"), DatabaseUnavailable("still away")]

    assert await waiting.result(1, SOON) == 1


async def test_an_error_that_will_not_pass_is_told_to_all(store, waiting):
    store.failures = [SchemaMismatch("no schema")]

    done = await asyncio.gather(waiting.result(1, SOON), waiting.result(2, SOON), return_exceptions=True)

    assert [type(error) for error in done] == [SchemaMismatch, SchemaMismatch]


async def test_an_error_of_any_kind_does_not_leave_waiters_behind(store, waiting):
    store.failures = [ValueError("something nobody thought of")]
    store.set(1, "COMPLETED", "1")

    result = await asyncio.gather(waiting.result(1, SOON), return_exceptions=True)

    assert result == [1] or isinstance(result[0], ValueError)


async def test_closing_tells_all_who_wait(store):
    store.set(1, "RUNNING")
    waiting = Waiting(store)
    waiter = asyncio.create_task(waiting.result(1, None))
    await asyncio.sleep(0)

    await waiting.close(DatabaseUnavailable("closed"))

    with pytest.raises(DatabaseUnavailable, match="closed"):
        await waiter


async def test_an_error_that_nobody_is_left_to_see_is_no_warning(store, waiting):
    store.set(1, "RUNNING")
    waiter = asyncio.create_task(waiting.result(1, SOON))
    await store.was_asked.wait()
    store.set(1, "FAILED", error="why")
    waiter.cancel()

    await asyncio.wait([waiter, waiting._task], timeout=5)

    gc.collect()  # a future whose exception was never retrieved would complain now
