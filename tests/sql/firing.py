"""Schedules as a worker fires them, pass by pass, on a clock that stands still."""

import json
from datetime import timedelta

import msgspec

from scheduler.schedules import Fired

from .steps import verb


async def upsert(db, name="s", *, declared=False, force=False, kind="k", **definition):
    said = json.dumps({"kind": kind, **definition})
    return await verb(db, "upsert_schedule", name, said, declared, force)


async def call(db, fires=(), limit=200):
    answer = await db.fetchval("SELECT scheduler.fire($1, $2)", msgspec.json.encode(list(fires)).decode(), limit)
    return msgspec.json.decode(answer, type=Fired)


async def computed(db, limit=200):
    """Return what a worker would ask for next."""
    return [schedule.fire() for schedule in (await call(db, limit=limit)).schedules]


async def fire(db, limit=200):
    """Fire all that is due, as a worker does; return how many jobs were made."""
    jobs, fires, seen = 0, [], []
    while True:
        done = await call(db, fires, limit)
        jobs += done.fired
        due = [s for s in done.schedules if s.next_fire is None or s.next_fire <= done.now]
        keys = [(s.id, s.version, s.next_fire) for s in due]
        if not set(keys) - set(seen):
            return jobs
        fires, seen = [schedule.fire() for schedule in due], keys


async def schedule(db, name="s"):
    return await db.fetchrow("SELECT * FROM scheduler.schedules WHERE name = $1", name)


async def jobs(db, name="s"):
    """Return the jobs of a schedule, oldest first."""
    query = """SELECT j.*, j.status::text AS status FROM scheduler.jobs j
      JOIN scheduler.schedules s ON s.id = j.schedule_id
      WHERE s.name = $1 ORDER BY j.id"""
    return await db.fetch(query, name)


async def fire_times(db, name="s"):
    return [job["fire_time"] for job in await jobs(db, name)]


def minutes(n):
    return timedelta(minutes=n)
