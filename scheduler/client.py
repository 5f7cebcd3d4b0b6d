"""What a service asks of the scheduler: submit, wait, look, cancel.

    async with Scheduler.connect() as scheduler:
        handle = await scheduler.submit(SendEmail(to="a@example.org", subject="done"))
        print(await handle.result(timeout=timedelta(minutes=1)))

Only what the caller sets is sent: defaults belong to the kind, in the database.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import msgspec

from leasework import complaint
from scheduler import embedded
from scheduler.admin import Admin
from scheduler.error_text import UNSTORABLE
from scheduler.errors import ConfigurationError, DatabaseUnavailable, InvalidJob, JobNotFound
from scheduler.job import declarations
from scheduler.payload import encode_json, encode_payload
from scheduler.settings import dsn_from
from scheduler.store import Store, open_pool
from scheduler.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    import asyncpg

    from scheduler.answers import Cancelled, Declared
    from scheduler.job import Job, Queue

_METADATA_LIMIT = 16_384  # bytes
_RESOLVE_LIMIT = 1000  # children per call


class Handle:
    """A submitted job: its id, and the way to its result. Not awaited, it costs nothing."""

    __slots__ = ("_scheduler", "id")

    def __init__(self, scheduler: Scheduler, job_id: int) -> None:
        self._scheduler = scheduler
        self.id = job_id

    async def result(self, timeout: timedelta | None = None) -> Any:  # noqa: ANN401, ASYNC109 - as in the futures of Python
        """Wait for the end of the job and return what its handler returned.

        Raises JobFailed, JobTimedOut or JobCancelled when it ended so, ResultTimeout after `timeout` (none: for
        ever), JobNotFound when there is no such job. A job submitted in a transaction exists once that has committed.
        """
        return await self._scheduler.waiting.result(self.id, timeout)

    def __repr__(self) -> str:
        return f"Handle({self.id})"


class Scheduler:
    """A connection to the scheduler of one database; safe to share between tasks of one event loop."""

    def __init__(self, dsn: str, *, connections: int = 5) -> None:
        self._dsn = dsn
        self._connections = connections
        self._held: embedded.Held | None = None
        self._pool: asyncpg.Pool[Any] | None = None

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
        dsn = self._dsn
        if embedded.is_embedded(dsn):
            self._held = await asyncio.to_thread(embedded.hold, dsn)
            dsn = self._held.url
        self._pool = await open_pool(dsn, size=self._connections, name="scheduler")
        self.store = Store(self._pool)
        self.admin = Admin(self.store)
        self.waiting = Waiting(self.store)
        try:
            await self.store.check_schema()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close the connection; whoever still waits for a result gets DatabaseUnavailable."""
        if self._pool is not None:
            await self.waiting.close(DatabaseUnavailable("the scheduler's connection was closed"))
            await self._pool.close()
            self._pool = None
        if self._held is not None:
            self._held.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(  # noqa: PLR0913 - one per column a submitter may set
        self,
        job: Job,
        *,
        priority: int | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        tenant: str | None = None,
        depends_on: Iterable[Handle | int] = (),
        on_parent_failure: str | None = None,
        idempotency_key: str | None = None,
        unique_key: str | None = None,
        metadata: dict[str, Any] | None = None,
        connection: asyncpg.Connection[Any] | None = None,
    ) -> Handle:
        """Insert one job and return its handle; for a taken idempotency key, the handle of the older job.

        With `connection` the job is part of that connection's transaction: it exists if and only if that commits.
        Raises InvalidJob naming the field and the rule; nothing is inserted then.
        """
        payload = encode_payload(job).decode()
        options = {
            "priority": _whole("priority", priority),
            "delay": _delay(delay),
            "run_at": _instant("run_at", run_at),
            "tenant": _text("tenant", tenant),
            "depends_on": [_whole("depends_on", p.id if isinstance(p, Handle) else p) for p in depends_on] or None,
            "on_parent_failure": _text("on_parent_failure", on_parent_failure),
            "idempotency_key": _text("idempotency_key", idempotency_key),
            "unique_key": _text("unique_key", unique_key),
            "metadata": metadata and msgspec.Raw(encode_json("metadata", metadata, _METADATA_LIMIT)),
        }
        given = msgspec.json.encode({name: value for name, value in options.items() if value is not None}).decode()
        store = self.store if connection is None else Store(connection, own=False)
        return Handle(self, await store.submit(job.options.kind, payload, given))

    def handle(self, job_id: int) -> Handle:
        """Return the handle of a job submitted elsewhere; the id is not looked up."""
        return Handle(self, job_id)

    async def cancel(self, *jobs: Handle | int) -> Cancelled:
        """Cancel jobs: those waiting end at once, running ones are asked to stop. Children follow their policy."""
        ids = [job.id if isinstance(job, Handle) else job for job in jobs]
        done = await self.store.cancel(ids)
        parents = done.parents
        while parents:  # the workers would do it too, a moment later
            parents = (await self.store.resolve(parents, _RESOLVE_LIMIT)).parents
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
        return await self.store.list_jobs(msgspec.json.encode(filters).decode())

    async def results(self, jobs: Sequence[Handle | int]) -> dict[int, Any]:
        """Return the results of those of `jobs` that have completed, by id."""
        ids = [job.id if isinstance(job, Handle) else job for job in jobs]
        rows = await self.store.outcomes(ids)
        return {
            row["id"]: None if row["result"] is None else msgspec.json.decode(row["result"])
            for row in rows
            if row["status"] == "COMPLETED"
        }

    async def declare(self, kinds: Iterable[type[Job]], queues: Iterable[Queue], *, force: bool = False) -> Declared:
        """Record what classes and queues say of themselves; see the verb. `force` goes back to an older declaration."""
        return await self.store.declare(*declarations(kinds, queues), force=force)


def _instant(field: str, value: datetime | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidJob(field, f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidJob(field, "has no time zone: use an aware datetime, as in datetime.now(UTC)")
    return value.isoformat()


def _whole(field: str, value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidJob(field, f"must be a whole number, not {type(value).__name__}")
    return value


def _delay(value: timedelta | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, timedelta):
        raise InvalidJob("delay", f"must be a timedelta, not {type(value).__name__}")
    if value < timedelta(0):
        raise InvalidJob("delay", "must not be negative: leave it out to run the job now")
    return f"{value.total_seconds():f} seconds"


def _text(field: str, value: str | None) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidJob(field, f"must be text, not {type(value).__name__}")
    if value is not None and UNSTORABLE.search(value):
        raise InvalidJob(field, "holds a NUL or a lone surrogate, which PostgreSQL cannot store: remove it")
    return value
