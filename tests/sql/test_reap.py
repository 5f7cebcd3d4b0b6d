"""The reaper: a lapsed lease is the worker's loss, whoever is just at it wins, an outage is nobody's crash."""

import asyncio
import json
from datetime import timedelta
from uuid import UUID

import pytest

from .steps import (
    LEASE,
    attempts,
    cancel,
    claim,
    declare,
    end,
    insert,
    insert_many,
    outcome,
    reap,
    renew,
    row,
    settle,
    start,
    status,
    until_waiting,
    verb,
)

FACTS = json.dumps(
    {"host": "h", "pid": 1, "version": "1", "queues": ["default"], "kinds": ["k"], "slots": {}, "channel": "mine"}
)

# The second reading is the first in the statement that looks for lapsed leases: its snapshot is taken.
CLOCK_THAT_WAITS_AT_THE_REAPERS_LOOK = """
CREATE SEQUENCE scheduler.readings;
GRANT USAGE ON SEQUENCE scheduler.readings TO PUBLIC;
CREATE OR REPLACE FUNCTION scheduler.clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF nextval('scheduler.readings') = 2 THEN
    PERFORM pg_advisory_xact_lock(1);
  END IF;
  RETURN (SELECT at FROM scheduler.test_clock);
END $$"""


async def test_only_lapsed_leases_are_reaped(db, clock):
    lapsed = await start(db)
    await clock.advance(20)
    alive = await start(db)
    await clock.advance(10.5)

    answer = await reap(db)

    assert (answer["reaped"], answer["parents"]) == ([lapsed["id"]], [])
    facts = {"kind": "k", "queue": "default", "tenant": "", "attempt": 1, "status": "PENDING"}
    end = {"outcome": "lost", "duration": 30.5, "error_type": "WorkerLost"}
    assert answer["jobs"] == [facts | end | {"ids": [lapsed["id"]], "error": "the worker did not renew its lease"}]
    assert await status(db, alive["id"]) == "RUNNING"


async def test_a_lease_lapses_after_its_last_moment(db, clock):
    job = await start(db)
    await clock.advance(30)
    assert (await reap(db))["reaped"] == []

    await clock.advance(0.001)
    assert (await reap(db))["reaped"] == [job["id"]]


async def test_a_reaped_job_waits_in_its_old_place_and_counts_a_crash_not_a_failure(db, clock):
    job = await start(db)
    place = (await row(db, job["id"]))["rank_at"]
    await clock.advance(31)

    await reap(db)

    reaped = await row(db, job["id"])
    assert (reaped["status"], reaped["crashes"], reaped["failures"]) == ("PENDING", 1, 0)
    assert (reaped["worker_id"], reaped["lease_expires_at"], reaped["rank_at"]) == (None, None, place)
    (lost,) = await attempts(db, job["id"])
    assert (lost["attempt"], lost["outcome"], lost["error_type"]) == (1, "lost", "WorkerLost")


async def test_a_job_that_loses_more_workers_than_allowed_fails(db, clock):
    job_id = await insert(db, max_crashes=2)
    seen = []
    for _ in range(3):
        await claim(db)
        await clock.advance(31)
        await reap(db)
        seen.append(await status(db, job_id))

    failed = await row(db, job_id)
    assert seen == ["PENDING", "PENDING", "FAILED"]
    assert (failed["crashes"], failed["failures"]) == (3, 0)
    assert failed["error"] == "WorkerLost: 3 workers were lost while they ran this job (max_crashes 2)"


async def test_a_failed_jobs_children_are_named_to_be_resolved(db, clock):
    parent = await insert(db, max_crashes=0)
    await insert(db, depends_on=[parent])
    await claim(db)
    await clock.advance(31)

    answer = await reap(db)
    assert (answer["reaped"], answer["parents"]) == ([parent], [parent])
    assert [(facts["ids"], facts["status"]) for facts in answer["jobs"]] == [([parent], "FAILED")]


async def test_a_lapsed_job_asked_to_cancel_ends_cancelled(db, clock):
    job = await start(db)
    await cancel(db, job["id"])
    await clock.advance(31)

    await reap(db)

    assert await status(db, job["id"]) == "CANCELLED"


async def test_nothing_is_reaped_within_one_lease_of_the_servers_start(db, clock):
    job = await start(db)
    await db.execute("UPDATE scheduler.epoch SET changed_at = '2000-01-01'")
    await db.execute("UPDATE scheduler.jobs_active SET lease_expires_at = '2000-01-01'")
    started = await db.fetchval("SELECT pg_postmaster_start_time()")

    await clock.set(started + LEASE - timedelta(milliseconds=1))
    assert (await reap(db))["reaped"] == []

    await clock.set(started + LEASE)
    assert (await reap(db))["reaped"] == [job["id"]]


