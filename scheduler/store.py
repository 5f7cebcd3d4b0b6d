"""The only road to PostgreSQL: one method per verb, values bound, rows mapped by name.

It decides nothing and starts nothing. What the database says is translated once: see translation.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import asyncpg
import msgspec

from scheduler.answers import Cancelled, Declared, Missed, Promoted, Pruned, Reaped, Resolved, Retained, RetryLevel
from scheduler.errors import SchemaMismatch
from scheduler.schedules import Fired, Schedule
from scheduler.schema import SUPPORTED, is_supported
from scheduler.translation import translated as _translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta
    from uuid import UUID

T = TypeVar("T")
Facts = dict[str, Any]  # what is known of a job, an attempt, a queue, a kind or a worker

LONGEST_NUMBER = 4000  # digits; Python refuses to read longer ones
CALL_TIMEOUT = 30.0  # seconds
TRIES = 4  # of a call that met a deadlock or a serialization failure


class Caller(Protocol):
    """A pool of asyncpg, or a connection of a caller: see borrowed."""

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]: ...  # noqa: ANN401
    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...  # noqa: ANN401, ASYNC109


class Store:
    """Calls of verbs over a pool or a connection.

    Calls over a pool are transactions of their own; those of one value are repeated after a deadlock or a serialization
    failure. A call over a caller's connection is part of the caller's transaction and is not.
    """

    def __init__(self, caller: Caller, *, own: bool = True) -> None:
        self._caller = caller
        self._own = own

    async def _value(self, call: str, *args: object, timeout: float | None = None) -> Any:  # noqa: ANN401, ASYNC109
        with _translated(own=self._own):
            for left in range(TRIES - 1 if self._own else 0, -1, -1):
                try:
                    return await self._caller.fetchval(call, *args, timeout=timeout)
                except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                    if not left:
                        raise
                    await asyncio.sleep(random.uniform(0.005, 0.05))  # noqa: S311 - not a secret
        raise AssertionError  # the loop returns or raises

    async def _rows(self, call: str, *args: object) -> list[asyncpg.Record]:
        with _translated():
            return await self._caller.fetch(call, *args)

    async def _listed(self, call: str, *args: object) -> list[Facts]:
        return [_facts(row[0]) for row in await self._rows(call, *args)]

    # Submitting and asking.

    async def submit(self, kind: str, payload: str, options: str) -> int:
        return int(await self._value("SELECT scheduler.submit($1, $2, $3)", kind, payload, options))

    async def submit_many(self, jobs: str) -> list[int]:
        """Insert jobs in one statement, which on a connection of our own has a second more for each 10 kB."""
        timeout = CALL_TIMEOUT + len(jobs) / 10_000 if self._own else None
        return list(await self._value("SELECT scheduler.submit_many($1)", jobs, timeout=timeout))

    async def outcomes(self, ids: Sequence[int]) -> list[asyncpg.Record]:
        return await self._rows("SELECT * FROM scheduler.outcomes($1)", ids)

    async def cancel(self, ids: Sequence[int]) -> Cancelled:
        return _read(Cancelled, await self._value("SELECT scheduler.cancel($1)", ids))

    async def job(self, job_id: int) -> Facts | None:
        found = await self._value("SELECT scheduler.job($1)", job_id)
        return None if found is None else _facts(found)

    async def list_jobs(self, filters: Facts) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_jobs($1)", _json(filters))

    async def who_runs(self, kind: str) -> Facts:
        return _facts(await self._value("SELECT scheduler.who_runs($1)", kind))

    async def declare(self, kinds: Iterable[Facts], queues: Iterable[Facts], *also: Schedule, force: bool) -> Declared:
        """Declare queues, and each kind in a transaction of its own: submitters may hold the rows of several."""
        call = "SELECT scheduler.declare($1, $2, $3)"
        whole = _read(Declared, await self._value(call, "[]", _json(list(queues)), force))
        for kind in kinds:
            answer = _read(Declared, await self._value(call, _json([kind]), "[]", force))
            whole.changed += answer.changed
            whole.superseded += answer.superseded
        for schedule in also:
            done = await self.upsert_schedule(schedule.name, schedule.definition, declared=True, force=force)
            told = {"same": [], "superseded": whole.superseded}.get(done["change"], whole.changed)
            told.append(f"schedule {schedule.name}")
        return whole

    async def schema_version(self) -> str:
        return str(await self._value("SELECT scheduler.schema_version()"))

    async def check_schema(self) -> None:
        """Raise SchemaMismatch unless the database has a schema that this version can use."""
        found = await self.schema_version()
        if not is_supported(found):
            newest = SUPPORTED[-1]
            raise SchemaMismatch(
                f"the schema is at revision {found}, this version needs {newest}: "
                + ("run `scheduler migrate`" if found < newest else "install a newer leasework on this host")
            )

    async def backend_pid(self) -> int:
        return int(await self._value("SELECT scheduler.backend_pid()"))

    # An operator's verbs.

    async def count_jobs(self, filters: Facts) -> dict[str, int]:
        """Return how many jobs match, by status; filters as in `jobs`. Raises InvalidJob for an unknown one."""
        return _facts(await self._value("SELECT scheduler.count_jobs($1)", _json(filters)))

    async def job_ids(self, filters: Facts) -> list[int]:
        return list(await self._value("SELECT scheduler.job_ids($1)", _json(filters)))

    async def retry(self, ids: Sequence[int]) -> RetryLevel:
        return _read(RetryLevel, await self._value("SELECT scheduler.retry($1)", ids))

    async def prune(self, ids: Sequence[int]) -> Pruned:
        return _read(Pruned, await self._value("SELECT scheduler.prune($1)", ids))

    async def pause(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        duration: timedelta | None = None,
        by: str | None = None,
    ) -> Facts:
        """Start no more jobs of a queue, or of a kind, for `duration` or until it is resumed; running ones go on.

        `by` says who; the role of the connection by default. Raises InvalidJob naming the field and the rule.
        """
        return _facts(await self._value("SELECT scheduler.pause($1, $2, $3, $4)", queue, kind, duration, by))

    async def resume(self, *, queue: str | None = None, kind: str | None = None) -> Facts:
        """Start jobs of a queue, or of a kind, again; `resumed` in the answer: whether it was paused."""
        return _facts(await self._value("SELECT scheduler.resume($1, $2)", queue, kind))

    async def list_queues(self) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_queues()")

    async def list_kinds(self) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_kinds()")

    async def list_workers(self) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_workers()")

    async def upsert_schedule(self, name: str, said: Facts, *, declared: bool = False, force: bool = False) -> Facts:
        call = "SELECT scheduler.upsert_schedule($1, $2, $3, $4)"
        return _facts(await self._value(call, name, _json(said), declared, force))

    async def list_schedules(self) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_schedules()")

    async def pause_schedule(self, name: str, *, paused: bool = True) -> bool:
        """Let a schedule fire no more, or again from now on; return whether it stood still. Raises InvalidJob."""
        return bool(await self._value("SELECT scheduler.pause_schedule($1, $2)", name, paused))

    async def run_schedule(self, name: str) -> int | None:
        """Make one job of a schedule now, and return its id; None when its unique_key is taken. Raises InvalidJob."""
        return cast("int | None", await self._value("SELECT scheduler.run_schedule($1)", name))

    async def delete_schedule(self, name: str) -> bool:
        return bool(await self._value("SELECT scheduler.delete_schedule($1)", name))

    # A worker's verbs.

    async def claim(  # noqa: PLR0913, PLR0917 - the parameters of the verb
        self, worker: UUID, request: UUID, queues: Sequence[str], kinds: Sequence[str], slots: int, lease: timedelta
    ) -> list[asyncpg.Record]:
        """Return claimed rows; when short of `slots` a last row without id carries the hints."""
        return await self._rows(
            "SELECT * FROM scheduler.claim($1, $2, $3, $4, $5, $6)", worker, request, queues, kinds, slots, lease
        )

    async def claimed_by(self, worker: UUID, request: UUID) -> list[asyncpg.Record]:
        return await self._rows("SELECT * FROM scheduler.claimed_by($1, $2)", worker, request)

    async def renew(self, worker: UUID, ids: Sequence[int], fences: Sequence[int], lease: timedelta) -> Missed:
        return _read(Missed, await self._value("SELECT scheduler.renew($1, $2, $3, $4)", worker, ids, fences, lease))

    async def settle(self, worker: UUID, outcomes: Sequence[msgspec.Struct]) -> Missed:
        return _read(Missed, await self._value("SELECT scheduler.settle($1, $2)", worker, _json(outcomes)))

    async def release(self, worker: UUID, ids: Sequence[int], fences: Sequence[int]) -> Missed:
        return _read(Missed, await self._value("SELECT scheduler.release($1, $2, $3)", worker, ids, fences))

    async def resolve(self, parents: Sequence[int] | None, limit: int) -> Resolved:
        return _read(Resolved, await self._value("SELECT scheduler.resolve($1, $2)", parents, limit))

    async def reap(self, lease: timedelta, limit: int) -> Reaped:
        return _read(Reaped, await self._value("SELECT scheduler.reap($1, $2)", lease, limit))

    async def promote(self, limit: int) -> Promoted:
        return _read(Promoted, await self._value("SELECT scheduler.promote($1)", limit))

    async def fire(self, fires: Sequence[Facts], limit: int) -> Fired:
        return _read(Fired, await self._value("SELECT scheduler.fire($1, $2)", _json(fires), limit))

    async def retain(self, limit: int) -> Retained:
        return _read(Retained, await self._value("SELECT scheduler.retain($1)", limit))

    async def register(self, worker: UUID, facts: Facts) -> None:
        await self._value("SELECT scheduler.register($1, $2)", worker, _json(facts))

    async def doze(self, worker: UUID, *, sleeping: bool) -> None:
        await self._value("SELECT scheduler.doze($1, $2)", worker, sleeping)

    async def deregister(self, worker: UUID) -> None:
        await self._value("SELECT scheduler.deregister($1)", worker)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _read(shape: type[T], answer: str) -> T:
    return msgspec.json.decode(answer, type=shape)


def _facts(answer: str) -> Facts:
    """Read what is known of a job; a number too long for Python stays its digits, and hides no other job."""
    try:
        return msgspec.json.decode(answer, type=Facts)
    except msgspec.ValidationError:
        return dict(
            json.loads(answer, parse_int=lambda digits: int(digits) if len(digits) < LONGEST_NUMBER else digits)
        )
