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
from .servers import Pair
from .workers import GRACE, LEASE, Slot

Deed = Callable[[Random], Awaitable[Fault | None]]

DDL = (
    "ALTER TABLE scheduler.jobs ADD COLUMN chaos_extra int; ALTER TABLE scheduler.jobs DROP COLUMN chaos_extra",
    "ALTER TABLE scheduler.jobs_active SET (fillfactor = 85)",
    "CREATE INDEX chaos_extra ON scheduler.jobs_active (tenant); DROP INDEX scheduler.chaos_extra",
    "REINDEX INDEX scheduler.jobs_claim",
    "LOCK TABLE scheduler.jobs IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE scheduler.dependencies IN SHARE MODE",
)


class Nemesis:
    def __init__(self, name: str, seed: int, pause: float, faults: list[Fault]) -> None:
        self._rng = Random(f"{seed} {name}")
        self._pause = pause
        self._faults = faults
        self.stopped = False
        self.deeds: list[Deed] = []

    async def run(self) -> None:
        deck: list[Deed] = []
        while not self.stopped:
            if not deck:
                deck = self._rng.sample(self.deeds, k=len(self.deeds))
            fault = await deck.pop()(self._rng)
            if fault is not None:
                self._faults.append(fault)
            await asyncio.sleep(self._rng.uniform(0.2, 1.8) * self._pause)


class AgainstWorkers(Nemesis):
    def __init__(self, name: str, seed: int, pause: float, faults: list[Fault], slots: list[Slot]) -> None:
        super().__init__(name, seed, pause, faults)
        self._slots = slots
        self.deeds = [self.kill, self.stop_and_continue, self.partition, self.drain, self.lose_reply]

    async def _victim(self, rng: Random) -> Slot:
        slot = rng.choice(self._slots)
        await slot.ready()
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
        slot = await self._victim(rng)
        lost, verb = slot.proxy.lost, rng.choice(["claim", "settle", "settle", "renew"])
        fault = Fault("lost reply", time.time(), slot.actor)
        slot.proxy.lose_reply_to(verb)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * LEASE):
                while slot.proxy.lost == lost:
                    await asyncio.sleep(0.01)
        slot.proxy.lose_reply_to(None)
        return Fault(fault.kind, fault.at, fault.actor, hit=slot.proxy.lost > lost)


class AgainstServers(Nemesis):
    def __init__(self, name: str, seed: int, pause: float, faults: list[Fault], pair: Pair) -> None:
        super().__init__(name, seed, pause, faults)
        self._pair = pair
        self.deeds = [self.terminate, self.restart, self.promote, self.ddl]

    async def terminate(self, rng: Random) -> Fault | None:
        """End all sessions of one sort: those that claim and settle, the keepers', the listeners', the submitters'."""
        sort = rng.choice(["scheduler-worker", "scheduler-worker keeper", "scheduler-worker listener", "submitter"])
        query = """SELECT count(*), count(*) FILTER (WHERE state = 'active' AND query LIKE '%scheduler.%') > 0,
            bool_and(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1"""
        at = time.time()
        connection = await asyncpg.connect(self._pair.primary.url, timeout=10)
        count, active, _ = await connection.fetchrow(query, sort)
        await connection.close()
        hits_jobs = sort in {"scheduler-worker", "scheduler-worker keeper"}
        return Fault("terminate", at, hit=None if hits_jobs and not active else active) if count else None

    async def restart(self, rng: Random) -> Fault:
        fault = Fault("restart", time.time())
        await self._pair.crash_primary()
        return fault

    async def promote(self, rng: Random) -> Fault:
        fault = Fault("promote", time.time())
        await self._pair.fail_over(lag=rng.uniform(0, 0.4))
        return fault

    async def ddl(self, rng: Random) -> Fault | None:
        """Change the schema, and hold the locks of it for a moment."""
        fault = Fault("ddl", time.time())
        connection = await asyncpg.connect(self._pair.primary.url, timeout=10)
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '2s'; {rng.choice(DDL)}")
                await asyncio.sleep(rng.uniform(0.05, 0.5))
        except asyncpg.LockNotAvailableError:
            return None
        finally:
            await connection.close()
        return fault


class Ghost:
    """Repeats, as a slow network would, what holders of ended claims might have said: nothing of it may be accepted."""

    FIND = """
        SELECT e.job, e.fence, e.worker FROM chaos.events e JOIN scheduler.jobs j ON j.id = e.job
        WHERE e.seq > (SELECT max(seq) FROM chaos.events) - 1000 AND e.now = 'RUNNING' AND j.fence > e.fence
        ORDER BY j.status = 'RUNNING' DESC, random() LIMIT 5"""
    SETTLE = """SELECT scheduler.settle($1, jsonb_build_array(jsonb_build_object('id', $2::bigint,
        'fence', $3::bigint, 'outcome', 'completed', 'result', jsonb_build_object('fence', $3::bigint))))
        -> 'lost' @> to_jsonb($2::bigint)"""
    RELEASE = "SELECT scheduler.release($1, ARRAY[$2::bigint], ARRAY[$3::bigint]) -> 'lost' @> to_jsonb($2::bigint)"
    RENEW = "SELECT scheduler.renew($1, ARRAY[$2::bigint], ARRAY[$3::bigint], '1 h') -> 'lost' @> to_jsonb($2::bigint)"

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._rng = Random(f"{seed} ghost")
        self.refused = 0
        self.accepted: list[str] = []
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            with contextlib.suppress(*LOST):
                await self._haunt()
            await asyncio.sleep(0.2)

    async def _haunt(self) -> None:
        """Speak over one connection, to one server: after a promotion an older claim may be the current one again."""
        connection = await asyncpg.connect(self._dsn, timeout=5, command_timeout=5)
        try:
            while not self.stopped:
                for job, fence, worker in await connection.fetch(self.FIND):
                    verb = self._rng.choice(["SETTLE", "RELEASE", "RENEW"])
                    if await connection.fetchval(getattr(self, verb), worker, job, fence):
                        self.refused += 1
                    else:
                        self.accepted.append(f"job {job}: {verb.lower()} of the stale fence {fence} was not refused")
                await asyncio.sleep(0.2)
        finally:
            connection.terminate()
