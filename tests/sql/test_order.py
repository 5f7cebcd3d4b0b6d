"""The order in which jobs start: one key per strategy, exact for any number of kinds and size of claim."""

import random
from datetime import timedelta

import pytest

from .steps import claim, claim_all, declare, end, insert, outcome, promote, row, settle

LOW, MEDIUM, HIGH, CRITICAL = range(4)


@pytest.mark.parametrize(("seconds", "first"), [(19, "high"), (20, "low"), (21, "low")])
async def test_with_aging_a_low_job_overtakes_a_fresh_high_one_after_20_seconds(db, clock, seconds, first):
    jobs = {await insert(db, priority=LOW): "low"}
    await clock.advance(seconds)
    jobs[await insert(db, priority=HIGH)] = "high"

    assert [jobs[job["id"]] for job in await claim(db)] == [first]


async def test_with_fifo_priority_does_not_count(db, clock):
    await declare(db, queues=[{"queue": "default", "ordering": "fifo"}])
    ids = []
    for priority in (LOW, CRITICAL, MEDIUM, HIGH):
        ids.append(await insert(db, priority=priority))
        await clock.advance(1)

    assert [job["id"] for job in await claim(db, 4)] == ids


async def test_with_strict_a_higher_priority_goes_first_even_after_nine_years(db, clock):
    await declare(db, queues=[{"queue": "default", "ordering": "strict"}])
    low = await insert(db, priority=LOW)
    await clock.advance(timedelta(days=9 * 365).total_seconds())
    medium, critical = await insert(db, priority=MEDIUM), await insert(db, priority=CRITICAL)

    assert [job["id"] for job in await claim(db, 4)] == [critical, medium, low]


@pytest.mark.parametrize(
    ("ordering", "step"), [("aging", 10), ("fifo", 0), ("strict", 87660 * 3600)], ids=["aging", "fifo", "strict"]
)
async def test_the_key_is_the_time_less_a_step_per_level_of_priority(db, clock, ordering, step):
    await declare(db, queues=[{"queue": "default", "ordering": ordering}])
    later = await clock.now() + timedelta(hours=2)

    now_job, later_job = await row(db, await insert(db, priority=2)), await row(db, await insert(db, run_at=later))

    assert now_job["rank_at"] == await clock.now() - timedelta(seconds=2 * step)
    assert later_job["rank_at"] == later - timedelta(seconds=step)


async def test_the_step_of_aging_is_the_queues(db, clock):
    await declare(db, queues=[{"queue": "default", "ordering": "aging", "step": 60}])

    assert (await row(db, await insert(db, priority=3)))["rank_at"] == await clock.now() - timedelta(seconds=180)


async def test_a_retry_keeps_its_place_and_a_snooze_takes_a_new_one(db, clock):
    retried, snoozed = await insert(db), await insert(db, priority=HIGH)
    places = {i: (await row(db, i))["rank_at"] for i in (retried, snoozed)}
    jobs = {job["id"]: job for job in await claim(db, 2)}
    await clock.advance(100)

    await settle(db, outcome(jobs[retried], "failed"), outcome(jobs[snoozed], "snoozed", delay=50))

    assert (await row(db, retried))["rank_at"] == places[retried]
    assert (await row(db, snoozed))["rank_at"] == await clock.now() + timedelta(seconds=50 - 20)


async def test_a_released_or_promoted_job_keeps_its_place(db, clock):
    delayed = await insert(db, run_at=await clock.now() + timedelta(seconds=10))
    place = (await row(db, delayed))["rank_at"]
    await clock.advance(1000)
    await promote(db)

    assert (await row(db, delayed))["rank_at"] == place


@pytest.mark.parametrize("slots", [1, 7, 100])
@pytest.mark.parametrize("kinds", [1, 3, 20])
async def test_claims_follow_the_exact_order_over_all_kinds(db, clock, kinds, slots):
    names, dice = [f"kind{n}" for n in range(kinds)], random.Random(kinds * slots)
    shares = [1] * (kinds - 1) + [6 * kinds]  # most jobs are of one kind: a look at a few of each is not enough
    await declare(db, *names)
    for _ in range(40):
        await clock.advance(dice.choice([0, 1, 7]))
        await insert_randomly(db, dice.choices(names, shares, k=5), dice)

    claimed = []
    while jobs := await claim(db, slots, names):
        assert len(jobs) <= slots
        claimed += [job["id"] for job in jobs]

    oracle = await db.fetch("SELECT id FROM scheduler.jobs ORDER BY rank_at, id")
    assert len(claimed) == 200
    assert claimed == [record["id"] for record in oracle]


async def test_queues_are_served_in_the_order_given(db):
    await insert(db, queue="second"), await insert(db, queue="first"), await insert(db, queue="second", priority=100)

    jobs = await claim(db, 3, queues=["first", "second"])

    assert [job["queue"] for job in jobs] == ["first", "second", "second"]


async def test_a_claim_leaves_other_kinds_and_other_queues_alone(db):
    await declare(db, "other")
    await insert(db, "other"), await insert(db, queue="elsewhere")
    mine = await insert(db)

    assert [job["id"] for job in await claim(db, 10)] == [mine]


async def test_a_claim_that_came_short_says_when_the_next_job_is_due(db, clock):
    await insert(db)
    await insert(db, run_at=await clock.now() + timedelta(seconds=42))

    full, short = await claim_all(db, 1), await claim_all(db, 1)

    assert [job["id"] is None for job in full] == [False]
    assert [(hint["id"], hint["busy"], hint["next_in"]) for hint in short] == [(None, False, 42)]


async def test_a_claim_on_a_queue_with_nothing_ahead_says_so(db):
    (hint,) = await claim_all(db, 5)

    assert hint["next_in"] is None


async def test_a_claim_tells_the_worker_all_it_needs(db, clock):
    await insert(db, payload='{"a": 1}', tenant="t", idempotency_key="once", metadata='{"tag": 1}')

    (job,) = await claim(db)

    assert dict(job) | {"id": 0, "fence": 0} == {
        "id": 0, "fence": 0, "kind": "k", "queue": "default", "tenant": "t", "payload": '{"a": 1}', "attempt": 1,
        "failures": 0, "max_attempts": 5, "timeout": 3600.0, "idempotency_key": "once", "metadata": '{"tag": 1}',
        "busy": None, "next_in": None, "parents": None, "fire_time": None,
    }  # fmt: skip


async def test_an_ended_job_is_not_claimed_again(db):
    await insert(db)
    (job,) = await claim(db)
    await end(db, job)

    assert await claim(db, 5) == []


async def insert_randomly(db, kinds, dice):
    for kind in kinds:
        await insert(db, kind, priority=dice.choice([-100, 0, 1, 1, 2, 3, 100]))
