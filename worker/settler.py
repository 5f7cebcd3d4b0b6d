"""Settling: while one group of outcomes is on its way the next one gathers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scheduler.errors import InvalidJob
from worker.attempt import NOT_COMMITTED, failure
from worker.loops import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from scheduler.answers import Missed
    from scheduler.store import Store
    from worker.attempt import Attempt, Leases, Settlement

log = logging.getLogger("scheduler.worker")

LARGEST_GROUP = 500
BUSY_AGAIN = 0.02  # seconds until an outcome whose row was locked is sent again; twice as long each time
BUSY_LONGEST = 1.0


class Settler:
    """The outbox of a worker. An outcome stays in it until the database has answered for it, whatever fails.

    `resolve` gets the parents whose children must take notice; `delayed` is called when jobs may have got a due time.
    """

    def __init__(
        self,
        store: Store,
        worker: UUID,
        leases: Leases,
        resolve: Callable[[list[int]], None],
        delayed: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._resolve = resolve
        self._delayed = delayed
        self._leases = leases
        self._outbox: list[tuple[Attempt, Settlement]] = []
        self._releases: list[Attempt] = []
        self._pause = 0.0
        self._alone = 0  # outcomes still to be sent one by one

    def add(self, attempt: Attempt, settlement: Settlement) -> None:
        self._outbox.append((attempt, settlement))

    def release(self, attempt: Attempt) -> None:
        self._releases.append(attempt)

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
        stuck = busy and len(self) >= before
        self._pause = min(max(self._pause * 2, BUSY_AGAIN), BUSY_LONGEST) if stuck else 0.0
        return self._pause

    async def _send_outcomes(self) -> int:
        group = self._outbox[: 1 if self._alone else LARGEST_GROUP]  # they stay there until they are answered for
        try:
            answer = await self._store.settle(self._worker, [settlement for _, settlement in group])
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
            self._delayed()  # a retry or a snooze has a due time that only the database knows
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
        answer = await self._store.release(self._worker, [a.id for a in group], [a.fence for a in group])
        busy = self._answered(group, answer)
        del self._releases[: len(group)]
        self._releases += [attempt for attempt in group if attempt.id in busy]
        return len(busy)

    def _answered(self, group: list[Attempt], answer: Missed) -> set[int]:
        busy = set(answer.busy)
        for attempt in group:
            if attempt.id not in busy:
                self._leases.forget(attempt)
        for job_id in answer.lost:
            log.warning("the outcome of job %s was refused: its lease had been lost", job_id)
        self._resolve(answer.parents)
        return busy
