"""Waiting for results: however many wait, one task asks for all of them in one call.

It asks often at first and then less and less, and again often when somebody new has come.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler import errors
from scheduler.graph import refuse_to_wait
from scheduler.states import FINISHED, Status

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from scheduler.store import Store

FIRST = 0.02  # seconds
LONGEST = 0.5
_ERRORS: dict[str, type[errors.JobEnded]] = {
    Status.FAILED: errors.JobFailed,
    Status.TIMED_OUT: errors.JobTimedOut,
    Status.CANCELLED: errors.JobCancelled,
}


class Waiting:
    """The jobs somebody waits for. Owned by one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By whoever waits: for each job of theirs the row of `outcomes` that is to come.
        self._awaited: dict[object, dict[int, asyncio.Future[Any]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause = FIRST

    async def result(self, job_id: int, timeout: timedelta | None) -> Any:  # noqa: ANN401, ASYNC109 - see Handle.result
        """Return the result of a job once it has completed; see Handle.result for the errors."""
        (row,) = await self._ended([job_id], timeout)
        if row["status"] != Status.COMPLETED:
            raise _ERRORS[row["status"]](job_id, row["status"], row["error"])
        try:
            return None if row["result"] is None else msgspec.json.decode(row["result"])
        except Exception as error:  # a number too long for Python, say
            raise errors.SchedulerError(f"the result of job {job_id} cannot be read: {type(error).__name__}") from error

    async def ended(self, job_ids: Iterable[int], timeout: timedelta | None) -> dict[int, Status]:  # noqa: ASYNC109
        """Return how jobs ended, once all have; see Scheduler.wait."""
        return {row["id"]: Status(row["status"]) for row in await self._ended(job_ids, timeout)}

    async def _ended(self, job_ids: Iterable[int], timeout: timedelta | None) -> list[Any]:  # noqa: ASYNC109
        refuse_to_wait()
        loop, waiter = asyncio.get_running_loop(), object()
        futures = self._awaited[waiter] = {job_id: loop.create_future() for job_id in job_ids}
        self._pause = FIRST
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        seconds = None if timeout is None else timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.gather(*futures.values())
        except TimeoutError:
            missed = [job_id for job_id, future in futures.items() if future.cancelled()]
            if missed:
                raise errors.ResultTimeout(missed[0], seconds or 0) from None
            return [future.result() for future in futures.values()]  # the last one ended at that moment
        finally:
            del self._awaited[waiter]

    async def close(self, error: errors.SchedulerError) -> None:
        """Stop asking; whoever waits gets `error`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(error)

    def _open(self) -> list[tuple[int, asyncio.Future[Any]]]:
        return [found for futures in self._awaited.values() for found in futures.items() if not found[1].done()]

    async def _ask(self) -> None:
        while asked := self._open():
            try:
                found = {row["id"]: row for row in await self._store.outcomes(list({job_id for job_id, _ in asked}))}
            except errors.DatabaseUnavailable:
                self._pause = LONGEST  # a result is not lost while the database is away
            except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
                self._fail(error)
            else:
                self._tell(asked, found)
            if self._open():
                await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 1.5, LONGEST)

    def _tell(self, asked: list[tuple[int, asyncio.Future[Any]]], found: dict[int, Any]) -> None:
        for job_id, future in asked:
            if future.done():  # whoever waited has gone
                continue
            if job_id not in found:
                future.set_exception(errors.JobNotFound(job_id))
            elif found[job_id]["status"] in FINISHED:
                future.set_result(found[job_id])

    def _fail(self, error: Exception) -> None:
        for _, future in self._open():
            future.set_exception(error)
