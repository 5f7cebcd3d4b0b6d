"""What operators ask: retry, prune, pause, resume, and what there is at a glance.

Ids may be any number: they go in batches, each a transaction of its own. What was cut short can be repeated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.answers import Pruned, Retried

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from datetime import timedelta

    from scheduler.store import Store

Facts = dict[str, Any]

BATCH = 1000  # ids per call
PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds, between tries to get hold of what others hold


class Admin:
    """The operators' side of an open Scheduler: `scheduler.admin`. Durations in what it returns are seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queues = store.list_queues
        self.kinds = store.list_kinds
        self.workers = store.list_workers

    async def count(self, filters: Mapping[str, Any]) -> dict[str, int]:
        """Return how many jobs match, by status; filters as in `jobs`. Raises InvalidJob for an unknown one."""
        return await self._store.count_jobs(_json(filters))

    async def ids(self, filters: Mapping[str, Any]) -> AsyncIterator[list[int]]:
        """Yield the ids of the matching jobs, newest first, a batch at a time; `limit` limits them all together."""
        left, before = filters.get("limit"), filters.get("before")
        while left is None or left > 0:
            size = BATCH if left is None else min(left, BATCH)
            batch = await self._store.job_ids(_json({**filters, "before": before, "limit": size}))
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
        return await self._store.pause(queue, kind, duration, by)

    async def resume(self, *, queue: str | None = None, kind: str | None = None) -> Facts:
        """Start jobs of a queue, or of a kind, again; `resumed` in the answer: whether it was paused."""
        return await self._store.resume(queue, kind)


def _json(filters: Mapping[str, Any]) -> str:
    return msgspec.json.encode(filters).decode()
