"""What a service asks of the scheduler: submit, wait, look, cancel.

    async with Scheduler.connect() as scheduler:
        handle = await scheduler.submit(SendEmail(to="a@example.org", subject="done"))
        print(await handle.result(timeout=timedelta(minutes=1)))

`SyncScheduler` asks the same without an event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from leasework import complaint
from scheduler.admin import BATCH, Admin
from scheduler.connections import open_pool, reach
from scheduler.errors import ConfigurationError, DatabaseUnavailable, JobNotFound
from scheduler.job import kind_declaration, queue_declaration
from scheduler.schedules import definition
from scheduler.settings import dsn_from
from scheduler.store import Store
from scheduler.submission import JobId, SubmitOptions, id_of
from scheduler.submitting import Handle, Submitting
from scheduler.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future
    from datetime import timedelta

    from scheduler.answers import Cancelled, Declared
    from scheduler.connections import Pool
    from scheduler.embedded import Held
    from scheduler.graph import Parent
    from scheduler.job import Job
    from scheduler.options import Queue
    from scheduler.schedules import Schedule, ScheduleOptions
    from scheduler.states import Status

_NOT_OPEN = "this scheduler is not open: use it within `async with Scheduler.connect() as scheduler:`"


class Scheduler(Submitting):
    """A connection to the scheduler of one database; safe to share between tasks of one event loop."""

    store: Store
    admin: Admin
    waiting: Waiting

    def __init__(self, dsn: str, *, connections: int = 5) -> None:
        self._dsn = dsn
        self._connections = connections
        self._held: Held | None = None
        self._pool: Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def connect(cls, dsn: str | None = None, *, connections: int = 5) -> Scheduler:
        """Prepare a connection to `dsn`, or to SCHEDULER_DSN; it is opened by `async with`, or by `open()`.

        Raises ConfigurationError when neither names a database, or another package has written over this one.
        """
        if wrong := complaint():
            raise ConfigurationError(wrong)
        return cls(dsn_from(dsn), connections=connections)

    async def open(self) -> Scheduler:
        """Open the connection and check the schema. Raises DatabaseUnavailable, SchemaMismatch."""
        if self._pool is not None:
            raise ConfigurationError(
                "this scheduler is open already: share it, or make another with Scheduler.connect()"
            )
        self._held = await reach(self._dsn)
        self._pool = await open_pool(self._held.url, size=self._connections, name="scheduler")
        self.store = Store(self._pool)
        self.admin = Admin(self.store)
        self.waiting = Waiting(self.store)
        try:
            await self.store.check_schema()
        except BaseException:
            await self.close()
            raise
        self._loop = asyncio.get_running_loop()
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what `open` makes
            """Raise DatabaseUnavailable for what there is only once the scheduler has been opened."""
            if name in Scheduler.__annotations__:
                raise DatabaseUnavailable(_NOT_OPEN)
            raise AttributeError(name)

    async def close(self) -> None:
        """Close the connection; whoever still waits for a result gets DatabaseUnavailable."""
        self._loop = None
        if self._pool is not None:
            await self.waiting.close(DatabaseUnavailable("the scheduler's connection was closed"))
            await self._pool.close()
            self._pool = None
        if self._held is not None:
            self._held.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def submit_threadsafe(self, job: Job, **options: Unpack[SubmitOptions]) -> Future[Handle]:
        """Submit from any thread, on the event loop of this scheduler; the future has what `submit` returns or raises.

        Raises DatabaseUnavailable when the scheduler is not open. The loop's own thread must not wait for the future.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            raise DatabaseUnavailable(_NOT_OPEN)
        return asyncio.run_coroutine_threadsafe(self.submit(job, **options), loop)

    def handle(self, job_id: int) -> Handle:
        """Return the handle of a job submitted elsewhere; the id is not looked up."""
        return Handle(self, job_id)

    async def cancel(self, *jobs: JobId | int) -> Cancelled:
        """Cancel jobs: those waiting end at once, running ones are asked to stop. Children follow their policy."""
        ids = list(map(id_of, jobs))
        done = await self.store.cancel(ids)
        parents = done.parents
        while parents:  # the workers would do it too, a moment later
            parents = (await self.store.resolve(parents, BATCH)).parents
        return done

    async def job(self, job_id: int) -> dict[str, Any]:
        """Return all that is known of one job, its attempts included. Raises JobNotFound."""
        found = await self.store.job(job_id)
        if found is None:
            raise JobNotFound(job_id)
        return found

    async def jobs(self, **filters: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - the filters of list_jobs
        """Return jobs newest first.

        Filters: status (a list), kind, queue, tenant, error (text that it contains), older_than and newer_than (seconds
        since it was submitted), before (an id), limit (50). Raises InvalidJob for one that does not exist.
        """
        return await self.store.list_jobs(filters)

    async def results(self, jobs: Sequence[JobId | int]) -> dict[int, Any]:
        """Return the results of those of `jobs` that have completed, by id."""
        ids = list(map(id_of, jobs))
        rows = await self.store.outcomes(ids)
        return {
            row["id"]: None if row["result"] is None else msgspec.json.decode(row["result"])
            for row in rows
            if row["status"] == "COMPLETED"
        }

    async def wait(
        self,
        jobs: Iterable[JobId | int],
        timeout: timedelta | None = None,  # noqa: ASYNC109 - as in Handle.result
    ) -> dict[int, Status]:
        """Wait until all of `jobs` have ended, well or not, and return their statuses by id.

        However many jobs and callers wait, one statement asks for all. Raises ResultTimeout after `timeout` (none: for
        ever), JobNotFound, WaitsInJob within a handler.
        """
        return await self.waiting.ended(map(id_of, jobs), timeout)

    async def parents(self, job: JobId | int, *, after: int = 0) -> list[Parent]:
        """Return how the jobs ended that `job` depends on, ids ascending, at most 1 MB; go on `after` the last id."""
        return await self.store.parents(id_of(job), after)

    async def schedule(self, name: str, job: Job, **options: Unpack[ScheduleOptions]) -> None:
        """Submit `job` again and again; a schedule of that name is given this definition.

        One that belongs to the code is better declared beside it: see Schedule. Raises InvalidSchedule, InvalidJob.
        """
        await self.store.upsert_schedule(name, definition(job, options))

    async def declare(
        self,
        kinds: Iterable[type[Job]],
        queues: Iterable[Queue],
        schedules: Iterable[Schedule] = (),
        *,
        force: bool = False,
    ) -> Declared:
        """Record what classes, queues and schedules say of themselves. `force` goes back to an older declaration."""
        said = map(kind_declaration, kinds), map(queue_declaration, queues)
        return await self.store.declare(*said, *schedules, force=force)
