"""Fences: a worker that no longer holds a claim changes nothing, and learns it; a locked row is not a lost one."""

from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from scheduler.states import Outcome

from .steps import WORKER, attempts, cancel, claim, end, insert, outcome, reap, release, renew, row, settle, start

OTHER = UUID(int=2)
VERBS = [f"settle {ending}" for ending in Outcome] + ["renew", "release"]


async def call(db, verb, job, worker=WORKER):
    """Call a worker's verb for one job; return what it answered."""
    if verb == "renew":
        return await renew(db, [job], worker)
    if verb == "release":
        return await release(db, [job], worker)
    return await settle(db, outcome(job, verb.removeprefix("settle "), result={"a": 1}, delay=5), worker=worker)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "way", ["claimed again by another", "claimed again by itself", "waiting again", "ended", "never was"]
)
async def test_a_stale_fence_changes_nothing_and_is_reported_lost(db, clock, verb, way):
    stale = await lose(db, clock, way)
    before = await everything(db)

    answer = await call(db, verb, stale)

    assert (answer["lost"], answer["busy"]) == ([stale["id"]], [])
    assert await everything(db) == before


async def lose(db, clock, way):
    """Return a claim that its worker no longer holds."""
    if way == "never was":
        return {"id": 4711, "fence": 1 << 32 | 1}
    job = await start(db)
    await clock.advance(31)
    await reap(db)
    if way != "waiting again":
        (again,) = await claim(db, worker=OTHER if "another" in way else WORKER)
        if way == "ended":
            await end(db, again, "failed", retryable=False)
    return job


async def everything(db):
    tables = [await db.fetch(f"SELECT * FROM scheduler.{table}") for table in ("jobs", "attempts", "dependencies")]
    return [[dict(record) for record in table] for table in tables]


async def test_a_fence_in_another_workers_hands_changes_nothing(db):
    job = await start(db)
    before = await everything(db)

    for verb in VERBS:
        assert (verb, (await call(db, verb, job, OTHER))["lost"]) == (verb, [job["id"]])
        assert await everything(db) == before


@pytest.mark.parametrize("verb", VERBS)
async def test_a_locked_row_is_busy_and_holds_up_no_neighbour(db, connect, verb):
    await insert(db), await insert(db)
    locked, free = await claim(db, 2)
    other = await connect()

    async with other.transaction():
        await other.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", locked["id"])
        before = dict(await row(db, locked["id"]))
        answers = [await call(db, verb, locked), await call(db, verb, free)]
        assert dict(await row(db, locked["id"])) == before

    assert [(a["busy"], a["lost"]) for a in answers] == [([locked["id"]], []), ([], [])]
    answer = await call(db, verb, locked)
    assert (answer["busy"], answer["lost"]) == ([], [])


@pytest.mark.parametrize("verb", ["settle completed", "settle failed", "release"])
async def test_an_attempt_does_not_end_while_a_transaction_relies_on_it(db, connect, verb):
    job, user = await start(db), await connect()

    async with user.transaction():
        await user.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR KEY SHARE", job["id"])
        assert (await call(db, verb, job))["busy"] == [job["id"]]

    assert (await call(db, verb, job))["busy"] == []


async def test_one_call_tells_done_lost_and_busy_apart(db, connect):
    for _ in range(3):
        await insert(db)
    done, lost, busy = await claim(db, 3)
    other = await connect()

    async with other.transaction():
        await other.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", busy["id"])
        answer = await settle(db, outcome(done), outcome({"id": lost["id"], "fence": 7}), outcome(busy))

    assert (answer["lost"], answer["busy"]) == ([lost["id"]], [busy["id"]])
    assert (await row(db, done["id"]))["status"] == "COMPLETED"


@pytest.mark.parametrize("ending", Outcome)
async def test_an_outcome_sent_again_is_not_lost_and_counts_once(db, ending):
    job = await start(db)
    first = outcome(job, ending, delay=60, error="no", result={"a": 1})
    await settle(db, first)
    before = await everything(db)

    answer = await settle(db, first)
    assert answer["lost"] == []
    assert answer["became"] == {str(job["id"]): (await row(db, job["id"]))["status"]}
    assert await everything(db) == before


