"""The schedules of a campaign. Those that a promotion has lost are made again; others are left alone, come what may.

What is missed is made up for, so that the checker knows which jobs must be there; of `folded` only what may be there.
Their jobs go before others, else most fires would find one that waits.
"""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec

from scheduler.schedules import definition

from .history import RECURRING
from .jobs import Waits
from .load import LOST

KNOWN = "SELECT array_agg(name) FROM scheduler.schedules"
UPSERT = "SELECT scheduler.upsert_schedule($1, $2)"
PAUSE = "SELECT scheduler.pause_schedule(name) FROM scheduler.schedules"
SOON = timedelta(seconds=1)
ALL: dict[str, Any] = {"misfire": "backfill", "backfill_limit": 1000}  # more than a campaign can miss at a time
SHORT, LONG = (Waits(token=RECURRING, does="fail twice", seconds=seconds) for seconds in (0.05, 0.5))
FIRST = {"priority": 10}
SCHEDULES = {
    "each": definition(SHORT, {"every": SOON, "overlap": "allow", **ALL}),
    "calendar": definition(SHORT, {"cron": "*/2 * * * * *", "overlap": "allow", **ALL}),
    "skips": definition(LONG, {"every": SOON, "overlap": "skip", **ALL}),
    "queues": definition(LONG, {"every": SOON, "overlap": "queue_one", **ALL}),
    "folded": definition(SHORT, {"every": SOON, "overlap": "allow"}),
    "delayed": definition(SHORT, {"every": SOON, "mode": "fixed_delay", "overlap": "allow"}),  # none overlaps
}


class Recurring:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            with contextlib.suppress(*LOST):
                await self._make()
            await asyncio.sleep(2)

    async def _make(self) -> None:
        connection = await asyncpg.connect(self._dsn, timeout=5, command_timeout=5)
        try:
            known = await connection.fetchval(KNOWN) or ()
            for name, said in SCHEDULES.items():
                if name not in known:
                    await connection.execute(UPSERT, name, msgspec.json.encode(said | FIRST).decode())
        finally:
            connection.terminate()
