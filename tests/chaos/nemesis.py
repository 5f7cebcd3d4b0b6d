"""Who does the damage. A nemesis owns its victims and harms one at a time; several of them work side by side.

Each deals its faults like cards: shuffled by its seed, all of them before any comes again.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from random import Random

import asyncpg

from .history import Fault
from .load import LOST
from .proxy import Proxy
from .servers import Pair
from .workers import GRACE, LEASE, Slot

Deed = Callable[[Random], Awaitable[Fault | None]]

PAUSE = 1.5  # seconds between two faults of one nemesis, on average
LONGER = 2.0  # after those that stop everybody: jobs are to be harmed, not kept away

DDL = (
    "ALTER TABLE scheduler.jobs ADD COLUMN chaos_extra int; ALTER TABLE scheduler.jobs DROP COLUMN chaos_extra",
    "ALTER TABLE scheduler.jobs_active SET (fillfactor = 85)",
    "CREATE INDEX chaos_extra ON scheduler.jobs_active (tenant); DROP INDEX scheduler.chaos_extra",
    "REINDEX INDEX scheduler.jobs_claim",
    "LOCK TABLE scheduler.jobs IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE scheduler.dependencies IN SHARE MODE",
)

SUBMITTED = ("submit", "submit_graph", "close_batch")  # the verbs of submitters

# Whether a worker (null: any) is running a job.
BUSY = """SELECT EXISTS (SELECT FROM scheduler.jobs_active j JOIN chaos.events e ON e.job = j.id AND e.fence = j.fence
  WHERE j.status = 'RUNNING' AND e.now = 'RUNNING' AND e.actor = coalesce($1, e.actor))"""
PATIENCE = 3.0  # seconds a nemesis waits for a victim to be busy


class Nemesis:
    def __init__(self, name: str, seed: int, pair: Pair, faults: list[Fault]) -> None:
        self._rng = Random(f"{seed} {name}")
        self._pair = pair
        self._faults = faults
        self.pause = PAUSE
        self.stopped = False
        self.deeds: list[Deed] = []

    async def run(self) -> None:
        deck: list[Deed] = []
        while not self.stopped:
            if not deck:
                deck = self._rng.sample(self.deeds, k=len(self.deeds))
            with contextlib.suppress(*LOST):
                fault = await deck.pop()(self._rng)
                if fault is not None:
                    self._faults.append(fault)
            await asyncio.sleep(self._rng.uniform(0.2, 1.8) * self.pause)

    async def until_busy(self, actor: str | None) -> None:
        """Wait for a moment when the blow will hit something; give up soon, the events tell what it did hit."""
        with contextlib.suppress(*LOST):
            async with asyncio.timeout(PATIENCE):
                connection = await asyncpg.connect(self._pair.primary.url)
                try:
                    while not await connection.fetchval(BUSY, actor):
                        await asyncio.sleep(0.02)
                finally:
                    connection.terminate()


class AgainstWorkers(Nemesis):
    def __init__(
        self, name: str, seed: int, pair: Pair, faults: list[Fault], slots: list[Slot], submitters: Proxy
    ) -> None:
        super().__init__(name, seed, pair, faults)
        self._slots = slots
        self._submitters = submitters
        self.deeds = [self.kill, self.stop_and_continue, self.partition, self.drain, self.lose_reply]

    async def _victim(self, rng: Random) -> Slot:
        slot = rng.choice(self._slots)
        await slot.ready()
        await self.until_busy(slot.actor)
        return slot

    async def kill(self, rng: Random) -> Fault:
        slot = await self._victim(rng)
        fault = Fault("kill", time.time(), slot.actor)
        slot.kill()
        return fault

    async def stop_and_continue(self, rng: Random) -> Fault:
        slot = await self._victim(rng)
        fault = Fault("stop and continue", time.time(), slot.actor)
        slot.pause()
        await asyncio.sleep(rng.uniform(0.2, 2.5) * LEASE)
        slot.go_on()
        return fault

    async def partition(self, rng: Random) -> Fault:
        """Nothing passes, and nobody is told; afterwards the old connections go on, or are found broken."""
        slot = await self._victim(rng)
        fault = Fault("partition", time.time(), slot.actor)
        slot.proxy.silence()
        await asyncio.sleep(rng.uniform(0.2, 2.5) * LEASE)
        if rng.random() < 0.5:
            slot.proxy.cut()
        slot.proxy.speak()
        return fault

    async def drain(self, rng: Random) -> Fault | None:
        slot = await self._victim(rng)
        if not slot.is_ready:
            return None
        fault = Fault("drain", time.time(), slot.actor)
        await slot.stop(GRACE + 10)
        return fault

    async def lose_reply(self, rng: Random) -> Fault:
        """A verb is called and its transaction commits, but the caller never learns it."""
        slot = await self._victim(rng)
        verb = rng.choice(["claim", "settle", "settle", "renew", "fire", *SUBMITTED])
        proxy, actor = (self._submitters, None) if verb in SUBMITTED else (slot.proxy, slot.actor)
        lost, at = proxy.lost, time.time()
        proxy.lose_reply_to(verb)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * LEASE):
                while proxy.lost == lost:
                    await asyncio.sleep(0.01)
        proxy.lose_reply_to(None)
        return Fault("lost reply", at, actor, hit=proxy.lost > lost)


class AgainstServers(Nemesis):
    def __init__(self, name: str, seed: int, pair: Pair, faults: list[Fault], wires: list[Proxy]) -> None:
        super().__init__(name, seed, pair, faults)
        self.pause = LONGER
        self._wires = wires
        once = [self.restart, self.promote, self.split_brain, self.ddl]
        self.deeds = [self.terminate, self.terminate, *once]  # of those it ends four in ten do nothing at the time

    async def terminate(self, rng: Random) -> Fault | None:
        """End all sessions of one sort: those that claim and settle, the keepers', the listeners', the submitters'."""
        workers = "scheduler-worker"
        sort = rng.choice([workers, workers, f"{workers} keeper", f"{workers} listener", "submitter"])
        query = """SELECT count(*), count(*) FILTER (WHERE state = 'active' AND query LIKE '%scheduler.%') > 0,
            bool_and(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1"""
        await self.until_busy(None)
        at = time.time()
        connection = await asyncpg.connect(self._pair.primary.url, timeout=10)
        count, active, _ = await connection.fetchrow(query, sort)
        await connection.close()
        hits_jobs = sort in {workers, f"{workers} keeper"}
        return Fault("terminate", at, hit=None if hits_jobs and not active else active) if count else None

    async def restart(self, rng: Random) -> Fault:
        await self.until_busy(None)
        fault = Fault("restart", time.time())
        await self._pair.crash_primary()
        return fault

    async def promote(self, rng: Random) -> Fault:
        await self.until_busy(None)
        fault = Fault("promote", time.time())
        await self._pair.fail_over(lag=rng.uniform(0, 0.4))
        return fault

    async def split_brain(self, rng: Random) -> Fault:
        """Two primaries for a moment: about half of those who speak to one go to the new one, the others stay."""
        await self.until_busy(None)
        fault = Fault("split brain", time.time())
        moved = rng.sample(self._wires, k=(len(self._wires) + 1) // 2)

        def divide() -> None:
            for wire in moved:
                wire.cut()

        await self._pair.split(rng.uniform(0, 0.4), rng.uniform(0.5, 2), divide)
        return fault

    async def ddl(self, rng: Random) -> Fault | None:
        """Change the schema, and hold the locks of it for a moment."""
        await self.until_busy(None)
        fault = Fault("ddl", time.time())
        connection = await asyncpg.connect(self._pair.primary.url, timeout=10)
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '2s'; {rng.choice(DDL)}")
                await asyncio.sleep(rng.uniform(0.05, 0.5))
        except asyncpg.LockNotAvailableError:
            return None
        except asyncpg.DeadlockDetectedError:
            pass  # the change of the schema had to give way
        finally:
            await connection.close()
        return fault
