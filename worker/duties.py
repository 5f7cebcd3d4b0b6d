"""What every worker does for all: promote delayed jobs, fire schedules, resolve dependencies, reap, delete what is old.

Each is one pass, harmless beside the same pass of any number of other workers, and true when it runs late.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.loops import Loop, jittered, longer

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from scheduler.calls import Facts
    from scheduler.store import Store

log = logging.getLogger("scheduler.worker")

BATCH = 1000
SHORTEST = 0.005  # seconds between two passes that found something
SWEEP = 2.0  # seconds between looks for edges that nobody resolved
OLD_BATCH = 500  # finished jobs looked at in one transaction of retention
BREATH = 0.05  # seconds between two such batches
HELD = 0.1  # seconds until schedules that were locked are looked at again
SCHEDULES = 200  # fired in one transaction: so many rows that others wait for, and their times computed at a stretch
FIRES = 1000  # at most twice as many jobs are made of schedules in one transaction
RETAIN = 60.0  # seconds between looks for what has been kept long enough


async def promote(store: Store, poll: float, found: Callable[[], None]) -> float:
    """Make what is due claimable, and call `found`; return in how many seconds more will be due, `poll` at most."""
    done = await store.promote(BATCH)
    if done.promoted:
        found()
    if done.next_in is None or (done.next_in <= 0 and not done.promoted):  # none, or locked by somebody
        return jittered(poll)
    return min(max(done.next_in, SHORTEST), jittered(poll))


async def reap(store: Store, lease: timedelta, resolve: Callable[[list[int]], None]) -> float:
    """Return jobs whose lease has lapsed; `resolve` gets the parents among those that ended."""
    done = await store.reap(lease, BATCH)
    if done.reaped:
        log.warning("%d jobs whose lease had lapsed were reaped: %s", len(done.reaped), done.reaped[:20])
    resolve(done.parents)
    return SHORTEST if len(done.reaped) == BATCH else jittered(lease.total_seconds() / 6)


async def retain(store: Store) -> float:
    """Delete finished jobs that have been kept long enough, a small batch at a time."""
    done = await store.retain(OLD_BATCH)
    if done.pruned:
        log.debug("%d finished jobs had been kept long enough and were deleted", done.pruned)
    return BREATH if done.more else jittered(RETAIN)


@dataclass(eq=False)
class Resolver:
    """Tells children that their parents have ended, right away for those of this worker, and sweeps for the rest."""

    store: Store
    found: Callable[[], None]

    def __post_init__(self) -> None:
        self._parents: list[int] = []
        self._pause = 0.0
        self.loop = Loop("resolve", self.resolve)

    def add(self, parents: list[int]) -> None:
        if parents:
            self._parents += parents
            self.loop.poke()

    async def resolve(self) -> float:
        """Resolve one batch of parents, or sweep; return in how many seconds to look again."""
        batch, self._parents = self._parents[:BATCH], self._parents[BATCH:]
        try:
            done = await self.store.resolve(batch or None, BATCH)
        except BaseException:
            self._parents = batch + self._parents
            raise
        left = batch if done.more else done.busy
        self._parents += left + done.parents
        if batch or done.parents:
            self.found()
        self._pause = longer(self._pause) if done.busy and not done.parents else 0.0
        if self._pause:
            return self._pause
        return 0.0 if self._parents else jittered(SWEEP)


@dataclass(eq=False)
class Firer:
    """Fires schedules: their times are computed ahead, on the database's clock, and it sleeps until the next of them.

    A new or changed schedule is found by the poll, once a second at least. `found` is called when jobs were made.
    """

    store: Store
    poll: float
    found: Callable[[], None]

    def __post_init__(self) -> None:
        self._fires: list[Facts] = []

    async def fire(self) -> float:
        """Fire what is due, compute what follows; return in how many seconds to do it again."""
        done = await self.store.fire(self._fires, SCHEDULES)
        if done.fired:
            self.found()
        sent = [(fire["id"], fire["version"], fire["fire_time"]) for fire in self._fires]
        self._fires, pause = [], jittered(min(self.poll, 1.0))
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
