"""Schedules while workers are killed: every fire has its job, and no fire has two."""

import asyncio
import random
from collections import Counter
from datetime import timedelta

import asyncpg
import msgspec
import pytest
from witness import until

from scheduler.schedules import Fired

SECOND = timedelta(seconds=1)


FIRES = """SELECT fire_time FROM scheduler.jobs j JOIN scheduler.schedules s ON s.id = j.schedule_id
  WHERE s.name = 'ticks'"""


async def fires_of(db):
    return Counter(row["fire_time"] for row in await db.fetch(FIRES))


def no_gap_and_no_double(fires):
    times = sorted(fires)
    return set(fires.values()) == {1} and times == [times[0] + n * SECOND for n in range(len(times))]


@pytest.mark.slow
async def test_f26_b08_b09_workers_that_are_killed_leave_no_fire_out_and_make_none_twice(db, launch):
    """Three processes on one host; one is killed without warning, and another takes its place."""
    workers = [await launch(app="recurring_jobs").ready() for _ in range(3)]

    async def so_many(number):
        async def enough():
            return len(await fires_of(db)) >= number

        await until(enough, f"{number} fires should have had their jobs")

    for number in (3, 5):
        await so_many(number)
        workers.pop(0).end()
        workers.append(await launch(app="recurring_jobs").ready())
    await so_many(8)
    for worker in workers:  # nobody is left, and somebody comes
        worker.end()
    (await launch(app="recurring_jobs").ready()) and await so_many(len(await fires_of(db)) + 3)

    assert no_gap_and_no_double(await fires_of(db))


@pytest.mark.slow
async def test_f26_a_thousand_ticks_under_workers_whose_connections_break_at_random(db, connect, clock):
    """Each tick is fired by two at once; now and then one is cut off before it has committed."""
    chance = random.Random(1)
    await db.execute("""SELECT scheduler.upsert_schedule('ticks', '{"kind": "k", "every": 1, "overlap": "allow",
      "misfire": "backfill"}')""")
    connections, known = [await connect(), await connect()], [[], []]

    async def one_pass(n):
        answer = await connections[n].fetchval("SELECT scheduler.fire($1)", msgspec.json.encode(known[n]).decode())
        known[n] = [schedule.fire() for schedule in msgspec.json.decode(answer, type=Fired).schedules]

    async def broken_pass(n):
        transaction = connections[n].transaction()
        await transaction.start()
        await one_pass(n)
        connections[n].terminate()
        connections[n] = await connect()

    for _ in range(2):
        await one_pass(0)
    for _ in range(1000):
        await clock.advance(chance.choice([0, 1, 1, 1, 3]))
        passes = [one_pass(n) if chance.random() > 0.05 else broken_pass(n) for n in (0, 1)]
        for outcome in await asyncio.gather(*passes, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncpg.PostgresError | OSError), outcome
    for _ in range(3):
        await one_pass(0)

    fires = await fires_of(db)
    assert no_gap_and_no_double(fires)
    assert max(fires) == await clock.now()
