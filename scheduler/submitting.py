"""Submitting: one job, many, a graph, a batch; on a connection of the scheduler's own or on the caller's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from scheduler.borrowed import Borrowed
from scheduler.errors import InvalidJob
from scheduler.store import Store
from scheduler.submission import JobId, SubmitOptions, encode, encode_graph, encode_many, id_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from datetime import timedelta

    from scheduler.answers import Cancelled
    from scheduler.job import Job
    from scheduler.submission import Json, Submission
    from scheduler.waiting import Waiting


class Handle(JobId):
    """A submitted job: its id, and the way to its result. Not awaited, it costs nothing."""

    __slots__ = ("_scheduler",)

    def __init__(self, scheduler: Submitting, job_id: int, *, created: bool = False, running: bool = False) -> None:
        super().__init__(job_id, created=created, running=running)
        self._scheduler = scheduler

    async def result(self, timeout: timedelta | None = None) -> Any:  # noqa: ANN401, ASYNC109 - as in the futures of Python
        """Wait for the end of the job and return what its handler returned.

        Raises JobFailed, JobTimedOut or JobCancelled when it ended so, ResultTimeout after `timeout` (none: for
        ever), JobNotFound when there is no such job, WaitsInJob within a handler. A job submitted in a transaction
        exists once that has committed.
        """
        return await self._scheduler.waiting.result(self.id, timeout)


class Submitting:
    """The side of a Scheduler that submits."""

    store: Store
    waiting: Waiting

    if TYPE_CHECKING:

        async def cancel(self, *jobs: JobId | int) -> Cancelled: ...

    async def submit(self, job: Job, *, connection: object = None, **options: Unpack[SubmitOptions]) -> Handle:
        """Insert one job and return its handle; for a taken key, the handle of the job that has it: see JobId.

        The options are those of SubmitOptions. With `connection` the job is part of that connection's transaction: it
        exists if and only if that commits, and at once where no transaction is open and the driver commits by itself.
        Connections of asyncpg, psycopg and Django will do, and connections and sessions of SQLAlchemy; one that blocks
        is used in place, and blocks the event loop as it always does.
        Raises InvalidJob naming the field and the rule; nothing is inserted then, and the caller's transaction, like
        after any error of PostgreSQL, goes on only from a savepoint. Other errors of the caller's connection are those
        of its driver.
        """
        if options.get("idempotency_key") is not None or options.get("unique_key") is not None:
            try:
                return (await self._submitted(encode_many([job], options), connection))[0]
            except InvalidJob as error:
                error.index = None
                raise
        kind, payload, given = encode(job, options)
        return Handle(self, await self._store(connection).submit(kind, payload, given), created=True)

    async def submit_many(
        self, jobs: Iterable[Job | Submission], *, connection: object = None, **options: Unpack[SubmitOptions]
    ) -> list[Handle]:
        """Insert all of `jobs` or none, in one statement, and return their handles in the order given.

        The options are those of every job; a `Submission(job, priority=...)` has some of its own, which win. A taken
        key gives the handle of the job that has it, also within the call. `connection` and errors as in `submit`;
        `index` of the InvalidJob tells which job it was.
        """
        return await self._submitted(encode_many(jobs, options), connection)

    async def submit_graph(
        self, nodes: Mapping[str, Job | Submission], *, connection: object = None, **options: Unpack[SubmitOptions]
    ) -> dict[str, Handle]:
        """Insert all jobs of a graph or none, in one statement, and return their handles by name.

        A node names those that it waits for, in whatever order they stand: `Submission(job, depends_on=["a", handle])`.
        A cycle, a name that is no node's and one given twice are refused before anything is sent; `index` of the
        InvalidJob is the name of the node. Options, `connection` and errors as in `submit_many`; where a key is taken,
        the job that has it stands in the place of the node.
        """
        names, given = encode_graph(nodes, options)
        try:
            made = dict(zip(names, await self._submitted(given, connection), strict=True))
        except InvalidJob as error:
            error.index = names[error.index] if isinstance(error.index, int) else error.index
            raise
        return {name: made[name] for name in nodes}

    async def _submitted(self, jobs: Json, connection: object) -> list[Handle]:
        answer = await self._store(connection).submit_graph(jobs)
        older, running = set(answer.older), set(answer.running)
        return [Handle(self, i, created=i not in older, running=i in running) for i in answer.ids]

    @asynccontextmanager
    async def batch(
        self, callback: Job, *, connection: object = None, **options: Unpack[SubmitOptions]
    ) -> AsyncIterator[Handle]:
        """Open a batch: `callback` runs once, after all jobs that are submitted with `member_of=` this handle.

        The end of the block closes the batch: from then on only members add members. When the block raises, the
        callback is cancelled, and members that were submitted run all the same; one with an idempotency_key is left
        open, for the same block to be run again. A batch whose unique_key was taken is another block's, which closes
        it. What members that do not complete mean to the callback is its on_parent_failure.
        """
        options["batch"] = True
        handle = await self.submit(callback, connection=connection, **options)
        try:
            yield handle
        except BaseException:
            if connection is None and handle.created and options.get("idempotency_key") is None:
                await self.cancel(handle)
            raise
        if handle.created or options.get("idempotency_key") is not None:
            await self.close_batch(handle, connection=connection)

    async def close_batch(self, batch: JobId | int, *, connection: object = None) -> bool:
        """Close an open batch, whoever opened it; return False if it was closed or had ended. Raises InvalidJob."""
        return await self._store(connection).close_batch(id_of(batch))

    def _store(self, connection: object) -> Store:
        return self.store if connection is None else Store(Borrowed(connection), own=False)
