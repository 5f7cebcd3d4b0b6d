"""Waiting for results: however many wait, one task asks for all of them in one call.

It asks often at first and then less and less, and again often when somebody new has come.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.errors import (
    DatabaseUnavailable,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobNotFound,
    JobTimedOut,
    ResultTimeout,
    SchedulerError,
)
from scheduler.graph import refuse_to_wait
from scheduler.states import FINISHED, Status

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from scheduler.store import Store

FIRST = 0.02  # seconds
LONGEST = 0.5
_ERRORS: dict[str, type[JobEnded]] = {
    Status.FAILED: JobFailed,
    Status.TIMED_OUT: JobTimedOut,
    Status.CANCELLED: JobCancelled,
}


class _Awaited:
    """One job, and how many wait for it."""

    __slots__ = ("future", "waiters")

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to see it
        self.waiters = 0


def _status(future: asyncio.Future[Any]) -> Status:
    error = future.exception()
    if error is None:
        return Status.COMPLETED
    if not isinstance(error, JobEnded):
        raise error
    return Status(error.status)


class Waiting:
    """The jobs somebody waits for. Owned by one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._awaited: dict[int, _Awaited] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause = FIRST

    async def result(self, job_id: int, timeout: timedelta | None) -> Any:  # noqa: ANN401, ASYNC109 - see Handle.result
        """Return the result of a job once it has completed; see Handle.result for the errors."""
        (future,) = await self._ended([job_id], timeout)
        return future.result()

    async def ended(self, job_ids: Iterable[int], timeout: timedelta | None) -> dict[int, Status]:  # noqa: ASYNC109
        """Return how jobs ended, once all have; see Scheduler.wait."""
        ids = list(dict.fromkeys(job_ids))
        futures = await self._ended(ids, timeout)
        return dict(zip(ids, map(_status, futures), strict=True))

    async def _ended(self, job_ids: list[int], timeout: timedelta | None) -> list[asyncio.Future[Any]]:  # noqa: ASYNC109
        refuse_to_wait()
        for job_id in job_ids:
            if job_id not in self._awaited:
                self._awaited[job_id] = _Awaited()
            self._awaited[job_id].waiters += 1
        all_awaited = [self._awaited[job_id] for job_id in job_ids]
        futures = [awaited.future for awaited in all_awaited]
        self._pause = FIRST
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        try:
            seconds = None if timeout is None else timeout.total_seconds()
            if futures:
                await asyncio.wait(futures, timeout=seconds)
            for job_id, future in zip(job_ids, futures, strict=True):
                if not future.done():
                    raise ResultTimeout(job_id, seconds or 0)
            return futures
        finally:
            for job_id, awaited in zip(job_ids, all_awaited, strict=True):
                awaited.waiters -= 1
                if not awaited.waiters and self._awaited.get(job_id) is awaited:
                    del self._awaited[job_id]

    async def close(self, error: SchedulerError) -> None:
        """Stop asking; whoever waits gets `error`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(list(self._awaited), error)

    async def _ask(self) -> None:
        while self._awaited:
            asked = list(self._awaited)
            try:
                self._tell(asked, {row["id"]: row for row in await self._store.outcomes(asked)})
            except DatabaseUnavailable:
                self._pause = LONGEST  # a result is not lost while the database is away
            except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
                self._fail(asked, error)
            if self._awaited:
                await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 1.5, LONGEST)

    def _tell(self, asked: list[int], found: dict[int, Any]) -> None:
        for job_id in asked:
            if job_id not in found:
                self._fail([job_id], JobNotFound(job_id))
            elif found[job_id]["status"] in FINISHED and (awaited := self._awaited.pop(job_id, None)):
                try:
                    self._end(awaited.future, found[job_id])
                except Exception as error:  # noqa: BLE001 - a number too long for Python, say: nobody else's trouble
                    words = f"the result of job {job_id} cannot be read: {type(error).__name__}"
                    awaited.future.set_exception(SchedulerError(words))

    def _fail(self, job_ids: list[int], error: Exception) -> None:
        for job_id in job_ids:
            if awaited := self._awaited.pop(job_id, None):
                awaited.future.set_exception(error)

    @staticmethod
    def _end(future: asyncio.Future[Any], row: Any) -> None:  # noqa: ANN401 - a row of outcomes
        if row["status"] == Status.COMPLETED:
            future.set_result(None if row["result"] is None else msgspec.json.decode(row["result"]))
        else:
            future.set_exception(_ERRORS[row["status"]](row["id"], row["status"], row["error"]))
