"""One campaign: start everything, let it be harmed, heal it, wait until all has ended, ask the witnesses."""

import asyncio
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from scheduler.cluster import wheel_binaries
from scheduler.schema import migrate

from . import pooler, recorder
from .ghost import Ghost
from .history import EXACTLY_ONCE, Fault, History
from .load import Load
from .nemesis import AgainstServers, AgainstWorkers, Nemesis
from .pooler import Pooler
from .proxy import Proxy
from .recurring import PAUSE, Recurring
from .servers import Pair
from .workers import Slot, processes_of, refused_outcomes

WORKERS = 4
POOLED = {1, 3}  # which of them speak through PgBouncer, where that is installed
PATIENCE = 30.0  # seconds without any move until what has not ended is called stuck
LONGEST = 300.0  # seconds until what still moves is called stuck, too
FORGOTTEN = 10.0  # seconds until what a dead process left behind must be gone
LOGIN = "chaos:chaos"

# Who can do what workers, submitters and operators may. After each outage all connect at once: no hard sums then.
CREATE_LOGIN = """SET scram_iterations = 1;
CREATE ROLE chaos LOGIN PASSWORD 'chaos' IN ROLE scheduler_worker, scheduler_submitter, scheduler_operator"""

SESSIONS = """
SELECT application_name || ' (' || coalesce(state, '') || ')' FROM pg_stat_activity
WHERE datname = current_database() AND (application_name LIKE 'scheduler%' OR state LIKE 'idle in transaction%')
UNION ALL SELECT 'advisory lock of ' || l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND d.datname = current_database()"""


class Campaign:
    def __init__(self, folder: Path, *, seed: int, rate: float, sabotage: str = "") -> None:
        self._folder = folder
        self._seed = seed
        self._rate = rate
        self._sabotage = sabotage
        self._pair = Pair(wheel_binaries(), folder)
        self._faults: list[Fault] = []
        self._slots: list[Slot] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._proxies: list[Proxy] = []
        self._poolers: list[Pooler] = []

    async def run(self, seconds: float) -> History:
        try:
            await self._start()
            await self._harm(seconds)
            await self._until_all_has_ended()
            return await self._testimony()
        finally:
            await self._stop()

    async def _start(self) -> None:
        await self._pair.start()
        url = self._pair.primary.url
        await migrate(url)
        connection = await asyncpg.connect(url)
        await recorder.install(connection)
        await connection.execute(CREATE_LOGIN)
        if self._sabotage:
            await connection.execute(self._sabotage)
        await connection.close()
        self._slots = [await self._slot(number) for number in range(WORKERS)]
        self._keepers = [asyncio.create_task(slot.keep()) for slot in self._slots]
        await asyncio.gather(*(slot.ready() for slot in self._slots))  # kinds are declared now

    async def _slot(self, number: int) -> Slot:
        wire = await self._proxy(self._pair.address)
        if number not in POOLED or pooler.version() is None:
            return Slot(number, wire, LOGIN, self._folder)
        between = Pooler(wire, LOGIN, self._folder / f"pooler-{number}", f"worker-{number}")
        await between.start()
        self._poolers.append(between)
        return Slot(number, await self._proxy(between.address), LOGIN, self._folder, between)

    async def _proxy(self, target: Callable[[], tuple[str, int]]) -> Proxy:
        self._proxies.append(Proxy(target))
        await self._proxies[-1].open()
        return self._proxies[-1]

    async def _harm(self, seconds: float) -> None:
        proxy = await self._proxy(self._pair.address)
        options = "sslmode=disable&application_name=submitter&chaos.actor=submitter"
        dsn = f"postgresql://{LOGIN}@127.0.0.1:{proxy.port}/postgres?{options}"
        self._load, self._ghost = Load(dsn, self._seed, self._rate), Ghost(dsn, self._seed)
        half, wires = WORKERS // 2, [proxy, *(slot.link for slot in self._slots)]
        nemeses: list[Nemesis] = [
            AgainstWorkers("of some", self._seed, self._pair, self._faults, self._slots[:half], proxy),
            AgainstWorkers("of others", self._seed, self._pair, self._faults, self._slots[half:], proxy),
            AgainstServers("of servers", self._seed, self._pair, self._faults, wires),
        ]
        everyone: list[Any] = [self._load, self._ghost, Recurring(dsn), *nemeses]
        async with asyncio.TaskGroup() as group:
            for one in everyone:
                group.create_task(one.run())
            await asyncio.sleep(seconds)
            for one in everyone:
                one.stopped = True

    async def _until_all_has_ended(self) -> None:
        query = """SELECT NOT EXISTS (SELECT FROM scheduler.jobs_active)
            AND NOT EXISTS (SELECT FROM scheduler.dependencies WHERE ended AND NOT applied)"""
        connection = await asyncpg.connect(self._pair.primary.url)
        await connection.execute(PAUSE)
        await self._load.close_the_rest(connection, self._pair.promotions)
        began = since = time.monotonic()
        newest = 0
        while not await connection.fetchval(query) and time.monotonic() < min(since + PATIENCE, began + LONGEST):
            await asyncio.sleep(0.2)
            moved = await connection.fetchval("SELECT max(seq) FROM chaos.events")
            if moved != newest:
                newest, since = moved, time.monotonic()
        await connection.close()

    async def _testimony(self) -> History:
        megabytes = max(slot.megabytes() for slot in self._slots)
        await self._stop_workers()
        connection = await asyncpg.connect(self._pair.primary.url)
        history = await recorder.read(connection)
        history.sizes = {"megabytes of memory of a worker": round(megabytes), **await recorder.sizes(connection)}
        history.setting = setting(await connection.fetchval("SHOW server_version"))
        surprises = [words for slot in self._slots for words in slot.surprises]
        history.left_over = surprises + await leftovers(connection, self._folder / "ledger", FORGOTTEN)
        await connection.close()
        history.effects = recorder.read_effects(self._folder / "ledger")
        history.submissions, history.faults = self._load.submissions, self._faults
        history.promotions, history.accepted = self._pair.promotions, self._ghost.accepted
        honest = {row.id for row in history.rows if row.kind == EXACTLY_ONCE}  # refused because it had completed itself
        history.refused = self._ghost.refused + sum(job not in honest for job in refused_outcomes(self._folder))
        return history

    async def _stop_workers(self) -> None:
        await asyncio.gather(*(slot.close() for slot in self._slots))
        await asyncio.gather(*self._keepers)
        for between in self._poolers:
            between.stop()

    async def _stop(self) -> None:
        await self._stop_workers()
        for proxy in self._proxies:
            await proxy.close()
        await self._pair.stop()


def setting(server: str) -> str:
    """Return the words for what took part."""
    between = pooler.version()
    pooled = f"{len(POOLED)} of them behind {between}" if between else "none behind PgBouncer, which is not installed"
    return f"PostgreSQL {server}, Python {platform.python_version()}, {WORKERS} workers, {pooled}"


async def leftovers(connection: "asyncpg.Connection[Any]", ledger: Path, patience: float) -> list[str]:
    """Return the words for what workers left behind that are no more, once it had `patience` seconds to go away."""
    deadline = time.monotonic() + patience
    while True:
        found = [row[0] for row in await connection.fetch(SESSIONS)]
        found += [f"process {pid}" for pid in processes_of(ledger)]
        if not found or time.monotonic() >= deadline:
            return found
        await asyncio.sleep(0.1)
