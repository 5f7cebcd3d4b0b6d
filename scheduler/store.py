"""The only road to PostgreSQL: one method per verb, values bound, rows mapped by name.

It decides nothing and starts nothing. What the database says is translated once: see translation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from scheduler import answers
from scheduler.calls import CALL_TIMEOUT, Calls, as_json, read_facts
from scheduler.errors import SchemaMismatch
from scheduler.graph import Parent  # noqa: TC001 - msgspec reads it
from scheduler.schedules import Fired, Schedule
from scheduler.schema import SUPPORTED, is_supported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta
    from uuid import UUID

    import asyncpg

    from scheduler.calls import Facts


class Store(Calls):
    """One method per verb; see Calls for what a call is."""

    # Submitting and asking.

    async def submit(self, kind: str, payload: str, options: str) -> int:
        return int(await self._value("SELECT scheduler.submit($1, $2, $3)", kind, payload, options))

    async def submit_graph(self, jobs: str) -> answers.Submitted:
        """Insert jobs in one statement, which on a connection of our own has a second more for each 10 kB."""
        timeout = CALL_TIMEOUT + len(jobs) / 10_000 if self._own else None
        return await self._read(answers.Submitted, "SELECT scheduler.submit_graph($1)", jobs, timeout=timeout)

    async def close_batch(self, job_id: int) -> bool:
        return bool(await self._value("SELECT scheduler.close_batch($1)", job_id))

    async def parents(self, job_id: int, after: int) -> list[Parent]:
        return (await self._read(_Page, "SELECT scheduler.parents($1, $2)", job_id, after)).parents

    async def outcomes(self, ids: Sequence[int]) -> list[asyncpg.Record]:
        return await self._rows("SELECT * FROM scheduler.outcomes($1)", ids)

    async def cancel(self, ids: Sequence[int]) -> answers.Cancelled:
        return await self._read(answers.Cancelled, "SELECT scheduler.cancel($1)", ids)

    async def job(self, job_id: int) -> Facts | None:
        found = await self._value("SELECT scheduler.job($1)", job_id)
        return None if found is None else read_facts(found)

    async def list_jobs(self, filters: Facts) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_jobs($1)", as_json(filters))

    async def who_runs(self, kind: str) -> Facts:
        return read_facts(await self._value("SELECT scheduler.who_runs($1)", kind))

    async def declare(
        self, kinds: Iterable[Facts], queues: Iterable[Facts], *also: Schedule, force: bool
    ) -> answers.Declared:
        """Declare queues, and each kind in a transaction of its own: submitters may hold the rows of several."""
        call = "SELECT scheduler.declare($1, $2, $3)"
        whole = await self._read(answers.Declared, call, "[]", as_json(list(queues)), force)
        for kind in kinds:
            answer = await self._read(answers.Declared, call, as_json([kind]), "[]", force)
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
        return read_facts(await self._value("SELECT scheduler.count_jobs($1)", as_json(filters)))

    async def job_ids(self, filters: Facts) -> list[int]:
        return list(await self._value("SELECT scheduler.job_ids($1)", as_json(filters)))

    async def retry(self, ids: Sequence[int]) -> answers.RetryLevel:
        return await self._read(answers.RetryLevel, "SELECT scheduler.retry($1)", ids)

    async def prune(self, ids: Sequence[int]) -> answers.Pruned:
        return await self._read(answers.Pruned, "SELECT scheduler.prune($1)", ids)

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
        return read_facts(await self._value("SELECT scheduler.pause($1, $2, $3, $4)", queue, kind, duration, by))

    async def resume(self, *, queue: str | None = None, kind: str | None = None) -> Facts:
        """Start jobs of a queue, or of a kind, again; `resumed` in the answer: whether it was paused."""
        return read_facts(await self._value("SELECT scheduler.resume($1, $2)", queue, kind))

    async def list_queues(self) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_queues()")

    async def list_kinds(self) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_kinds()")

    async def list_workers(self) -> list[Facts]:
        return await self._listed("SELECT scheduler.list_workers()")

    async def upsert_schedule(self, name: str, said: Facts, *, declared: bool = False, force: bool = False) -> Facts:
        call = "SELECT scheduler.upsert_schedule($1, $2, $3, $4)"
        return read_facts(await self._value(call, name, as_json(said), declared, force))

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

    async def renew(self, worker: UUID, ids: Sequence[int], fences: Sequence[int], lease: timedelta) -> answers.Missed:
        return await self._read(answers.Missed, "SELECT scheduler.renew($1, $2, $3, $4)", worker, ids, fences, lease)

    async def settle(self, worker: UUID, outcomes: Sequence[msgspec.Struct]) -> answers.Missed:
        return await self._read(answers.Missed, "SELECT scheduler.settle($1, $2)", worker, as_json(outcomes))

    async def release(self, worker: UUID, ids: Sequence[int], fences: Sequence[int]) -> answers.Missed:
        return await self._read(answers.Missed, "SELECT scheduler.release($1, $2, $3)", worker, ids, fences)

    async def hold(self, job_id: int, fence: int) -> None:
        await self._value("SELECT scheduler.hold($1, $2)", job_id, fence)

    async def complete(self, job_id: int, fence: int, result: str) -> None:
        await self._value("SELECT scheduler.complete($1, $2, $3)", job_id, fence, result)

    async def resolve(self, parents: Sequence[int] | None, limit: int) -> answers.Resolved:
        return await self._read(answers.Resolved, "SELECT scheduler.resolve($1, $2)", parents, limit)

    async def reap(self, lease: timedelta, limit: int) -> answers.Reaped:
        return await self._read(answers.Reaped, "SELECT scheduler.reap($1, $2)", lease, limit)

    async def promote(self, limit: int) -> answers.Promoted:
        return await self._read(answers.Promoted, "SELECT scheduler.promote($1)", limit)

    async def fire(self, fires: Sequence[Facts], limit: int) -> Fired:
        return await self._read(Fired, "SELECT scheduler.fire($1, $2)", as_json(fires), limit)

    async def retain(self, limit: int) -> answers.Retained:
        return await self._read(answers.Retained, "SELECT scheduler.retain($1)", limit)

    async def register(self, worker: UUID, facts: Facts) -> None:
        await self._value("SELECT scheduler.register($1, $2)", worker, as_json(facts))

    async def doze(self, worker: UUID, *, sleeping: bool) -> None:
        await self._value("SELECT scheduler.doze($1, $2)", worker, sleeping)

    async def deregister(self, worker: UUID) -> None:
        await self._value("SELECT scheduler.deregister($1)", worker)


class _Page(msgspec.Struct):
    parents: list[Parent]
