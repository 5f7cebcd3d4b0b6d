"""Some fires lived through by hand, on a clock that is not waited for: see life.py."""

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from sql import firing

from .history import RECURRING

if TYPE_CHECKING:
    from .life import Life

EARLIER = "UPDATE scheduler.schedules SET next_fire = next_fire - $1::interval"


async def schedules(life: "Life") -> None:
    """Three fires of each are due, one after the other, while none of its jobs has ended; the fourth is not due yet."""
    for overlap in ("allow", "skip", "queue_one"):
        await make(life.db, overlap, overlap=overlap, misfire="backfill")
    await make(life.db, "fixed_delay", mode="fixed_delay")
    await fire(life.db)  # computes when they will
    await life.db.execute(EARLIER, timedelta(seconds=3))
    for _ in range(4):
        await fire(life.db)
    await life.work("B")
    for _ in range(2):  # the fixed delay, were it not kept
        await fire(life.db)
    await life.work("B")


async def make(db, name, **definition) -> None:
    starts_at = await db.fetchval("SELECT now() - interval '1 min'")
    payload = {"token": RECURRING, "does": "succeed"}
    await firing.upsert(db, name, payload=payload, every=1, starts_at=starts_at.isoformat(), **definition)


async def fire(db) -> None:
    """Fire one time of each, as a worker that is there for every one; a hasty one, that does not wait for it."""
    known = (await firing.call(db)).schedules
    fires = [msgspec.structs.replace(one, until=one.next_fire or one.until).fire() for one in known]
    await firing.call(db, fires)
