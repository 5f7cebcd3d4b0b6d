"""Claiming: as many jobs as an executor has free slots, in one call; and when there are none, how long to wait."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from worker.attempt import now
from worker.loops import Loop, jittered

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import asyncpg

    from scheduler.store import Store
    from worker.executors import Executor

log = logging.getLogger("scheduler.worker")

PATIENCE = 0.005  # seconds to gather free slots while there is a backlog: fewer, larger claims
RESTLESS = 0.1  # seconds between polls of an executor that is idle while another is at work
MARK_AGAIN = 1.0  # seconds between two marks that the worker sleeps
SOON = 0.01  # seconds until an executor that has just found jobs, but no backlog, looks again without a notice
OFTEN = 20  # claims in a second that found jobs


@dataclass(eq=False)
class Doze:
    """Whether inserts should wake this worker: marked when no executor finds more to do, cleared by a backlog.

    Many small claims in a second clear it too: as many notices would slow down whoever inserts.

    A single job now and then does not clear the mark; so its worker is woken in a millisecond, at no write.
    """

    store: Store
    worker: UUID
    poll: float
    poke_all: Callable[[], None]

    def __post_init__(self) -> None:
        self._busy: set[str] = set()
        self._found = 0  # claims that brought jobs, within a second
        self._since = 0.0
        self._marked = False
        self._marked_at = 0.0

    async def found(self, executor: str, *, backlog: bool) -> float:
        """Note that a claim of this executor brought jobs; return in how many seconds it should claim again."""
        self._busy.add(executor)
        if now() - self._since > 1.0:
            self._since, self._found = now(), 0
        self._found += 1
        if self._marked and (backlog or self._found >= OFTEN):
            self._marked = False
            await self.store.doze(self.worker, sleeping=False)
        if backlog:
            return 0.0
        return jittered(self.poll) if self._marked else SOON

    def full(self, executor: str) -> None:
        """Note that this executor has no slot left: it keeps nobody else awake."""
        self._busy.discard(executor)

    async def empty(self, executor: str) -> float:
        """Note that a claim of this executor brought nothing; return how long it may wait, in seconds."""
        self._busy.discard(executor)
        if not self._marked and not self._busy and now() - self._marked_at >= MARK_AGAIN:
            self._marked_at = now()
            await self.store.doze(self.worker, sleeping=True)
            self._marked = True
            self.poke_all()  # once more: a job inserted before the mark was seen by nobody
        longest = self.poll if self._marked else min(self.poll, RESTLESS)
        return jittered(longest)


@dataclass(eq=False)
class Claimer:
    """The claims of one executor.

    `start` runs a claimed row; `unsettled` counts outcomes that wait to be settled; `due_in` is told in how many
    seconds the next delayed job is due: while the worker is not asleep nobody sends a notice of it.
    """

    store: Store
    worker: UUID
    executor: Executor
    queues: list[str]
    kinds: list[str]
    lease: timedelta
    doze: Doze
    start: Callable[[Executor, asyncpg.Record, float], None]
    unsettled: Callable[[], int]
    due_in: Callable[[float], None]

    def __post_init__(self) -> None:
        self.loop = Loop("claim", self.claim)
        self._backlog = False
        self._unanswered: tuple[UUID, float] | None = None  # a claim call, and when it was sent
        self.asked: float | None = None  # when the first claim was sent of those that have all had no answer
        self.answered = 0.0  # when a claim was first answered
        self.stopped = False

    def stop(self) -> None:
        """Claim nothing more; a claim under way is still answered."""
        self.stopped = True
        self.executor.slots.stir()
        self.loop.stop()

    async def claim(self) -> float:
        """Claim once; return in how many seconds to claim again."""
        slots = self.executor.slots
        if not slots.free:
            self.doze.full(self.executor.name)
        free = await slots.room(max(slots.total // 4, 1) if self._backlog else 1, PATIENCE)
        if self.stopped or not free or self.unsettled() > 4 * slots.total + 100:  # do not run away from settling
            return PATIENCE
        rows = await self._rows(free)
        self._backlog = len(rows) == free
        if rows:
            return await self.doze.found(self.executor.name, backlog=self._backlog)
        return await self.doze.empty(self.executor.name)

    async def _rows(self, free: int) -> list[asyncpg.Record]:
        """Claim, and start what was claimed; first of all what a claim took whose answer was lost."""
        again = self._unanswered is not None
        if self._unanswered is not None:
            request, sent = self._unanswered
            rows = await self.store.claimed_by(self.worker, request)
        else:
            request, sent = self._unanswered = uuid4(), now()
            self.asked = self.asked or sent
            self.queues.append(self.queues.pop(0))  # each queue is the first in its turn: none starves
            rows = await self.store.claim(self.worker, request, self.queues, self.kinds, free, self.lease)
        self._unanswered = None
        if rows or not again:  # that a failed claim took nothing is told by databases, too, that take no claim
            self.asked, self.answered = None, self.answered or now()
        hints = rows.pop() if rows and rows[-1]["id"] is None else None
        for row in rows:  # before all else: what is claimed and not started waits for its lease to lapse
            self.start(self.executor, row, sent)
        if hints is not None and hints["next_in"] is not None:
            self.due_in(hints["next_in"])
        return rows
