"""The client for programs without an event loop: scripts, threads, Django, Flask.

    with SyncScheduler.connect() as scheduler:
        handle = scheduler.submit(SendEmail(to="a@example.org", subject="done"))
        print(handle.result(timeout=timedelta(minutes=1)))

One thread of its own has one event loop, started by the first call and shared by all threads of the process. What is
submitted with `connection=` does not go there: its statement runs in the caller's thread, on the caller's connection.
A forked process starts a thread and connections of its own; those of its parent it leaves alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from weakref import WeakSet

from scheduler.client import Scheduler
from scheduler.connections import borrowed
from scheduler.errors import DatabaseUnavailable, InvalidJob, SchedulerError
from scheduler.settings import dsn_from
from scheduler.submission import JobId, SubmitOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
    from concurrent.futures import Future
    from datetime import timedelta
    from types import TracebackType

    from scheduler.answers import Cancelled
    from scheduler.client import Handle
    from scheduler.connections import BlockingConnection
    from scheduler.job import Job
    from scheduler.submission import Submission

T = TypeVar("T")


class SyncHandle(JobId):
    """A submitted job: its id, and the way to its result."""

    __slots__ = ("_scheduler",)

    def __init__(self, scheduler: SyncScheduler, job_id: int) -> None:
        super().__init__(job_id)
        self._scheduler = scheduler

    def result(self, timeout: timedelta | None = None) -> Any:  # noqa: ANN401 - what the handler returned
        """Wait for the end of the job and return what its handler returned; errors as those of Handle.result."""
        return self._scheduler._do(lambda client: client.handle(self.id).result(timeout))  # noqa: SLF001 - one room


class _Background:
    """An event loop in a thread, and the scheduler that lives on it. It belongs to one process."""

    def __init__(self, dsn: str, connections: int) -> None:
        self.selector = selectors.DefaultSelector()
        self._runner = asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self.selector))
        self._loop = self._runner.get_loop()
        self._scheduler = Scheduler(dsn, connections=connections)
        self._opening = asyncio.Lock()
        self._open = False
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._serve())

    async def _serve(self) -> None:
        await self._stop.wait()
        await self._scheduler.close()

    def begin(self, work: Callable[[Scheduler], Awaitable[T]]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(self._call(work), self._loop)

    async def _call(self, work: Callable[[Scheduler], Awaitable[T]]) -> T:
        async with self._opening:
            if not self._open:
                await self._scheduler.open()
                self._open = True
        return await work(self._scheduler)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class SyncScheduler:
    """The scheduler of one database, asked without `await`; safe to share between threads."""

    def __init__(self, dsn: str, *, connections: int = 5) -> None:
        self._dsn = dsn
        self._connections = connections
        self._lock = threading.Lock()  # held while a call is handed over, never while it runs
        self._background: _Background | None = None
        self._closed = False
        _ALL.add(self)

    @classmethod
    def connect(cls, dsn: str | None = None, *, connections: int = 5) -> Self:
        """Prepare a connection to `dsn`, or to SCHEDULER_DSN; the first call opens it.

        Raises ConfigurationError when neither names a database.
        """
        return cls(dsn_from(dsn), connections=connections)

    def close(self) -> None:
        """Close the connection; whoever still waits for a result gets DatabaseUnavailable."""
        with self._lock:
            background, self._background, self._closed = self._background, None, True
        if background is not None:
            background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(
        self, job: Job, *, connection: BlockingConnection | None = None, **options: Unpack[SubmitOptions]
    ) -> SyncHandle:
        """Insert one job and return its handle; see Scheduler.submit. `connection` must be one that blocks."""

        async def work(client: Scheduler) -> Handle:
            return await client.submit(job, connection=connection, **options)

        return SyncHandle(self, self._do(work, connection).id)

    def submit_many(
        self,
        jobs: Iterable[Job | Submission],
        *,
        connection: BlockingConnection | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[SyncHandle]:
        """Insert all of `jobs` or none and return their handles in the order given; see Scheduler.submit_many."""

        async def work(client: Scheduler) -> list[Handle]:
            return await client.submit_many(jobs, connection=connection, **options)

        return [SyncHandle(self, handle.id) for handle in self._do(work, connection)]

    def handle(self, job_id: int) -> SyncHandle:
        """Return the handle of a job submitted elsewhere; the id is not looked up."""
        return SyncHandle(self, job_id)

    def cancel(self, *jobs: JobId | int) -> Cancelled:
        """Cancel jobs: those waiting end at once, running ones are asked to stop. Children follow their policy."""
        return self._do(lambda client: client.cancel(*jobs))

    def job(self, job_id: int) -> dict[str, Any]:
        """Return all that is known of one job, its attempts included. Raises JobNotFound."""
        return self._do(lambda client: client.job(job_id))

    def jobs(self, **filters: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - the filters of Scheduler.jobs
        """Return jobs newest first; see Scheduler.jobs."""
        return self._do(lambda client: client.jobs(**filters))

    def results(self, jobs: Sequence[JobId | int]) -> dict[int, Any]:
        """Return the results of those of `jobs` that have completed, by id."""
        return self._do(lambda client: client.results(jobs))

    def _do(self, work: Callable[[Scheduler], Coroutine[Any, Any, T]], connection: object = None) -> T:
        """Do something with the scheduler: in the background, or in place on the caller's connection."""
        if connection is not None:
            return _in_place(work(Scheduler(self._dsn)), connection)
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise SchedulerError(_BLOCKS)
        with self._lock:
            if self._closed:
                raise DatabaseUnavailable("this SyncScheduler is closed: connect another")
            if self._background is None:
                self._background = _Background(self._dsn, self._connections)
            future = self._background.begin(work)
        try:
            return future.result()
        except BaseException:  # KeyboardInterrupt, too
            future.cancel()
            raise

    def _forked(self) -> None:
        if self._background is not None:
            self._background.selector.close()  # the child's copy: what it shares with the parent stays as it is
            _INHERITED.append(self._background)
        self._lock, self._background = threading.Lock(), None


def _in_place(work: Coroutine[Any, Any, T], connection: Any) -> T:  # noqa: ANN401
    """Run what never waits, as it blocks instead."""
    try:
        if not borrowed(connection).blocking:
            raise InvalidJob("connection", "belongs to an event loop: use the Scheduler and `await` it there")
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the result of the coroutine
    finally:
        work.close()
    raise AssertionError  # it waited


_BLOCKS = (
    "SyncScheduler would block the event loop that runs in this thread: use `async with Scheduler.connect()`,"
    " or call it in a thread (asyncio.to_thread)"
)
_ALL: WeakSet[SyncScheduler] = WeakSet()
_INHERITED: list[_Background] = []  # of the parent process; to let go of one would close what the parent uses


def _forget() -> None:
    for scheduler in _ALL:
        scheduler._forked()  # noqa: SLF001 - one room


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
