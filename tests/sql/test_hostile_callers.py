"""Callers that do what no worker of ours does: other isolation levels, odd values, half-locked backlogs."""

import json

import asyncpg
import pytest

from . import steps

CALLS = {
    "claim": "SELECT * FROM scheduler.claim(gen_random_uuid(), gen_random_uuid(), '{default}', '{k}', 1, '30 s')",
    "settle": "SELECT scheduler.settle(gen_random_uuid(), '[]')",
    "release": "SELECT scheduler.release(gen_random_uuid(), '{}', '{}')",
    "resolve": "SELECT scheduler.resolve(NULL)",
    "reap": "SELECT scheduler.reap('30 s')",
    "cancel": "SELECT scheduler.cancel('{1}')",
}


@pytest.mark.parametrize("verb", CALLS)
async def test_a_verb_that_would_miss_a_new_edge_refuses_an_old_snapshot(db, verb):
    with pytest.raises(asyncpg.InvalidTransactionStateError, match=f"{verb} needs READ COMMITTED"):
        async with db.transaction(isolation="repeatable_read"):
            await db.fetch(CALLS[verb])


async def test_the_first_reap_after_a_promotion_gives_every_worker_a_lease_of_grace(db, clock):
    job = await steps.start(db)
    await clock.advance(3600)
    await db.execute("UPDATE scheduler.epoch SET timeline = '00000000', changed_at = '2000-01-01 00:00+00'")

    answer = await steps.reap(db)

    assert answer["reaped"] == []
    assert await steps.status(db, job["id"]) == "RUNNING"


async def test_the_limit_of_a_payload_is_that_of_its_text_however_small_it_is_stored(db):
    huge = "{" + f'"n": [{", ".join(["1e131071"] * 3)}]' + "}"

    with pytest.raises(asyncpg.CheckViolationError, match="payload must be at most 256 kB"):
        await db.execute("INSERT INTO scheduler.jobs (kind, payload) VALUES ('k', $1)", huge)


async def test_a_kind_whose_first_rows_are_locked_keeps_no_other_kind_waiting(db, connect):
    await steps.declare(db, "other")
    locked = await steps.insert_many(db, 30)
    free = await steps.insert_many(db, 30, kind="other")
    holder = await connect()

    async with holder.transaction():
        await holder.execute("SELECT FROM scheduler.jobs_active WHERE id = ANY ($1) FOR UPDATE", locked)
        claimed = await steps.claim(db, slots=10, kinds=("k", "other"))

    assert {job["id"] for job in claimed} == set(free[:10])


@pytest.mark.parametrize("channel", ["", "x" * 64, "Upper", 'a"b'])
async def test_a_worker_cannot_register_a_channel_that_would_stop_inserts(db, channel):
    facts = {"host": "h", "pid": 1, "version": "1", "queues": ["default"], "kinds": [], "slots": {}, "channel": channel}

    with pytest.raises(asyncpg.CheckViolationError, match="channel must be"):
        await db.execute("SELECT scheduler.register(gen_random_uuid(), $1)", json.dumps(facts))


async def test_a_declaration_of_null_is_none_and_an_unknown_option_is_refused(db):
    await steps.declare(db, {"kind": "new", "queue": None})

    assert await db.fetchval("SELECT queue FROM scheduler.kinds WHERE kind = 'new'") == "default"
    with pytest.raises(asyncpg.CheckViolationError, match="qeue is no option of a kind"):
        await steps.declare(db, {"kind": "new", "qeue": "mail"})


async def test_a_number_too_long_for_python_hides_no_other_job_and_no_other_result(db, dsn):
    from scheduler import Scheduler, SchedulerError

    long, plain = await steps.start(db, metadata='{"n": 1e5000}'), await steps.start(db)
    await steps.settle(db, steps.outcome(long), steps.outcome(plain, result=7))
    await db.execute("UPDATE scheduler.jobs_finished SET result = '1e5000' WHERE id = $1", long["id"])

    async with Scheduler.connect(dsn) as scheduler:
        listed = await scheduler.jobs()
        result = await scheduler.handle(plain["id"]).result()
        with pytest.raises(SchedulerError, match="cannot be read"):
            await scheduler.handle(long["id"]).result()

    assert {job["id"] for job in listed} == {long["id"], plain["id"]}
    assert result == 7
