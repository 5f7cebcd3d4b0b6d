"""What operators ask: retry, prune, pause, resume, and a look at queues, kinds and workers.

Ids may be any number: they go in batches, each a transaction of its own, so that nobody waits long for any of them. A
batch that was cut short can be repeated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.answers import KindFacts, Paused, Pruned, QueueFacts, Resumed, Retried, RetryStep, WorkerFacts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from datetime import timedelta

    from scheduler.store import Store

BATCH = 1000  # ids per call
PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds, between tries to get hold of what others hold


class Admin:
    """The operators' side of an open Scheduler: `scheduler.admin`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def count(self, filters: Mapping[str, Any]) -> dict[str, int]:
        """Return how many jobs match, by status. Raises InvalidJob for a filter that does not exist."""
        return await self._store.count_jobs(_json(filters))

    async def ids(self, filters: Mapping[str, Any]) -> AsyncIterator[list[int]]:
        """Yield the ids of all matching jobs, newest first, in batches; `limit` limits them all together."""
        left, before = filters.get("limit"), filters.get("before")
        while left is None or left > 0:
            size = BATCH if left is None else min(left, BATCH)
            batch = await self._store.job_ids(_json({**filters, "before": before, "limit": size}))
            if batch:
                yield batch
            if len(batch) < size:
                return
            before = batch[-1]
            left = left and left - size

    async def retry(self, ids: Iterable[int]) -> Retried:
        """Let jobs that failed, timed out or were cancelled run again; revive what their failure had cancelled.

        A job whose parent stands failed is refused, unless that parent is among the ids.
        """
        whole = Retried()
        for batch in _batches(sorted(set(ids))):  # parents before their children
            await self._retry(batch, whole)
        return whole

    async def _retry(self, ids: list[int], whole: Retried) -> None:
        for pause in (*PAUSES, None):
            answer = await self._store.retry(ids)
            _add(whole, answer)
            await self._revive(answer, whole)
            ids = answer.busy
            if not ids or pause is None:
                break
            await asyncio.sleep(pause)
        whole.busy += ids

    async def _revive(self, answer: RetryStep, whole: Retried) -> None:
        pauses = iter(PAUSES)
        while answer.go_on is not None:
            if not answer.go_on.parents:  # nothing but children that somebody holds
                pause = next(pauses, None)
                if pause is None:
                    whole.busy += answer.go_on.children
                    return
                await asyncio.sleep(pause)
            answer = await self._store.revive(_json(answer.go_on))
            _add(whole, answer)

    async def prune(self, ids: Iterable[int]) -> Pruned:
        """Delete finished jobs for good; those that others need are kept, with the reason."""
        whole = Pruned([], [], [])
        for batch in _batches(sorted(set(ids), reverse=True)):  # children before their parents
            answer = await self._store.prune(batch)
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
    ) -> Paused:
        """Start no more jobs of a queue, or of a kind, for `duration` or until it is resumed; running ones go on.

        `by` says who; the role of the connection by default. Raises InvalidJob naming the field and the rule.
        """
        return await self._store.pause(queue, kind, duration, by)

    async def resume(self, *, queue: str | None = None, kind: str | None = None) -> Resumed:
        """Start jobs of a queue, or of a kind, again."""
        return await self._store.resume(queue, kind)

    async def queues(self) -> list[QueueFacts]:
        return await self._store.list_queues()

    async def kinds(self) -> list[KindFacts]:
        return await self._store.list_kinds()

    async def workers(self) -> list[WorkerFacts]:
        return await self._store.list_workers()


def _json(value: Any) -> str:  # noqa: ANN401 - anything that JSON holds
    return msgspec.json.encode(value).decode()


def _batches(ids: list[int]) -> Iterator[list[int]]:
    return (ids[first : first + BATCH] for first in range(0, len(ids), BATCH))


def _add(whole: Retried, answer: RetryStep) -> None:
    whole.retried += answer.retried
    whole.revived += answer.revived
    whole.not_ended += answer.not_ended
    whole.missing += answer.missing
    whole.refused += answer.refused
