"""Waking up: a few sleeping workers of the queue are told, and nobody else; nothing is sent while nobody sleeps."""

import asyncio
import json
from datetime import timedelta
from uuid import UUID

import pytest

from .steps import claim, declare, end, insert, insert_many, promote, reap, release, resolve_all


@pytest.fixture
async def heard(connect):
    """Collect the notices sent on the channels of the workers `sleeper` makes."""
    connection, notices = await connect(), []
    for n in range(1, 11):
        await connection.add_listener(f"worker{n}", lambda _c, _pid, channel, _payload: notices.append(channel))

    async def heard():
        """Return what was sent so far: a notice of one's own comes after all that was sent before."""
        arrived = asyncio.get_running_loop().create_future()

        def end_of_it(*_):
            if not arrived.done():
                arrived.set_result(None)

        await connection.add_listener("so_far", end_of_it)
        await connection.execute("NOTIFY so_far")
        await asyncio.wait_for(arrived, 10)
        await connection.remove_listener("so_far", end_of_it)
        told, notices[:] = sorted(notices), []
        return told

    return heard


async def sleeper(db, n, *queues, sleeping=True):
    facts = {"host": "h", "pid": n, "version": "1", "queues": queues, "kinds": ["k"], "slots": {}}
    await db.execute("SELECT scheduler.register($1, $2)", UUID(int=n), json.dumps(facts | {"channel": f"worker{n}"}))
    await db.execute("SELECT scheduler.doze($1, $2)", UUID(int=n), sleeping)


async def test_an_insert_tells_at_most_two_sleepers_of_its_queue(db, heard):
    for n in range(1, 7):
        await sleeper(db, n, "default")

    await insert_many(db, 100)

    told = await heard()
    assert len(told) == len(set(told)) == 2


async def test_who_is_told_varies(db, heard):
    for n in range(1, 5):
        await sleeper(db, n, "default")
    told = set()
    for _ in range(30):
        await insert(db)
        told |= set(await heard())

    assert told == {"worker1", "worker2", "worker3", "worker4"}


async def test_nobody_is_told_while_nobody_sleeps(db, heard):
    await sleeper(db, 1, "default", sleeping=False)

    await insert(db)

    assert await heard() == []


async def test_nobody_of_another_queue_is_told(db, heard):
    await sleeper(db, 1, "mails")
    await sleeper(db, 2, "mails", "default")

    await insert(db)

    assert await heard() == ["worker2"]


async def test_a_worker_not_seen_for_15_seconds_is_not_told(db, heard, clock):
    await sleeper(db, 1, "default")
    await clock.advance(15)
    await sleeper(db, 2, "default")

    await insert(db)

    assert await heard() == ["worker2"]


async def test_an_insert_into_several_queues_tells_each_and_a_worker_of_both_once(db, heard):
    await sleeper(db, 1, "default", "mails")
    await sleeper(db, 2, "mails")

    await db.execute("INSERT INTO scheduler.jobs (kind, queue) VALUES ('k', 'mails'), ('k', 'default'), ('k', 'mails')")

    assert await heard() == ["worker1", "worker2"]


async def test_what_cannot_start_yet_wakes_nobody(db, heard):
    parent = await insert(db)
    await sleeper(db, 1, "default")

    await insert(db, depends_on=[parent])
    await insert(db, "undeclared")

    assert await heard() == []


async def test_every_verb_that_makes_work_tells(db, heard, clock):
    await declare(db, "child")
    await sleeper(db, 1, "default")
    told = {}

    delayed = await insert(db, run_at=await clock.now() + timedelta(seconds=5))
    await insert(db, "child", depends_on=[delayed])
    told["a delayed insert, for its time may be the next"] = await heard()
    await clock.advance(5)
    await promote(db)
    told["promote"] = await heard()
    (job,) = await claim(db)
    await release(db, [job])
    told["release"] = await heard()
    await claim(db)
    await clock.advance(31)
    await sleeper(db, 1, "default")
    await reap(db)
    told["reap"] = await heard()
    (job,) = await claim(db)
    parents = (await end(db, job))["parents"]
    await resolve_all(db, parents)
    told["resolve"] = await heard()
    await insert(db, "undeclared")
    await declare(db, "undeclared")
    told["declare"] = await heard()

    assert {verb: channels for verb, channels in told.items() if channels != ["worker1"]} == {}


async def test_claims_renewals_and_ends_tell_nobody(db, heard):
    await insert(db)
    await sleeper(db, 1, "default")

    (job,) = await claim(db)
    await end(db, job)

    assert await heard() == []


async def test_a_draining_worker_does_not_sleep(db, heard):
    await sleeper(db, 1, "default")
    facts = {
        "host": "h",
        "pid": 1,
        "version": "1",
        "queues": ["default"],
        "kinds": [],
        "slots": {},
        "channel": "worker1",
    }
    await db.execute("SELECT scheduler.register($1, $2)", UUID(int=1), json.dumps(facts | {"draining": True}))

    await insert(db)

    assert await heard() == []


async def test_a_worker_that_has_ended_is_forgotten_and_one_not_seen_for_a_day(db, clock):
    await sleeper(db, 1, "default")
    await sleeper(db, 2, "default")
    await db.execute("SELECT scheduler.deregister($1)", UUID(int=2))
    await clock.advance(86_401)

    await sleeper(db, 3, "default")

    assert await db.fetchval("SELECT array_agg(pid) FROM scheduler.workers") == [3]
