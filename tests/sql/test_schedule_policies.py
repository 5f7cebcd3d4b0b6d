"""What becomes of a fire whose job before is unfinished, and of missed fires; by example, and against a model."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .firing import fire, fire_times, jobs, minutes, schedule, upsert
from .steps import cancel, claim, end, insert, outcome, promote, resolve_all, settle, verb

HOUR = 3600


@pytest.fixture
async def clock(clock):
    """A clock that stands half a minute after a full hour."""
    await clock.set((await clock.now()).replace(minute=0, second=30))
    return clock


async def minutely(db, **definition):
    await upsert(db, cron="* * * * *", **definition)
    await fire(db)


async def statuses(db):
    return [job["status"] for job in await jobs(db)]


async def next_minutes(db, clock, n):
    for _ in range(n):
        await clock.advance(60)
        await fire(db)


async def complete(db, job):
    await resolve_all(db, (await end(db, job))["parents"])


# Overlap.


async def test_by_default_a_fire_is_skipped_and_counted_while_a_job_is_unfinished(db, clock):
    await minutely(db)
    await next_minutes(db, clock, 3)
    (job,) = await claim(db)
    await next_minutes(db, clock, 2)
    assert ((await schedule(db))["skipped"], await statuses(db)) == (4, ["RUNNING"])

    await complete(db, job)
    await next_minutes(db, clock, 1)

    assert ((await schedule(db))["skipped"], await statuses(db)) == (4, ["COMPLETED", "PENDING"])


async def test_queue_one_lets_one_job_wait_for_the_one_before(db, clock):
    await minutely(db, overlap="queue_one")
    await next_minutes(db, clock, 1)
    (first,) = await claim(db)
    await next_minutes(db, clock, 3)
    assert ((await schedule(db))["skipped"], await statuses(db)) == (2, ["RUNNING", "BLOCKED"])
    assert await claim(db) == []

    await resolve_all(db, (await end(db, first, "failed", retryable=False))["parents"])

    assert await statuses(db) == ["FAILED", "PENDING"]
    await next_minutes(db, clock, 1)
    assert await statuses(db) == ["FAILED", "PENDING", "BLOCKED"]


async def test_allow_makes_a_job_for_each_fire(db, clock):
    await minutely(db, overlap="allow")
    await next_minutes(db, clock, 3)

    assert ((await schedule(db))["skipped"], await statuses(db)) == (0, ["PENDING"] * 3)


@pytest.mark.parametrize(("overlap", "made"), [("skip", 1), ("queue_one", 2), ("allow", 3)])
@pytest.mark.parametrize("state", ["retried later", "blocked", "retried by an operator"])
async def test_a_job_that_is_retried_or_blocked_is_unfinished(db, clock, state, overlap, made):
    await minutely(db, overlap=overlap)
    await next_minutes(db, clock, 1)
    if state == "blocked":
        parent = await insert(db, "other")
        await db.execute("DELETE FROM scheduler.jobs_active WHERE schedule_id IS NOT NULL")
        job_id = await insert(db, depends_on=[parent])
        await db.execute(
            "UPDATE scheduler.jobs_active SET schedule_id = (SELECT id FROM scheduler.schedules) WHERE id = $1", job_id
        )
    else:
        (job,) = await claim(db)
        later = {"delay": HOUR} if state == "retried later" else {"retryable": False}
        await end(db, job, "failed", **later)
        if state == "retried by an operator":
            await verb(db, "retry", [job["id"]])

    await next_minutes(db, clock, 2)

    assert len(await jobs(db)) == made


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "allow"])
@pytest.mark.parametrize("way", ["pruned", "deleted by hand", "cancelled"])
async def test_a_job_that_is_gone_blocks_nothing(db, clock, way, overlap):
    await minutely(db, overlap=overlap)
    await next_minutes(db, clock, 1)
    (job,) = await jobs(db)
    if way == "deleted by hand":
        await db.execute("DELETE FROM scheduler.jobs_active")
    else:
        await cancel(db, job["id"])
    if way == "pruned":
        await verb(db, "prune", [job["id"]])

    await next_minutes(db, clock, 1)

    assert (await statuses(db))[-1] == "PENDING"
    assert (await schedule(db))["skipped"] == 0


async def test_b15_a_fire_that_meets_a_taken_key_is_counted_as_skipped_and_the_others_fire(db, clock):
    holder = await insert(db, unique_key="u")
    await upsert(db, "free", cron="* * * * *", overlap="allow")
    await minutely(db, unique_key="u")
    await next_minutes(db, clock, 2)
    row = await schedule(db)
    assert (await jobs(db), row["skipped"], row["error"]) == ([], 2, None)
    assert len(await jobs(db, "free")) == 2

    await cancel(db, holder)
    await next_minutes(db, clock, 1)

    assert len(await jobs(db)) == 1


async def test_b15_missed_fires_under_one_key_are_one_job_and_the_rest_is_counted(db, clock):
    await minutely(db, unique_key="u", misfire="backfill")
    await clock.advance(300)
    await fire(db)

    assert (len(await jobs(db)), (await schedule(db))["skipped"]) == (1, 4)


# Misfire.


async def test_f29_after_a_downtime_one_job_runs_for_the_newest_fire(db, clock):
    await minutely(db)
    await clock.advance(3 * HOUR)
    await fire(db)

    assert await fire_times(db) == [(await clock.now()).replace(second=0)]


async def test_f29_skip_leaves_out_what_was_missed_and_runs_what_is_not_a_minute_late(db, clock):
    await minutely(db, misfire="skip")
    await upsert(db, "daily", every=10 * 60, misfire="skip")
    await fire(db)
    await clock.advance(3 * HOUR + 120)
    await fire(db)

    assert await fire_times(db) == [(await clock.now()).replace(second=0)]
    row = await schedule(db, "daily")
    assert (await fire_times(db, "daily"), row["skipped"]) == ([], 1)
    assert row["next_fire"] == await clock.now() + minutes(8)


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "allow"])
async def test_f29_backfill_runs_each_missed_fire_oldest_first_and_so_many_at_most(db, clock, overlap):
    await minutely(db, misfire="backfill", backfill_limit=5, overlap=overlap)
    await clock.advance(3 * HOUR)
    await fire(db)
    newest = (await clock.now()).replace(second=0)

    assert await fire_times(db) == [newest - minutes(n) for n in (4, 3, 2, 1, 0)]
    ran = []
    while claimed := await claim(db, 10):
        assert len(claimed) == (5 if overlap == "allow" else 1)
        ran += [job["fire_time"] for job in claimed]
        await resolve_all(db, (await settle(db, *map(outcome, claimed)))["parents"])
    assert ran == [at.timestamp() for at in await fire_times(db)]
    await next_minutes(db, clock, 1)
    assert len(await jobs(db)) == 6


async def test_a_backfill_waits_for_a_job_left_over_from_before_and_never_grows_beyond_its_limit(db, clock):
    await minutely(db, misfire="backfill", backfill_limit=4)
    await next_minutes(db, clock, 1)
    (left_over,) = await claim(db)
    for _ in range(3):
        await clock.advance(HOUR)
        await fire(db)

    assert await statuses(db) == ["RUNNING", "BLOCKED", "BLOCKED", "BLOCKED"]
    await complete(db, left_over)
    assert await statuses(db) == ["COMPLETED", "PENDING", "BLOCKED", "BLOCKED"]


# Against a model.


class Model:
    """What the page says of misfire and overlap, on a list of fire times."""

    def __init__(self, every, overlap, misfire, limit, start):
        self.every, self.overlap, self.misfire, self.limit = every, overlap, misfire, limit
        self.seen = self.start = start
        self.made, self.unfinished, self.skipped = [], 0, 0

    def fire(self, now):
        due, at = [], self.start
        while (at := at + timedelta(seconds=self.every)) <= now:
            if at > self.seen:
                due.append(at)
        self.seen = now
        if not due:
            return
        late = now - due[-1] > minutes(1)
        due = due[-self.limit :] if self.misfire == "backfill" else due[-1:]
        run = [] if self.misfire == "skip" and late else due
        if self.overlap != "allow":
            if self.misfire == "backfill" and (len(due) > 1 or late):
                room = max(self.limit - self.unfinished, 0)
                run = run[-room:] if room else []
            elif self.unfinished >= (1 if self.overlap == "skip" else 2):
                run = []
        self.made += run
        self.unfinished += len(run)
        self.skipped += len(due) - len(run)


STEP = st.one_of(
    st.tuples(st.just("pass"), st.integers(1, 200)),
    st.tuples(st.just("pass"), st.integers(1, 30)),
    st.tuples(st.just("down"), st.integers(1, 2000)),
    st.tuples(st.sampled_from(["complete", "fail", "retry later", "cancel", "claim"]), st.just(0)),
)


@given(
    every=st.sampled_from([7, 60, 200]),
    overlap=st.sampled_from(["skip", "queue_one", "allow"]),
    misfire=st.sampled_from(["coalesce", "skip", "backfill"]),
    limit=st.integers(1, 5),
    steps=st.lists(STEP, min_size=5, max_size=25),
)
@settings(
    deadline=None, database=None, derandomize=True, max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
async def test_i8_random_schedules_downtimes_and_policies_are_as_the_model_says(
    db, clock, every, overlap, misfire, limit, steps
):
    await db.execute("TRUNCATE scheduler.jobs, scheduler.dependencies, scheduler.attempts, scheduler.schedules")
    model = Model(every, overlap, misfire, limit, await clock.now())
    await upsert(db, every=every, overlap=overlap, misfire=misfire, backfill_limit=limit)
    await fire(db)
    running = []
    for action, seconds in steps:
        await clock.advance(seconds)
        await promote(db)
        if action == "pass":
            await fire(db)
            model.fire(await clock.now())
        elif action == "cancel":
            waiting = [j["id"] for j in await jobs(db) if j["status"] in {"PENDING", "DELAYED", "BLOCKED"}]
            if waiting:
                await resolve_all(db, (await cancel(db, waiting[-1]))["parents"])
                model.unfinished -= 1
        elif action != "down":
            running += await claim(db, 3)
            if running and action != "claim":
                job = running.pop(0)
                facts = {"complete": {}, "fail": {"retryable": False}, "retry later": {"delay": 50}}[action]
                done = await end(db, job, "completed" if action == "complete" else "failed", **facts)
                await resolve_all(db, done["parents"])
                again = (await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE id = $1", job["id"])) == 1
                model.unfinished -= 0 if again else 1
        assert overlap == "allow" or len(running) <= 1

        found = await schedule(db)
        assert sorted(await fire_times(db)) == model.made
        assert (found["skipped"], found["error"]) == (model.skipped, None)
        assert found["next_fire"] > model.seen
