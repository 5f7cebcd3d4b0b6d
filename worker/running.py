"""The attempts of this process: begun from claimed rows, ended once, stopped by verdicts.

Owned by the event loop of the worker. Whatever is wrong with one row ends that job and no other.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.context import Context
from scheduler.errors import InvalidJob
from scheduler.payload import decode_payload
from scheduler.transaction import Transaction
from worker.attempt import Attempt, Leases, Settlement, Verdict, decided, failure, now, raised
from worker.loops import happens

if TYPE_CHECKING:
    from collections.abc import Mapping

    import asyncpg

    from scheduler.job import Job
    from worker.executors import Executor
    from worker.settler import Settler

log = logging.getLogger("scheduler.worker")

DEADLINE_TICK = 0.1  # seconds; the longest that a timeout is noticed late


@dataclass(eq=False)
class Running:
    """Begins and ends attempts; how each ended goes to the `outbox`."""

    worker: str
    kinds: Mapping[str, type[Job]]
    leases: Leases
    outbox: Settler

    def __post_init__(self) -> None:
        self._open = 0
        self._all_ended = asyncio.Event()
        self.gave_back = False
        self._watch = asyncio.get_running_loop().call_soon(self._watch_deadlines)

    def begin(self, executor: Executor, row: asyncpg.Record, sent: float) -> None:
        attempt = Attempt(self._context(row), row["payload"], executor, sent)
        if older := self.leases.get(attempt.id):  # reaped, and claimed again by this very worker
            self.lost([older])
        self.leases[attempt.id] = attempt
        self._open += 1
        self._all_ended.clear()
        try:
            if executor.name != "process":  # there the child decodes it
                attempt.job = decode_payload(self.kinds[attempt.context.kind], attempt.payload)
            executor.start(attempt)
        except InvalidJob as error:
            self.ended(attempt, failure(attempt, "InvalidPayload", str(error), retryable=False))
        except Exception as error:  # noqa: BLE001 - no thread to be had, say: the other rows of this claim go on
            self.ended(attempt, raised(attempt, error))

    def _context(self, row: asyncpg.Record) -> Context:
        return Context(
            job_id=row["id"], kind=row["kind"], queue=row["queue"], tenant=row["tenant"], attempt=row["attempt"],
            failures=row["failures"], fence=row["fence"], timeout=row["timeout"],
            idempotency_key=row["idempotency_key"], metadata=row["metadata"] or "{}", fire_time=row["fire_time"],
            worker_id=self.worker, transactions=Transaction, parents=row["parents"],
        )  # fmt: skip

    def ended(self, attempt: Attempt, settlement: Settlement) -> None:
        """Take note of how an attempt ended; called again for one that had been given up, it does nothing."""
        if not attempt.open:
            return
        attempt.open = False
        attempt.duration = max(now() - attempt.deadline + attempt.context.timeout, 0.0)  # 0: its child never began
        self._open -= 1
        if not self._open:
            self._all_ended.set()
        if attempt.verdict is None:
            self.outbox.add(attempt, settlement)
        elif attempt.verdict == "lost":
            self.leases.forget(attempt)
        elif attempt.verdict == "released":
            self.gave_back = True
            self.outbox.release(attempt)
        else:  # a handler that completed while it was being cancelled did complete; past its timeout nothing counts
            done = attempt.verdict == "cancelled" and settlement.outcome == "completed"
            self.outbox.add(attempt, settlement if done else decided(attempt))

    def stop(self, attempt: Attempt, verdict: Verdict) -> None:
        """Stop an attempt; the first verdict decides, but a lost lease outweighs all."""
        if not attempt.open or attempt.verdict == "lost":
            return
        first = attempt.verdict is None
        if first or verdict in {"lost", "released"}:
            attempt.verdict = verdict
        if first:
            attempt.executor.halt(attempt)
            attempt.executor.stop(attempt)

    def lost(self, attempts: list[Attempt]) -> None:
        """Stop attempts whose lease is gone, without a word to the database."""
        for attempt in attempts:
            if attempt.open and attempt.verdict != "lost":
                if not attempt.context.completing:  # else it is lost to its own completion, as a rule
                    log.warning("job %s: its lease is lost, attempt %s is stopped", attempt.id, attempt.context.attempt)
                self.stop(attempt, "lost")

    def cancel(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self.stop(attempt, "cancelled")

    def release_all(self) -> None:
        for attempt in list(self.leases.values()):
            self.stop(attempt, "released")

    def give_up(self) -> None:
        """Give back the jobs of handlers that do not stop: the process is about to end, and they with it."""
        for attempt in [a for a in self.leases.values() if a.open]:
            self.ended(attempt, decided(attempt))

    async def wait(self, seconds: float) -> bool:
        """Wait until no attempt is open, for `seconds` at most; return whether none is."""
        return not self._open or await happens(self._all_ended, seconds)

    def _watch_deadlines(self) -> None:
        moment = now()
        undecided = [a for a in self.leases.values() if a.open and a.verdict is None]
        for attempt in undecided:
            if attempt.deadline <= moment:
                self.stop(attempt, "timed_out")
        soonest = min((a.deadline for a in undecided if a.deadline > moment), default=moment + DEADLINE_TICK)
        pause = min(max(soonest - moment, 0.001), DEADLINE_TICK)
        self._watch = asyncio.get_running_loop().call_later(pause, self._watch_deadlines)

    def close(self) -> None:
        self._watch.cancel()
