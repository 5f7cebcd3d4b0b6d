"""Settling: while one group of outcomes is on its way the next one gathers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.errors import InvalidJob
from worker.attempt import NOT_COMMITTED, failure
from worker.loops import FOREVER, Loop, longer

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from scheduler.answers import Missed
    from scheduler.store import Store
    from worker.attempt import Attempt, Leases, Settlement

log = logging.getLogger("scheduler.worker")

LARGEST_GROUP = 500


@dataclass(eq=False)
class Settler:
    """The outbox of a worker. An outcome stays in it until the database has answered for it, whatever fails.

    `resolve` gets the parents whose children must take notice; `delayed` is called when jobs may have got a due time.
    """

    store: Store
    worker: UUID
    leases: Leases
    resolve: Callable[[list[int]], None]
    delayed: Callable[[], None]

    def __post_init__(self) -> None:
        self._outbox: list[tuple[Attempt, Settlement]] = []
        self._releases: list[Attempt] = []
        self._pause = 0.0
        self._alone = 0  # outcomes still to be sent one by one
        self.loop = Loop("settle", self.settle)

    def add(self, attempt: Attempt, settlement: Settlement) -> None:
        self._outbox.append((attempt, settlement))
        self.loop.poke()

    def release(self, attempt: Attempt) -> None:
        self._releases.append(attempt)
        self.loop.poke()

    def __len__(self) -> int:
        return len(self._outbox) + len(self._releases)

    async def settle(self) -> float:
        """Send one group; return in how many seconds to send the next."""
        before = len(self)
        busy = await self._send_releases() if self._releases else 0
        if self._outbox:
            busy += await self._send_outcomes()
        if not len(self):
            return FOREVER
        self._pause = longer(self._pause) if busy and len(self) >= before else 0.0
        return self._pause

    async def _send_outcomes(self) -> int:
        group = self._outbox[: 1 if self._alone else LARGEST_GROUP]  # they stay there until they are answered for
        try:
            answer = await self.store.settle(self.worker, [settlement for _, settlement in group])
        except InvalidJob as error:
            self._refused(group, error)
            return 0
        busy = self._answered([attempt for attempt, _ in group], answer)
        del self._outbox[: len(group)]
        self._outbox += [(attempt, settlement) for attempt, settlement in group if attempt.id in busy]
        self._alone = max(self._alone - 1, 0)
        for attempt, settlement in group if answer.became else ():
            if answer.became.get(attempt.id) == "COMPLETED" and settlement.error_type not in {None, NOT_COMMITTED}:
                words = "job %s had completed in a transaction of its handler; what came after is not recorded: %s"
                log.warning(words, attempt.id, settlement.error_type)
        if any(settlement.outcome != "completed" for _, settlement in group):
            self.delayed()  # a retry or a snooze has a due time that only the database knows
        return len(busy)

    def _refused(self, group: list[tuple[Attempt, Settlement]], error: InvalidJob) -> None:
        """Find the outcome that PostgreSQL cannot store by sending each alone, and let its job fail."""
        if len(group) > 1:
            self._alone = len(group)
            return
        attempt = group[0][0]
        words = f"PostgreSQL cannot store it: {error}"
        self._outbox[0] = attempt, failure(attempt, "InvalidResult", words, retryable=False)

    async def _send_releases(self) -> int:
        group = list(self._releases)
        answer = await self.store.release(self.worker, [a.id for a in group], [a.fence for a in group])
        busy = self._answered(group, answer)
        del self._releases[: len(group)]
        self._releases += [attempt for attempt in group if attempt.id in busy]
        return len(busy)

    def _answered(self, group: list[Attempt], answer: Missed) -> set[int]:
        busy = set(answer.busy)
        for attempt in group:
            if attempt.id not in busy:
                self.leases.forget(attempt)
        for job_id in answer.lost:
            log.warning("the outcome of job %s was refused: its lease had been lost", job_id)
        self.resolve(answer.parents)
        return busy