async def test_an_outcome_sent_again_after_the_next_attempt_began_is_not_lost(db):
    job = await start(db)
    await end(db, job, "failed", delay=0)
    await db.execute("SELECT scheduler.promote()")
    await claim(db)

    assert (await end(db, job, "failed", delay=0))["lost"] == []
    assert (await row(db, job["id"]))["failures"] == 1


async def test_another_outcome_than_the_recorded_one_is_lost(db):
    job = await start(db)
    await end(db, job, "failed")

    assert (await end(db, job))["lost"] == [job["id"]]


@pytest.mark.parametrize("ending", ["failed", "timed_out", "cancelled", "snoozed"])
async def test_of_an_attempt_that_has_completed_no_other_outcome_counts_and_none_is_lost(db, ending):
    job = await start(db)
    await end(db, job)
    before = await everything(db)

    answer = await end(db, job, ending, delay=1)

    assert (answer["lost"], answer["busy"], answer["became"]) == ([], [], {str(job["id"]): "COMPLETED"})
    assert await everything(db) == before


async def test_a_result_too_large_sent_again_is_not_lost(db):
    job = await start(db)
    large = outcome(job, result={"a": "x" * 70_000})
    await settle(db, large)

    answer = await settle(db, large)
    assert (answer["lost"], answer["became"]) == ([], {str(job["id"]): "FAILED"})


async def test_an_outcome_named_twice_in_one_call_counts_once(db):
    job = await start(db)

    await settle(db, outcome(job, "failed"), outcome(job, "failed"))

    assert (await row(db, job["id"]))["failures"] == 1
    assert len(await attempts(db, job["id"])) == 1


async def test_fences_of_one_job_only_grow(db):
    fences = []
    await insert(db)
    for _ in range(3):
        (job,) = await claim(db)
        fences.append(job["fence"])
        await release(db, [job])

    assert fences == [1 << 32 | n for n in (1, 2, 3)]


async def test_a_renewal_extends_from_the_moment_the_lock_is_held(db, clock):
    job = await start(db)
    await clock.advance(20)

    answer = await renew(db, [job])

    assert answer == {"lost": [], "busy": [], "cancel": []}
    assert (await row(db, job["id"]))["lease_expires_at"] == await clock.now() + timedelta(seconds=30)


async def test_a_renewal_goes_on_while_a_users_transaction_relies_on_the_attempt(db, connect, clock):
    job, user = await start(db), await connect()

    async with user.transaction():
        await user.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR KEY SHARE", job["id"])
        await clock.advance(20)
        assert (await renew(db, [job]))["busy"] == []

    assert (await row(db, job["id"]))["lease_expires_at"] == await clock.now() + timedelta(seconds=30)


async def test_a_renewal_of_many_goes_on_while_one_of_them_is_locked(db, connect, clock):
    for _ in range(10):
        await insert(db)
    jobs, user = await claim(db, 10), await connect()

    async with user.transaction():
        await user.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", jobs[3]["id"])
        await clock.advance(20)
        answer = await renew(db, jobs)

    assert (answer["busy"], answer["lost"]) == ([jobs[3]["id"]], [])
    renewed = "SELECT count(*) FROM scheduler.jobs_active WHERE lease_expires_at = scheduler.clock() + interval '30 s'"
    assert await db.fetchval(renewed) == 9


async def test_a_renewal_tells_which_jobs_are_to_be_cancelled(db):
    await insert(db), await insert(db)
    asked, left = await claim(db, 2)
    await cancel(db, asked["id"])

    assert (await renew(db, [asked, left]))["cancel"] == [asked["id"]]


async def test_a_renewal_does_not_wait_for_its_commit_to_reach_the_disk(db):
    job = await start(db)

    async with db.transaction():
        await renew(db, [job])
        assert await db.fetchval("SHOW synchronous_commit") == "off"
    async with db.transaction():
        await end(db, job)
        assert await db.fetchval("SHOW synchronous_commit") == "on"


async def test_an_unknown_outcome_is_refused_whole(db):
    await insert(db), await insert(db)
    good, bad = await claim(db, 2)

    with pytest.raises(asyncpg.CheckViolationError):
        await settle(db, outcome(good), outcome(bad, "exploded"))

    assert (await row(db, good["id"]))["status"] == "RUNNING"
