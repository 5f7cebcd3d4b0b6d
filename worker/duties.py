"""What every worker does for all: promote delayed jobs, fire schedules, resolve dependencies, reap, delete what is old.

Each is one pass, harmless beside the same pass of any number of other workers, and true when it runs late.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from worker.loops import jittered

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from scheduler.calls import Facts
    from scheduler.store import Store

log = logging.getLogger("scheduler.worker")

BATCH = 1000
SHORTEST = 0.005  # seconds between two passes that found something
BUSY_AGAIN = 0.02  # seconds until children that were locked are looked at again; twice as long each time
BUSY_LONGEST = 1.0
SWEEP = 2.0  # seconds between looks for edges that nobody resolved
OLD_BATCH = 500  # finished jobs looked at in one transaction of retention
BREATH = 0.05  # seconds between two such batches
HELD = 0.1  # seconds until schedules that were locked are looked at again
SCHEDULES = 200  # fired in one transaction: so many rows that others wait for, and their times computed at a stretch
FIRES = 1000  # at most twice as many jobs are made of schedules in one transaction
RETAIN = 60.0  # seconds between looks for what has been kept long enough


class Promoter:
    """Sleeps until the next delayed job is due. `found` is called when jobs became claimable."""

    def __init__(self, store: Store, poll: timedelta, found: Callable[[], None]) -> None:
        self._store = store
        self._poll = poll.total_seconds()
        self._found = found

    async def promote(self) -> float:
        """Make what is due claimable; return in how many seconds more will be due."""
        done = await self._store.promote(BATCH)
        if done.promoted:
            self._found()
        if done.next_in is None or (done.next_in <= 0 and not done.promoted):  # none, or locked by somebody
            return jittered(self._poll)
        return min(max(done.next_in, SHORTEST), jittered(self._poll))


class Resolver:
    """Tells children that their parents have ended, right away for those of this worker, and sweeps for the rest."""

    def __init__(self, store: Store, found: Callable[[], None]) -> None:
        self._store = store
        self._found = found
        self._parents: list[int] = []
        self._pause = 0.0

    def add(self, parents: list[int]) -> None:
        self._parents += parents

    async def resolve(self) -> float:
        """Resolve one batch of parents, or sweep; return in how many seconds to look again."""
        batch, self._parents = self._parents[:BATCH], self._parents[BATCH:]
        try:
            done = await self._store.resolve(batch or None, BATCH)
        except BaseException:
            self._parents = batch + self._parents
            raise
        left = batch if done.more else done.busy
        self._parents += left + done.parents
        if batch or done.parents:
            self._found()
        self._pause = min(max(self._pause * 2, BUSY_AGAIN), BUSY_LONGEST) if done.busy and not done.parents else 0.0
        if self._pause:
            return self._pause
        return 0.0 if self._parents else jittered(SWEEP)


class Reaper:
    """Returns jobs whose lease has lapsed. `resolve` gets the parents among those that ended."""

    def __init__(self, store: Store, lease: timedelta, resolve: Callable[[list[int]], None]) -> None:
        self._store = store
        self._lease = lease
        self._resolve = resolve

    async def reap(self) -> float:
        done = await self._store.reap(self._lease, BATCH)
        if done.reaped:
            log.warning("%d jobs whose lease had lapsed were reaped: %s", len(done.reaped), done.reaped[:20])
        self._resolve(done.parents)
        return SHORTEST if len(done.reaped) == BATCH else jittered(self._lease.total_seconds() / 6)


class Retention:
    """Deletes finished jobs that have been kept long enough, a small batch at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def retain(self) -> float:
        done = await self._store.retain(OLD_BATCH)
        if done.pruned:
            log.debug("%d finished jobs had been kept long enough and were deleted", done.pruned)
        return BREATH if done.more else jittered(RETAIN)


class Firer:
    """Fires schedules: their times are computed ahead, on the database's clock, and it sleeps until the next of them.

    A new or changed schedule is found by the poll, once a second at least. `found` is called when jobs were made.
    """

    def __init__(self, store: Store, poll: timedelta, found: Callable[[], None]) -> None:
        self._store = store
        self._poll = min(poll.total_seconds(), 1.0)
        self._found = found
        self._fires: list[Facts] = []

    async def fire(self) -> float:
        """Fire what is due, compute what follows; return in how many seconds to do it again."""
        done = await self._store.fire(self._fires, SCHEDULES)
        if done.fired:
            self._found()
        sent = [(fire["id"], fire["version"], fire["fire_time"]) for fire in self._fires]
        self._fires, pause = [], jittered(self._poll)
        for schedule in done.schedules:
            self._fires.append(schedule.fire())
            wait = (schedule.next_fire - done.now).total_seconds() if schedule.next_fire else 0.0
            if wait <= 0:  # unless it was computed already, and is held by somebody, at once
                wait = HELD if (schedule.id, schedule.version, schedule.next_fire) in sent else 0.0
            pause = min(pause, wait)
            await asyncio.sleep(0)  # claims go on
            if sum(len(fire.get("times", ())) for fire in self._fires) >= FIRES:
                break  # after a downtime; the others with the next call
        return pause