async def test_nothing_is_reaped_within_one_lease_of_a_new_epoch(db, clock):
    job = await start(db)
    await clock.advance(31)
    await db.execute("SELECT scheduler.new_epoch()")
    await clock.advance(29)
    assert (await reap(db))["reaped"] == []

    await clock.advance(1)
    assert (await reap(db))["reaped"] == [job["id"]]


async def test_what_an_outage_longer_than_its_lease_interrupted_is_charged_to_nobody(db, clock):
    job_id = await insert(db, max_crashes=0)
    await claim(db)
    await clock.advance(300)
    await db.execute("SELECT scheduler.new_epoch()")  # as when the server comes up: nothing was renewed before
    await clock.advance(31)

    (facts,) = (await reap(db))["jobs"]

    spared, (attempt,) = await row(db, job_id), await attempts(db, job_id)
    assert (facts["status"], facts["outcome"]) == ("PENDING", "released")
    assert (spared["status"], spared["crashes"], attempt["outcome"]) == ("PENDING", 0, "released")


@pytest.mark.parametrize("after", ["claimed", "renewed"])
async def test_what_is_lost_after_an_outage_is_a_crash(db, clock, after):
    job_id = await insert(db)
    job = (await claim(db))[0] if after == "renewed" else None
    await db.execute("SELECT scheduler.new_epoch()")
    await clock.advance(1)
    await (renew(db, [job]) if job else claim(db))
    await clock.advance(31)

    await reap(db)

    assert (await row(db, job_id))["crashes"] == 1


async def test_a_renewal_under_way_wins(db, connect, clock):
    job, worker = await start(db), await connect()
    await clock.advance(31)

    async with worker.transaction():
        await renew(worker, [job])
        assert (await reap(db))["reaped"] == []

    assert (await reap(db))["reaped"] == []
    assert await status(db, job["id"]) == "RUNNING"


async def test_a_settlement_under_way_wins(db, connect, clock):
    job, worker = await start(db), await connect()
    await clock.advance(31)

    async with worker.transaction():
        await end(worker, job)
        assert (await reap(db))["reaped"] == []

    assert (await reap(db))["reaped"] == []
    assert await status(db, job["id"]) == "COMPLETED"


@pytest.mark.parametrize("verb", ["renew", "settle"])
async def test_f07_f08_b01_a_verb_that_commits_between_the_reapers_look_and_its_lock_wins(db, connect, clock, verb):
    job, worker, reaper = await start(db), await connect(), await connect()
    await clock.advance(31)
    await db.execute(CLOCK_THAT_WAITS_AT_THE_REAPERS_LOOK)
    await db.execute("SELECT pg_advisory_lock(1)")

    reaping = asyncio.create_task(reap(reaper))
    await until_waiting(db, reaper)
    await (renew(worker, [job]) if verb == "renew" else end(worker, job, result={"by": "its worker"}))
    await db.execute("SELECT pg_advisory_unlock(1)")

    assert (await reaping)["reaped"] == []
    found = await row(db, job["id"])
    expected = ("RUNNING", None) if verb == "renew" else ("COMPLETED", '{"by": "its worker"}')
    assert (found["status"], found["result"], found["attempt"], found["crashes"]) == (*expected, 1, 0)
    assert await attempts(db, job["id"]) == []


async def test_a_settlement_behind_a_reap_under_way_is_busy_and_then_lost(db, connect, clock):
    job, reaper = await start(db), await connect()
    await clock.advance(31)

    async with reaper.transaction():
        await reap(reaper)
        assert (await end(db, job))["busy"] == [job["id"]]

    assert (await end(db, job))["lost"] == [job["id"]]


async def test_two_reapers_at_once_count_each_crash_once(db, connect, clock):
    await insert_many(db, 100)
    await claim(db, 100)
    await clock.advance(31)
    reapers = [await connect() for _ in range(4)]

    answers = await asyncio.gather(*(reap(reaper) for reaper in reapers))

    reaped = [job_id for answer in answers for job_id in answer["reaped"]]
    assert len(reaped) == len(set(reaped)) == 100
    assert (
        await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE crashes = 1 AND status = 'PENDING'") == 100
    )


