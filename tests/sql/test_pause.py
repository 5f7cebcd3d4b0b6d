"""Pausing: nothing of a paused queue or kind is started, what runs goes on, and the end of the pause is known."""

import asyncio
import json
from datetime import timedelta

import asyncpg
import pytest

from .steps import claim, claim_all, declare, end, insert, release, start, verb

HOUR = timedelta(hours=1)


async def pause(db, queue=None, kind=None, duration=None, by="me"):
    return await verb(db, "pause", queue, kind, duration, by)


async def resume(db, queue=None, kind=None):
    return await verb(db, "resume", queue, kind)


async def hint(db, **options):
    return (await claim_all(db, **options))[-1]["next_in"]


WHAT = pytest.mark.parametrize("what", [{"queue": "default"}, {"kind": "k"}], ids=["queue", "kind"])


@WHAT
async def test_nothing_that_is_paused_is_claimed_until_it_is_resumed(db, clock, what):
    await declare(db, "other")
    job_id, other = await insert(db), await insert(db, "other", queue="mail")

    answer = await pause(db, **what)

    assert answer == {"queue": None, "kind": None, "paused_for": None, "paused_by": "me"} | what
    both = {"slots": 5, "kinds": ("k", "other"), "queues": ("default", "mail")}
    assert [job["id"] for job in await claim(db, **both)] == [other]
    await clock.advance(10**9)
    assert await claim_all(db, **both) == [await anything_else(db, **both)]
    assert await hint(db, **both) is None

    assert await resume(db, **what) == {"queue": None, "kind": None, "resumed": True} | what
    assert [job["id"] for job in await claim(db, **both)] == [job_id]
    assert (await resume(db, **what))["resumed"] is False


async def anything_else(db, **options):
    return (await claim_all(db, **options))[-1]


@WHAT
async def test_a_pause_ends_by_itself_and_the_claim_knows_when(db, clock, what):
    job_id = await insert(db)
    assert (await pause(db, **what, duration=HOUR))["paused_for"] == 3600
    await clock.advance(3590)

    assert await claim(db) == []
    assert await hint(db) == 10

    await clock.advance(10)
    assert [job["id"] for job in await claim(db)] == [job_id]
    assert await hint(db) is None
    assert (await resume(db, **what))["resumed"] is False


async def test_the_hint_is_what_comes_first(db, clock):
    await insert(db, run_at=await clock.now() + timedelta(seconds=5))
    await pause(db, "default", duration=HOUR)
    assert await hint(db) == 5

    await pause(db, "default", duration=timedelta(seconds=2))

    assert await hint(db) == 2
    assert await hint(db, queues=("another",)) == 5


async def test_what_runs_goes_on_and_what_is_given_back_waits(db):
    first, second = await start(db), await start(db)

    await pause(db, "default")

    await end(db, first)
    await release(db, [second])
    assert await db.fetch("SELECT status::text FROM scheduler.jobs ORDER BY id") == [("COMPLETED",), ("PENDING",)]
    assert await claim(db) == []


async def test_pausing_again_replaces_the_pause(db, clock):
    await pause(db, "default", by="one")
    await pause(db, "default", duration=HOUR, by="two")

    (queue,) = [json.loads(row[0]) for row in await db.fetch("SELECT scheduler.list_queues()")]

    assert (queue["paused"], queue["paused_for"], queue["paused_by"]) == (True, 3600, "two")


@WHAT
async def test_what_nobody_has_declared_can_be_paused_and_keeps_its_pause_when_declared(db, what):
    what = dict.fromkeys(what, "new")
    await pause(db, **what)

    await declare(db, {"kind": "new", "queue": "new"}, queues=[{"queue": "new", "ordering": "fifo"}])
    await insert(db, "new")

    assert await claim(db, kinds=["new"], queues=["new"]) == []
    await resume(db, **what)
    assert len(await claim(db, kinds=["new"], queues=["new"])) == 1


async def test_resuming_what_nobody_knows_makes_nothing(db):
    assert (await resume(db, "misspelt"))["resumed"] is False

    assert await db.fetchval("SELECT count(*) FROM scheduler.queues") == 0


async def test_a_pause_without_a_name_is_that_of_the_role(db, login):
    operator = await login("scheduler_operator")

    answer = await pause(operator, "default", by=None)

    assert answer["paused_by"] == await operator.fetchval("SELECT session_user::text")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, None), "queue or kind must be given"),
        (("default", "k"), "queue or kind must be given"),
        (("a b", None), "queue must be 1 to 100 letters"),
        ((None, "a b"), "kind must be 1 to 100 letters"),
        (("default", None, timedelta(0)), "for must be over 0"),
        (("default", None, timedelta(days=367)), "for must be over 0 and at most 366 days"),
        (("default", None, HOUR, "x" * 201), "by must be at most 200 bytes"),
    ],
)
async def test_a_wrong_pause_is_refused(db, arguments, words):
    with pytest.raises(asyncpg.CheckViolationError, match=words):
        await pause(db, *arguments)
    if len(arguments) == 2 and "a b" not in arguments:
        with pytest.raises(asyncpg.CheckViolationError, match=words):
            await resume(db, *arguments)


@WHAT
async def test_resuming_wakes_a_sleeper(db, connect, what):
    await pause(db, **what)
    listener, heard = await connect(), asyncio.Queue()
    await listener.add_listener("mine", lambda *call: heard.put_nowait(call[2]))
    facts = {
        "host": "h",
        "pid": 1,
        "version": "1",
        "queues": ["default"],
        "kinds": ["k"],
        "slots": {},
        "channel": "mine",
    }
    await db.execute("SELECT scheduler.register($1, $2)", "00000000-0000-0000-0000-000000000001", json.dumps(facts))
    await db.execute("SELECT scheduler.doze($1, true)", "00000000-0000-0000-0000-000000000001")

    await resume(db, **what)

    assert await asyncio.wait_for(heard.get(), 10) == "mine"


async def test_a_pause_waits_for_no_submitter_of_an_undeclared_kind(db, connect):
    submitter = await connect()

    async with submitter.transaction():
        await insert(submitter, "new")
        await pause(db, kind="k")
        await pause(db, "default")
