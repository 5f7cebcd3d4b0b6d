"""What operators ask: retry, prune, pause, resume, and what there is at a glance.

Ids may be any number: they go in batches, each a transaction of its own. What was cut short can be repeated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scheduler.answers import Pruned, Retried

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from scheduler.calls import Facts
    from scheduler.store import Store

BATCH = 1000  # jobs per call
PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds, between tries to get hold of what others hold


class Admin:
    """The operators' side of an open Scheduler: `scheduler.admin`. Durations in what it returns are seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queues = store.list_queues
        self.kinds = store.list_kinds
        self.workers = store.list_workers
        self.count = store.count_jobs
        self.pause = store.pause
        self.resume = store.resume
        self.schedules = store.list_schedules
        self.pause_schedule = store.pause_schedule
        self.run_schedule = store.run_schedule
        self.delete_schedule = store.delete_schedule

    async def ids(self, filters: Facts) -> AsyncIterator[list[int]]:
        """Yield the ids of the matching jobs, newest first, a batch at a time; `limit` limits them all together."""
        left, before = filters.get("limit"), filters.get("before")
        while left is None or left > 0:
            size = BATCH if left is None else min(left, BATCH)
            batch = await self._store.job_ids({**filters, "before": before, "limit": size})
            if batch:
                yield batch
            if len(batch) < size:
                return
            before, left = batch[-1], left and left - size

    async def retry(self, ids: Iterable[int]) -> Retried:
        """Let jobs that failed, timed out or were cancelled run again; revive what their failure had cancelled.

        A job one of whose parents stands failed is refused, unless that parent is among the ids.
        """
        asked, pauses = set(ids), list(PAUSES)
        whole, told, queued = Retried(), set[int](), set[int]()
        todo = sorted(asked)  # parents before their children
        while todo:
            batch, todo = todo[:BATCH], todo[BATCH:]
            level = await self._store.retry(batch)
            for job_id in level.retried:
                (whole.retried if job_id in asked else whole.revived).append(job_id)
            whole.not_ended += [i for i in level.not_ended if i in asked - told]
            whole.missing += [i for i in level.missing if i in asked - told]
            whole.refused += level.refused
            told.update(set(batch) - set(level.busy))
            children = set(level.children) - queued
            queued |= children
            todo += [*sorted(children), *(batch if level.more and children else ())]
            if level.busy and pauses:
                await asyncio.sleep(pauses.pop(0))
                todo += level.busy
            else:
                whole.busy += level.busy
        followed = {*whole.retried, *whole.revived}
        whole.refused = [refused for refused in whole.refused if refused.id not in followed]
        return whole

    async def prune(self, ids: Iterable[int]) -> Pruned:
        """Delete finished jobs for good; those that others need are kept, with the reason."""
        whole = Pruned()
        todo = sorted(set(ids), reverse=True)  # children before their parents
        while todo:
            answer = await self._store.prune(todo[:BATCH])
            todo = todo[BATCH:]
            whole.pruned += answer.pruned
            whole.kept += answer.kept
            whole.missing += answer.missing
        return whole
