"""The client for programs without an event loop: scripts, threads, Django, Flask.

    with SyncScheduler.connect() as scheduler:
        handle = scheduler.submit(SendEmail(to="a@example.org", subject="done"))
        print(handle.result(timeout=timedelta(minutes=1)))

A daemon thread has one event loop, begun by the first call and shared by all threads of the process. What is submitted
with `connection=` does not go there: its statement runs in the caller's thread, on the caller's connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, Unpack

from scheduler.borrowed import Borrowed, in_place
from scheduler.client import Scheduler
from scheduler.errors import DatabaseUnavailable, InvalidJob, SchedulerError
from scheduler.settings import dsn_from
from scheduler.submission import JobId, SubmitOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from scheduler.answers import Cancelled
    from scheduler.graph import Parent
    from scheduler.job import Job
    from scheduler.schedules import ScheduleOptions
    from scheduler.states import Status
    from scheduler.submission import Submission

T = TypeVar("T")


class SyncHandle(JobId):
    """A submitted job: its id, and the way to its result."""

    __slots__ = ("_scheduler",)

    def __init__(self, scheduler: SyncScheduler, job: JobId) -> None:
        super().__init__(job.id, created=job.created, running=job.running)
        self._scheduler = scheduler

    def result(self, timeout: timedelta | None = None) -> Any:  # noqa: ANN401 - what the handler returned
        """Wait for the end of the job and return what its handler returned; errors as those of Handle.result."""
        return self._scheduler._do(lambda client: client.handle(self.id).result(timeout))  # noqa: SLF001 - one room


class _Background(NamedTuple):
    client: Scheduler
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    thread: threading.Thread


class SyncScheduler:
    """The scheduler of one database, asked without `await`; safe to share between threads, and to use after a fork.

    Do not fork while a thread opens a connection, as the first calls do: OpenSSL's locks stay taken in the child, which
    then hangs when it connects, with any client. Children that are spawned, or run another program, are free of it.
    """

    def __init__(self, dsn: str, *, connections: int = 5) -> None:
        self._dsn = dsn
        self._connections = connections
        self._closed = False
        # By process: a fork begins anew, and lets go neither of a lock nor of a socket of its parent.
        self._locks: dict[int, threading.Lock] = {}
        self._backgrounds: dict[int, _Background] = {}

    @classmethod
    def connect(cls, dsn: str | None = None, *, connections: int = 5) -> Self:
        """Prepare a connection to `dsn`, or to SCHEDULER_DSN; the first call opens it.

        Raises ConfigurationError when neither names a database, or another package has written over this one.
        """
        Scheduler.connect(dsn)  # which checks both
        return cls(dsn_from(dsn), connections=connections)

    def close(self) -> None:
        """Close the connection; whoever still waits for a result gets DatabaseUnavailable."""
        with self._lock():
            self._closed = True
            background = self._backgrounds.pop(os.getpid(), None)
        if background is not None:
            background.loop.call_soon_threadsafe(background.stop.set)
            background.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: Job, *, connection: object = None, **options: Unpack[SubmitOptions]) -> SyncHandle:
        """Insert one job and return its handle; see Scheduler.submit. `connection` must be one that blocks."""
        return SyncHandle(
            self, self._do(lambda client: client.submit(job, connection=connection, **options), connection)
        )

    def submit_many(
        self, jobs: Iterable[Job | Submission], *, connection: object = None, **options: Unpack[SubmitOptions]
    ) -> list[SyncHandle]:
        """Insert all of `jobs` or none and return their handles in the order given; see Scheduler.submit_many."""
        jobs = list(jobs)  # in the caller's thread: a generator may read from a connection that belongs to it
        made = self._do(lambda client: client.submit_many(jobs, connection=connection, **options), connection)
        return [SyncHandle(self, handle) for handle in made]

    def submit_graph(
        self, nodes: Mapping[str, Job | Submission], *, connection: object = None, **options: Unpack[SubmitOptions]
    ) -> dict[str, SyncHandle]:
        """Insert all jobs of a graph or none and return their handles by name; see Scheduler.submit_graph."""
        made = self._do(lambda client: client.submit_graph(nodes, connection=connection, **options), connection)
        return {name: SyncHandle(self, handle) for name, handle in made.items()}

    @contextmanager
    def batch(
        self, callback: Job, *, connection: object = None, **options: Unpack[SubmitOptions]
    ) -> Iterator[SyncHandle]:
        """Open a batch, closed by the end of the block; see Scheduler.batch."""
        options["batch"] = True
        handle = self.submit(callback, connection=connection, **options)
        try:
            yield handle
        except BaseException:
            if connection is None and handle.created and options.get("idempotency_key") is None:
                self.cancel(handle)
            raise
        if handle.created or options.get("idempotency_key") is not None:
            self.close_batch(handle, connection=connection)

    def close_batch(self, batch: JobId | int, *, connection: object = None) -> bool:
        """Close an open batch; see Scheduler.close_batch."""
        return self._do(lambda client: client.close_batch(batch, connection=connection), connection)

    def wait(self, jobs: Iterable[JobId | int], timeout: timedelta | None = None) -> dict[int, Status]:
        """Wait until all of `jobs` have ended and return their statuses by id; see Scheduler.wait."""
        jobs = list(jobs)
        return self._do(lambda client: client.wait(jobs, timeout))

    def parents(self, job: JobId | int, *, after: int = 0) -> list[Parent]:
        """Return how the jobs ended that `job` depends on, a page of them; see Scheduler.parents."""
        return self._do(lambda client: client.parents(job, after=after))

    def schedule(self, name: str, job: Job, **options: Unpack[ScheduleOptions]) -> None:
        """Submit `job` again and again; see Scheduler.schedule."""
        self._do(lambda client: client.schedule(name, job, **options))

    def handle(self, job_id: int) -> SyncHandle:
        """Return the handle of a job submitted elsewhere; the id is not looked up."""
        return SyncHandle(self, JobId(job_id))

    def cancel(self, *jobs: JobId | int) -> Cancelled:
        """Cancel jobs; see Scheduler.cancel."""
        return self._do(lambda client: client.cancel(*jobs))

    def job(self, job_id: int) -> dict[str, Any]:
        """Return all that is known of one job. Raises JobNotFound."""
        return self._do(lambda client: client.job(job_id))

    def jobs(self, **filters: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - the filters of Scheduler.jobs
        """Return jobs newest first; see Scheduler.jobs."""
        return self._do(lambda client: client.jobs(**filters))

    def results(self, jobs: Sequence[JobId | int]) -> dict[int, Any]:
        """Return the results of those of `jobs` that have completed, by id."""
        return self._do(lambda client: client.results(jobs))

    def _do(self, work: Callable[[Scheduler], Coroutine[Any, Any, T]], connection: object = None) -> T:
        """Ask the scheduler: in the background, or in place on the caller's connection."""
        if connection is not None:
            if not Borrowed(connection).blocking:
                raise InvalidJob("connection", "belongs to an event loop: use the Scheduler and `await` it there")
            return in_place(work(Scheduler(self._dsn)))
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - public, for those who write event loops
            raise SchedulerError(
                "SyncScheduler would block the event loop of this thread: use `async with Scheduler.connect()`,"
                " or call it in another thread (asyncio.to_thread)"
            )
        with self._lock():
            background = self._begun()
            future = asyncio.run_coroutine_threadsafe(work(background.client), background.loop)
        try:
            return future.result()
        except BaseException:  # KeyboardInterrupt, too
            future.cancel()
            raise

    def _lock(self) -> threading.Lock:
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _begun(self) -> _Background:
        if self._closed:
            raise DatabaseUnavailable("this SyncScheduler is closed: connect another")
        if (background := self._backgrounds.get(os.getpid())) is None:
            begun: Future[_Background] = Future()
            threading.Thread(target=self._run, args=[begun], name="scheduler-client", daemon=True).start()
            background = self._backgrounds[os.getpid()] = begun.result()
        return background

    def _run(self, begun: Future[_Background]) -> None:
        async def serve() -> None:
            stop = asyncio.Event()
            async with Scheduler(self._dsn, connections=self._connections) as client:
                begun.set_result(_Background(client, asyncio.get_running_loop(), stop, threading.current_thread()))
                await stop.wait()

        try:
            asyncio.run(serve())
        except BaseException as error:
            if begun.done():
                raise
            begun.set_exception(error)