async def test_a_second_reaper_passes_over_what_the_first_holds(db, connect, clock):
    job, first = await start(db), await connect()
    await clock.advance(31)

    async with first.transaction():
        assert (await reap(first))["reaped"] == [job["id"]]
        assert (await reap(db))["reaped"] == []

    assert (await row(db, job["id"]))["crashes"] == 1


async def test_a_reap_ends_at_its_limit(db, clock):
    await insert_many(db, 5)
    await claim(db, 5)
    await clock.advance(31)

    assert [len((await reap(db, limit=2))["reaped"]) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_lapsed_lease_that_nobody_took_can_still_be_renewed_and_settled(db, clock):
    await insert(db), await insert(db)
    late, later = await claim(db, 2)
    await clock.advance(300)

    assert (await renew(db, [late]))["lost"] == []
    assert (await settle(db, outcome(late), outcome(later)))["lost"] == []


async def test_a_cancel_waits_for_a_reap_under_way_and_cancels_what_it_left(db, connect, clock):
    job, reaper, operator = await start(db), await connect(), await connect()
    await clock.advance(31)

    async with reaper.transaction():
        await reap(reaper)
        cancelling = asyncio.create_task(cancel(operator, job["id"]))
        await until_waiting(db, operator)

    assert (await cancelling)["cancelled"] == [job["id"]]
    assert await status(db, job["id"]) == "CANCELLED"


async def lose(db, clock, workers, slots=10):
    """Let each worker claim what it can, and die of it; return the ids that each had claimed."""
    had = [{job["id"] for job in await claim(db, slots, worker=worker)} for worker in workers]
    await clock.advance(31)
    await reap(db)
    return had


async def test_a_worker_runs_one_job_at_a_time_of_those_that_its_death_would_end(db, clock):
    ids = await insert_many(db, 5, max_crashes=1)
    fresh = await insert_many(db, 5)
    await lose(db, clock, [UUID(int=1)], 5)
    assert {await status(db, job_id) for job_id in ids} == {"PENDING"}

    (first,) = {job["id"] for job in await claim(db, 10, worker=UUID(int=1))} - {*fresh}
    more = [job["id"] for job in await claim(db, 10, worker=UUID(int=1))]
    (second,) = [job["id"] for job in await claim(db, 10, worker=UUID(int=2))]

    assert more == []
    assert {first, second} <= {*ids}
    assert first != second


async def test_the_job_that_kills_its_workers_ends_alone(db, clock):
    poison = await insert(db)
    neighbours = await insert_many(db, 9)
    for _ in range(40):
        claimed = await claim(db, 10)
        if poison in {job["id"] for job in claimed}:
            await clock.advance(31)  # the worker dies at once, and all of them are lost
            await reap(db)
        else:
            await settle(db, *map(outcome, claimed))

    ended = await db.fetch("SELECT id, status::text, crashes FROM scheduler.jobs ORDER BY id")
    assert tuple(ended[0]) == (poison, "FAILED", 4)
    assert {tuple(job)[1:] for job in ended[1:]} == {("COMPLETED", 3)}
    assert len(ended) == 1 + len(neighbours)


async def test_a_job_on_its_last_chance_that_nobody_may_claim_holds_up_no_other(db, clock):
    await declare(db, "paused", "other")
    paused = await insert_many(db, 300, "paused", max_crashes=1)
    elsewhere = await insert_many(db, 300, "other", max_crashes=1, queue="elsewhere")
    (other,) = await insert_many(db, 1, "other", max_crashes=1)
    await claim(db, 1000, ["paused", "other"], ["default", "elsewhere"])
    await clock.advance(31)
    await reap(db)
    await verb(db, "pause", None, "paused", None, None)

    claimed = [job["id"] for job in await claim(db, 10, ["paused", "other"])]

    assert claimed == [other]
    assert {await status(db, job_id) for job_id in paused[:3] + elsewhere[:3]} == {"PENDING"}


async def test_jobs_that_may_not_lose_a_single_worker_are_claimed_together(db):
    await insert_many(db, 5, max_crashes=0)

    assert len(await claim(db, 10)) == 5


async def test_two_claims_of_one_worker_at_once_take_one_job_on_its_last_chance(db, connect, clock):
    await db.execute("SELECT scheduler.register($1, $2)", UUID(int=1), FACTS)
    await insert_many(db, 2, max_crashes=1)
    await lose(db, clock, [UUID(int=1)])
    one, other = await connect(), await connect()

    async with one.transaction():
        first = await claim(one, 10, worker=UUID(int=1))
        second = asyncio.create_task(claim(other, 10, worker=UUID(int=1)))
        await until_waiting(db, other)

    assert (len(first), len(await second)) == (1, 0)
