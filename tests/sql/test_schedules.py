"""Schedules in SQL: who may make them, what an edit does, and one job for each fire whatever happens."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from .firing import call, computed, fire, fire_times, jobs, minutes, schedule, upsert
from .steps import WORKER, cancel, claim, end, insert, status, until_waiting, verb

MINUTELY = {"cron": "* * * * *", "overlap": "allow"}


@pytest.fixture
async def clock(clock):
    """A clock that stands at the beginning of an hour."""
    await clock.set((await clock.now()).replace(minute=0, second=0))
    return clock


# Making, changing and deleting.


async def test_a_schedule_made_by_plain_sql_is_computed_by_a_worker_and_fires(db, clock):
    now = await clock.now()
    await db.execute("""SELECT scheduler.upsert_schedule('nightly', '{"kind": "k", "payload": {"a": null},
      "cron": "0 3 * * *", "time_zone": "Europe/Berlin", "priority": 2, "tenant": "t", "unique_key": "u"}')""")
    assert (await schedule(db, "nightly"))["next_fire"] is None

    await fire(db)
    made = await schedule(db, "nightly")
    await clock.set(made["next_fire"])
    assert await fire(db) == 1

    assert now < made["next_fire"] <= now + timedelta(hours=25)
    (job,) = await jobs(db, "nightly")
    assert (job["payload"], job["priority"], job["tenant"], job["unique_key"]) == ('{"a": null}', 2, "t", "u")
    assert (job["fire_time"], job["run_at"], job["status"]) == (made["next_fire"], made["next_fire"], "PENDING")
    after = await schedule(db, "nightly")
    assert (after["last_job"], after["last_fire"], after["skipped"]) == (job["id"], made["next_fire"], 0)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"cron": "@daily", "colour": "red"}, "colour is no option of a schedule"),
        ({"cron": "@daily", "priority": "high"}, "priority must be a JSON number"),
        ({"cron": "@daily", "priority": 200}, "priority must lie between -100 and 100"),
        ({"cron": "@daily", "kind": "a b"}, "kind must be 1 to 100 letters"),
        ({"cron": "@daily", "payload": []}, "payload must be a JSON object"),
        ({}, "cron must be given, or every, and not both"),
        ({"cron": "@daily", "every": 60}, "cron must be given, or every, and not both"),
        ({"cron": "* " * 101}, "cron must be at most 200 bytes"),
        ({"cron": "@daily", "mode": "fixed_rate"}, "mode must be fixed_rate or fixed_delay with every, else cron"),
        ({"every": 60, "mode": "cron"}, "mode must be fixed_rate or fixed_delay with every, else cron"),
        ({"every": 0.5}, "every must lie between 1 second and 366 days"),
        ({"every": "1 month"}, "every must not count months"),
        ({"every": 60, "jitter": "2 days"}, "jitter must lie between 0 and 1 day"),
        ({"every": 60, "starts_at": "2030-01-01 00:00"}, "starts_at must have a time and a time zone"),
        ({"every": 60, "starts_at": "1999-01-01T00:00Z"}, "starts_at must lie in the years 2000 to 9999"),
        ({"every": 60, "ends_at": "2000-01-01T00:00Z"}, "ends_at must lie after starts_at"),
        ({"every": 60, "overlap": "wait"}, "overlap must be skip, queue_one or allow"),
        ({"every": 60, "misfire": "all"}, "misfire must be coalesce, skip or backfill"),
        ({"every": 60, "mode": "fixed_delay", "misfire": "skip"}, "misfire must be coalesce for a fixed_delay"),
        ({"every": 60, "backfill_limit": 0}, "backfill_limit must lie between 1 and 1000"),
    ],
)
async def test_a_wrong_definition_is_refused_by_field_and_rule(db, definition, words):
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await upsert(db, **{"payload": {"token": "secret"}} | definition)

    assert refused.value.args[0].startswith(words)
    assert "secret" not in f"{refused.value} {refused.value.detail}"
    assert await schedule(db) is None


async def test_a_name_is_like_that_of_a_kind(db):
    with pytest.raises(asyncpg.CheckViolationError, match="name must be 1 to 100 letters"):
        await upsert(db, "a b", cron="@daily")


async def test_a_zone_or_expression_that_no_calendar_knows_becomes_an_error_and_an_edit_mends_it(db, clock):
    await upsert(db, cron="0 0 * * *", time_zone="Europe/Nowhere")
    await upsert(db, "other", cron="0 0 30 2 *")
    await fire(db)

    assert "'Europe/Nowhere' is no IANA zone" in (await schedule(db))["error"]
    assert "bad day-of-month" in (await schedule(db, "other"))["error"]
    assert (await call(db)).schedules == []

    await upsert(db, cron="0 0 * * *", time_zone="Europe/Berlin")
    await fire(db)
    mended = await schedule(db)
    assert (mended["error"], mended["next_fire"] > await clock.now()) == (None, True)


async def test_the_same_definition_again_changes_nothing_and_another_one_counts_as_an_edit(db, clock):
    assert (await upsert(db, cron="@hourly"))["change"] == "created"
    await fire(db)
    before = await schedule(db)

    assert await upsert(db, cron="@hourly") == {"id": before["id"], "version": 1, "change": "same"}
    assert await schedule(db) == before

    assert (await upsert(db, cron="@hourly", payload={"a": 1}))["change"] == "changed"
    after = await schedule(db)
    assert (after["version"], after["next_fire"], after["starts_at"]) == (2, before["next_fire"], before["starts_at"])
    assert (await upsert(db, cron="@daily"))["version"] == 3
    assert (await schedule(db))["next_fire"] is None


async def test_an_edit_of_the_payload_keeps_a_fire_that_is_due(db, clock):
    """A deploy that takes from before a fire until after it, and changes the payload, does not lose the fire."""
    await upsert(db, cron="0 * * * *")
    await fire(db)
    await clock.advance(3605)

    await upsert(db, cron="0 * * * *", payload={"new": 1})
    assert await fire(db) == 1

    assert [job["payload"] for job in await jobs(db)] == ['{"new": 1}']


async def test_two_versions_of_a_declaration_in_a_rolling_deploy_do_not_take_turns_and_a_pause_stays(db):
    old, new = {"cron": "0 1 * * *"}, {"cron": "0 2 * * *"}
    await upsert(db, declared=True, **old)
    await verb_plain(db, "pause_schedule", "s")

    changes = [(await upsert(db, declared=True, **said))["change"] for said in (old, new, old, new, old)]

    assert changes == ["same", "changed", "superseded", "same", "superseded"]
    row = await schedule(db)
    assert (row["cron"], row["paused"], row["version"]) == ("0 2 * * *", True, 2)
    assert (await upsert(db, declared=True, force=True, **old))["change"] == "changed"
    assert (await schedule(db))["cron"] == "0 1 * * *"


async def verb_plain(db, name, *arguments):
    marks = ", ".join(f"${n}" for n, _ in enumerate(arguments, 1))
    return await db.fetchval(f"SELECT scheduler.{name}({marks})", *arguments)


async def test_a_declaration_whose_end_has_come_is_declared_all_the_same_and_fires_no_more(db, clock):
    """Or a worker whose code still has it could not start."""
    ended = {"every": 60, "ends_at": (await clock.now() - timedelta(days=1)).isoformat()}
    assert (await upsert(db, declared=True, **ended))["change"] == "created"
    with pytest.raises(asyncpg.CheckViolationError, match="ends_at must lie after starts_at"):
        await upsert(db, "new", **ended)  # a mistake, when somebody makes it now

    assert (await upsert(db, declared=True, **ended, payload={"a": 1}))["change"] == "changed"

    assert (await fire(db), (await call(db)).schedules) == (0, [])


async def test_an_edit_of_what_has_ended_keeps_its_start(db, clock):
    start, end = await clock.now(), await clock.now() + timedelta(hours=1)
    await upsert(db, every=60, ends_at=end.isoformat())
    await clock.advance(7200)

    assert (await upsert(db, every=60, ends_at=end.isoformat(), payload={"a": 1}))["change"] == "changed"

    assert (await schedule(db))["starts_at"] == start


async def test_a_definition_at_run_time_stays_until_the_declaration_changes(db):
    await upsert(db, declared=True, cron="0 1 * * *")
    await upsert(db, cron="0 5 * * *")

    assert (await upsert(db, declared=True, cron="0 1 * * *"))["change"] == "same"
    assert (await schedule(db))["cron"] == "0 5 * * *"
    await upsert(db, declared=True, cron="0 2 * * *")
    assert (await schedule(db))["cron"] == "0 2 * * *"


async def test_two_who_make_the_same_schedule_at_once_make_one(db, connect):
    other = await connect()
    async with db.transaction():
        await upsert(db, cron="@daily")
        second = asyncio.create_task(upsert(other, cron="@hourly"))
        await until_waiting(await connect(), other)

    assert (await second)["change"] == "changed"
    assert await db.fetch("SELECT name, cron, version FROM scheduler.schedules") == [("s", "@hourly", 2)]


async def test_what_is_deleted_fires_no_more_and_its_jobs_stay(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    await fire(db)
    (job,) = await jobs(db)

    assert await verb_plain(db, "delete_schedule", "s") is True

    await clock.advance(3600)
    assert await fire(db) == 0
    assert await status(db, job["id"]) == "PENDING"
    assert await verb_plain(db, "delete_schedule", "s") is False


async def test_a_pause_is_not_made_up_for_and_a_resume_counts_from_now(db, clock):
    await upsert(db, misfire="backfill", **MINUTELY)
    await fire(db)
    await clock.advance(60)
    await fire(db)
    assert await verb_plain(db, "pause_schedule", "s") is False
    await clock.advance(600)
    assert await fire(db) == 0

    assert await verb_plain(db, "pause_schedule", "s", False) is True
    assert await verb_plain(db, "pause_schedule", "s", False) is False
    await fire(db)
    await clock.advance(60)
    assert await fire(db) == 1

    now = await clock.now()
    assert await fire_times(db) == [now - minutes(11), now]


async def test_run_now_makes_a_job_whatever_the_schedule_does_and_its_times_stay(db, clock):
    await upsert(db, cron="@hourly", unique_key="u")
    await fire(db)
    await verb_plain(db, "pause_schedule", "s")
    before = await schedule(db)

    first = await verb_plain(db, "run_schedule", "s")

    assert await verb_plain(db, "run_schedule", "s") is None
    (job,) = await jobs(db)
    assert (job["id"], job["fire_time"], job["status"]) == (first, await clock.now(), "PENDING")
    assert (await schedule(db))["next_fire"] == before["next_fire"]
    for name in ("pause_schedule", "run_schedule"):
        with pytest.raises(asyncpg.CheckViolationError, match="name 'none' is that of no schedule"):
            await verb_plain(db, name, "none")


async def test_a_schedule_keeps_to_its_start_and_its_end(db, clock):
    now = await clock.now()
    await upsert(db, **MINUTELY, starts_at=(now + minutes(3)).isoformat(), ends_at=(now + minutes(6)).isoformat())
    await upsert(db, "rate", every=60, overlap="allow", starts_at=(now + timedelta(seconds=90)).isoformat())
    for _ in range(20):
        await fire(db)
        await clock.advance(30)

    assert await fire_times(db) == [now + minutes(n) for n in (3, 4, 5)]
    assert await fire_times(db, "rate") == [now + timedelta(seconds=90) + minutes(n) for n in range(9)]


async def test_a_downtime_across_the_end_still_makes_the_run_that_was_due_before_it(db, clock):
    now = await clock.now()
    await upsert(db, **MINUTELY, ends_at=(now + minutes(5)).isoformat())
    await fire(db)
    await clock.advance(3600)

    assert await fire(db) == 1
    assert await fire_times(db) == [now + minutes(4)]
    assert await fire(db) == 0


async def test_a_fixed_rate_does_not_drift_however_late_it_is_fired(db, clock):
    start = await clock.now()
    await upsert(db, every=60, overlap="allow")
    for late in (0, 7.5, 59, 61, 118.2, 3):
        await fire(db)
        await clock.set(start + (await clock.now() - start) // minutes(1) * minutes(1) + timedelta(seconds=60 + late))

    assert all((at - start) % minutes(1) == timedelta(0) for at in await fire_times(db))


async def test_the_jitter_moves_run_at_and_not_fire_time_and_is_the_same_for_whoever_asks(db, clock):
    await upsert(db, **MINUTELY, jitter=50)
    for _ in range(30):
        await fire(db)
        await clock.advance(60)
    made = await jobs(db)
    delays = [job["run_at"] - job["fire_time"] for job in made]

    await db.execute("DELETE FROM scheduler.jobs_active")
    await db.execute(
        "UPDATE scheduler.schedules SET next_fire = $1, last_fire = NULL, misfire = 'backfill'", made[0]["fire_time"]
    )
    await fire(db)

    assert all(job["fire_time"].second == 0 for job in made)
    assert (
        timedelta(0)
        <= min(delays)
        < timedelta(seconds=10)
        < timedelta(seconds=40)
        < max(delays)
        < timedelta(seconds=50)
    )
    again = {job["fire_time"]: job["run_at"] - job["fire_time"] for job in await jobs(db)}
    assert {job["fire_time"]: delay for job, delay in zip(made, delays, strict=True)}.items() <= again.items()
    assert made[-1]["status"] == "DELAYED"


# A fixed delay.


@pytest.mark.parametrize("ending", ["completed", "failed", "timed_out"])
async def test_a_fixed_delay_fires_so_long_after_its_job_has_ended_however_it_ended(db, clock, ending):
    await upsert(db, every=60, mode="fixed_delay")
    assert await fire(db) == 1
    (job,) = await claim(db)
    await clock.advance(500)
    assert await fire(db) == 0

    await end(db, job, ending, retryable=False)
    ended = await clock.now()
    await fire(db)

    assert (await schedule(db))["next_fire"] == ended + minutes(1)
    await clock.advance(59)
    assert await fire(db) == 0
    await clock.advance(1)
    assert await fire(db) == 1


@pytest.mark.parametrize("way", ["cancelled", "pruned", "deleted by hand"])
async def test_a_fixed_delay_is_not_blocked_by_a_job_that_is_gone(db, clock, way):
    await upsert(db, every=60, mode="fixed_delay")
    await fire(db)
    (job,) = await jobs(db)
    await clock.advance(30)
    if way == "deleted by hand":
        await db.execute("DELETE FROM scheduler.jobs_active WHERE id = $1", job["id"])
    else:
        await cancel(db, job["id"])
    if way == "pruned":
        await verb(db, "prune", [job["id"]])
    await fire(db)

    await clock.advance(60)
    assert await fire(db) == 1


@pytest.mark.parametrize("job_ended", [False, True])
async def test_what_a_stalled_worker_computed_for_an_earlier_fire_of_a_fixed_delay_counts_no_more(db, clock, job_ended):
    await upsert(db, every=60, mode="fixed_delay", overlap="allow")
    early = await computed(db)
    await clock.advance(1)
    late = await computed(db)
    await call(db, early)
    assert await fire(db) == 1
    if job_ended:
        await end(db, (await claim(db))[0])

    await call(db, late)
    await fire(db)

    after = await schedule(db)
    assert (after["error"], after["skipped"], len(await jobs(db))) == (None, 0, 1)
    assert after["next_fire"] == (await clock.now() + minutes(1) if job_ended else None)


async def test_what_was_computed_for_an_earlier_fire_counts_no_more_also_when_its_job_is_gone(db, clock):
    await upsert(db, every=60, mode="fixed_delay")
    late = await computed(db)
    await fire(db)
    (job,) = await claim(db)
    await end(db, job)
    await verb(db, "prune", [job["id"]])

    await call(db, late)

    after = await schedule(db)
    assert (after["error"], after["next_fire"]) == (None, None)


async def test_what_was_computed_before_a_pause_counts_no_more_once_it_is_resumed(db, clock):
    await upsert(db, **MINUTELY)
    late = await computed(db)
    await fire(db)
    await db.execute("SELECT scheduler.pause_schedule('s')")
    await clock.advance(80)
    await db.execute("SELECT scheduler.pause_schedule('s', false)")

    await call(db, late)

    assert (await schedule(db))["next_fire"] is None
    assert (await fire(db), await jobs(db)) == (0, [])
    assert (await schedule(db))["next_fire"] == await clock.now() + timedelta(seconds=40)


async def test_a_fixed_delay_counts_from_the_end_of_a_job_that_was_run_by_hand(db, clock):
    await upsert(db, every=60, mode="fixed_delay", overlap="allow")
    late = await computed(db)
    await db.execute("SELECT scheduler.run_schedule('s')")

    await call(db, late)
    await fire(db)

    assert (len(await jobs(db)), (await schedule(db))["next_fire"]) == (1, None)


async def test_a_fixed_delay_whose_job_is_retried_waits_for_its_end(db, clock):
    await upsert(db, every=1, mode="fixed_delay")
    await fire(db)
    (job,) = await claim(db)
    await end(db, job, "failed", delay=100)
    await clock.advance(50)

    assert await fire(db) == 0
    assert (await schedule(db))["next_fire"] is None


@pytest.mark.parametrize("ended_again", [False, True])
async def test_what_was_computed_from_an_end_that_was_not_the_last_counts_no_more(db, clock, ended_again):
    await upsert(db, every=60, mode="fixed_delay", overlap="allow")
    await fire(db)
    (job,) = await claim(db)
    await end(db, job, "failed", retryable=False)
    late = await computed(db)
    assert (await verb(db, "retry", [job["id"]]))["retried"] == [job["id"]]
    await clock.advance(1)
    if ended_again:
        await end(db, (await claim(db))[0])

    await call(db, late)

    assert (await schedule(db))["next_fire"] is None
    await fire(db)
    assert (await schedule(db))["next_fire"] == (await clock.now() + minutes(1) if ended_again else None)


# Exactly one job per schedule and fire time.


async def test_b09_b08_one_fire_makes_one_job_whatever_the_number_of_workers(db, connect, clock):
    """Every worker computes the same fire, and all call at once; which of them leads is no question."""
    for n in range(20):
        await upsert(db, f"s{n}", **MINUTELY)
    workers = [await connect() for _ in range(6)]
    await fire(db)
    await clock.advance(60)
    same = await computed(db)

    await asyncio.gather(*(call(worker, same) for worker in workers))
    for _ in range(5):
        await clock.advance(60)
        await asyncio.gather(*(fire(worker) for worker in workers))
        await fire(db)

    counted = await db.fetch("SELECT schedule_id, fire_time, count(*) FROM scheduler.jobs GROUP BY 1, 2")
    assert (len(counted), {row["count"] for row in counted}) == (20 * 6, {1})


async def test_a_reply_that_was_lost_is_asked_again_and_fires_nothing_twice(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    asked = await computed(db)

    assert [(await call(db, asked)).fired for _ in range(3)] == [1, 0, 0]


async def test_a_fire_that_comes_again_when_the_next_is_due_changes_nothing(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    old = await computed(db)
    await call(db, old)
    await clock.advance(60)
    before = await schedule(db)

    assert (await call(db, old)).fired == 0

    assert await schedule(db) == before
    assert await fire(db) == 1


async def test_f27_nothing_fires_before_its_time_on_the_clock_of_the_database_whatever_a_worker_computes(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    row = await schedule(db)
    ahead = row["next_fire"] + minutes(5)  # of a worker whose own clock were five minutes ahead
    facts = {"id": row["id"], "version": 1, "fire_time": row["next_fire"]}

    early = await call(db, [facts | {"times": [row["next_fire"]], "next": ahead}])
    await clock.advance(60)
    wrong = await call(db, [facts | {"times": [ahead], "next": ahead + minutes(1)}])

    assert (early.fired, wrong.fired) == (0, 0)
    after = await schedule(db)
    assert (after["next_fire"], after["error"]) == (row["next_fire"], None)
    assert await fire_times(db) == []
    assert await fire(db) == 1


async def test_f71_a_fire_computed_before_the_clock_went_back_is_computed_anew_and_stops_no_schedule(db, clock):
    """As when a standby takes over whose host is seconds behind, and a worker sends what it had computed."""
    await upsert(db, every=1, overlap="allow")
    await fire(db)
    await clock.advance(10)
    ahead = await computed(db)
    await clock.advance(-2)

    assert (await call(db, ahead)).fired == 0
    assert (await schedule(db))["error"] is None
    assert await fire(db) == 1
    assert await fire_times(db) == [await clock.now()]


async def test_a_next_fire_that_does_not_grow_is_refused_whoever_computed_it(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    await fire(db)
    last = (await schedule(db))["last_fire"]
    await db.execute("UPDATE scheduler.schedules SET next_fire = NULL")

    await call(db, [{"id": (await schedule(db))["id"], "version": 1, "fire_time": None, "next": last}])

    after = await schedule(db)
    assert (after["next_fire"], after["error"]) == (None, "a worker computed times that do not grow")


async def test_next_fire_only_grows_also_when_the_clock_goes_back(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    await fire(db)
    fired = await fire_times(db)
    await clock.advance(-600)

    await upsert(db, cron="*/1 * * * *", overlap="allow")
    assert await fire(db) == 0

    assert (await schedule(db))["next_fire"] > fired[-1]


async def test_b38_b05_the_next_fire_is_in_the_database_and_not_in_a_worker(db, connect, clock):
    """A weekly schedule, and workers that live for a day; the one that computed the fire is gone when it comes."""
    await upsert(db, every="7 days", overlap="allow")
    for _ in range(15):
        worker = await connect()
        await fire(worker)
        worker.terminate()
        await clock.advance(86400)

    assert len(await jobs(db)) == 2


async def test_f30_an_edit_during_a_fire_leaves_no_mixed_definition(db, connect, clock):
    await upsert(db, payload={"of": "old"}, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    old = await computed(db)
    worker, editor = await connect(), await connect()

    async with worker.transaction():
        assert (await call(worker, old)).fired == 1
        editing = asyncio.create_task(upsert(editor, cron="30 * * * *", payload={"of": "new"}))
        await until_waiting(db, editor)
    await editing

    (job,) = await jobs(db)
    assert job["payload"] == '{"of": "old"}'
    assert (await call(db, old)).fired == 0
    await fire(db)
    assert (await schedule(db))["next_fire"] == job["fire_time"] + minutes(29)


async def test_f30_a_fire_computed_before_an_edit_changes_nothing(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    old = await computed(db)

    await upsert(db, payload={"of": "new"}, **MINUTELY)
    assert (await call(db, old)).fired == 0
    assert await fire(db) == 1

    assert [job["payload"] for job in await jobs(db)] == ['{"of": "new"}']


async def test_f30_what_is_deleted_and_made_again_is_another_schedule(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    old = await computed(db)

    await verb_plain(db, "delete_schedule", "s")
    await upsert(db, **MINUTELY)
    assert (await call(db, old)).fired == 0
    await fire(db)
    await clock.advance(60)
    await fire(db)

    assert await fire_times(db) == [await clock.now()]


async def test_f31_a_fire_that_is_rolled_back_after_its_job_leaves_neither_and_the_next_makes_one(db, connect, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    asked, worker = await computed(db), await connect()
    before = await schedule(db)

    transaction = worker.transaction()
    await transaction.start()
    assert (await call(worker, asked)).fired == 1
    await db.execute("SELECT pg_terminate_backend($1, 10000)", worker.get_server_pid())

    assert (await jobs(db), await schedule(db)) == ([], before)
    assert await fire(db) == 1
    assert await fire_times(db) == [await clock.now()]


async def test_b42_a_schedule_that_somebody_holds_keeps_no_other_waiting(db, connect, clock):
    for name in ("held", "free"):
        await upsert(db, name, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    holder = await connect()

    async with holder.transaction():
        await holder.execute("SELECT FROM scheduler.schedules WHERE name = 'held' FOR UPDATE")
        assert await fire(db) == 1
    assert await fire(db) == 1

    assert [len(await jobs(db, name)) for name in ("free", "held")] == [1, 1]


async def test_b42_a_job_that_somebody_holds_keeps_only_the_schedule_waiting_whose_job_waits_for_it(db, connect, clock):
    await upsert(db, "waits", cron="* * * * *", overlap="queue_one")
    await upsert(db, "free", **MINUTELY)
    await fire(db)
    await clock.advance(60)
    await fire(db)
    (job,) = await jobs(db, "waits")
    holder = await connect()
    await clock.advance(60)

    async with holder.transaction():
        await holder.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", job["id"])
        assert await fire(db) == 1
    assert await fire(db) == 1

    assert [job["status"] for job in await jobs(db, "waits")] == ["PENDING", "BLOCKED"]


@pytest.mark.parametrize("submitted", [{"unique_key": "u"}, {"kind": "new"}])
async def test_b42_an_open_transaction_that_a_fire_would_wait_for_keeps_no_other_schedule_waiting(
    db, connect, clock, submitted
):
    """Somebody has submitted with the key of a schedule, or for the first time of its kind, and has not committed."""
    await upsert(db, "waits", **MINUTELY, **submitted)
    for n in range(3):
        await upsert(db, f"free{n}", **MINUTELY)
    await fire(db)
    await clock.advance(60)
    somebody = await connect()

    async with somebody.transaction():
        await insert(somebody, **submitted)
        assert await fire(db) == 3
        assert await jobs(db, "waits") == []
    await fire(db)

    made = await jobs(db, "waits")
    assert len(made) + (await schedule(db, "waits"))["skipped"] == 1
    assert [len(await jobs(db, f"free{n}")) for n in range(3)] == [1, 1, 1]


async def test_what_a_halted_worker_computed_long_ago_is_computed_anew(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    old = await computed(db)
    await clock.advance(3600)

    assert (await call(db, old)).fired == 0
    assert await fire(db) == 1
    assert await fire_times(db) == [await clock.now()]


async def test_two_who_compute_by_other_rules_of_a_zone_fire_once_and_time_goes_on(db, clock):
    """The clock of a zone is changed by law, and one of two workers does not know yet."""
    await upsert(db, cron="0 * * * *", overlap="allow")
    await fire(db)
    await clock.advance(3600)
    (old,) = await computed(db)
    new = old | {"next": old["next"] + minutes(30)}

    assert [(await call(db, [one])).fired for one in (new, old)] == [1, 0]
    assert (await schedule(db))["next_fire"] == new["next"]
    await clock.set(new["next"])
    assert await fire(db) == 1
    assert (await schedule(db))["next_fire"] == old["next"] + minutes(60)


async def test_1000_schedules_due_at_once_fire_in_batches(db, clock):
    await db.execute("""SELECT scheduler.upsert_schedule('s' || n, '{"kind": "k", "every": 86400}')
      FROM generate_series(1, 1000) AS n""")
    assert len((await call(db, limit=200)).schedules) == 200
    await fire(db)
    await clock.advance(86400)

    assert await fire(db) == 1000


async def test_a_fire_needs_read_committed(db):
    with pytest.raises(asyncpg.InvalidTransactionStateError, match="fire needs READ COMMITTED"):
        async with db.transaction(isolation="repeatable_read"):
            await call(db, [{"id": 1, "version": 1}])


# The claim tells the fire time.


async def test_a_claim_tells_for_which_time_a_schedule_made_the_job(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await clock.advance(60)
    await fire(db)
    plain = await insert(db)

    rows = {row["id"]: row["fire_time"] for row in await claim(db, 5)}

    (job,) = await jobs(db)
    assert rows == {job["id"]: job["fire_time"].timestamp(), plain: None}
    again = await db.fetch("SELECT * FROM scheduler.claimed_by($1, $2)", WORKER, job["request"])
    assert {row["id"]: row["fire_time"] for row in again} == rows


# Who may do what.


async def test_who_may_do_what(db, login, clock):
    submitter, operator, worker, viewer = [
        await login(f"scheduler_{r}") for r in ("submitter", "operator", "worker", "viewer")
    ]

    for role in (submitter, operator, worker):
        await upsert(role, cron="@hourly")
    for statement in ("SELECT scheduler.pause_schedule('s')", "SELECT scheduler.run_schedule('s')",
                      "SELECT scheduler.fire('[]')", "SELECT FROM scheduler.schedules"):  # fmt: skip
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await submitter.execute(statement)
    assert await fire(worker) == 0
    await verb_plain(operator, "pause_schedule", "s")
    await verb_plain(operator, "run_schedule", "s")
    for role in (operator, viewer):
        listed = await role.fetchval("SELECT scheduler.list_schedules() ->> 'name'")
        assert listed == "s"
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await viewer.execute("SELECT payload FROM scheduler.schedules")
    assert await verb_plain(submitter, "delete_schedule", "s") is True


# Plans.


async def test_a_pass_reads_what_is_due_and_not_all_schedules(db, clock):
    await upsert(db, **MINUTELY)
    await fire(db)
    await db.execute("""INSERT INTO scheduler.schedules (name, kind, mode, every, starts_at, next_fire)
      SELECT 'x' || n, 'k', 'fixed_rate', '1 day', c.at, c.at + interval '1 day'
      FROM generate_series(1, 5000) AS n, (SELECT scheduler.clock() AS at) AS c""")
    read = """SELECT seq_scan, seq_tup_read + idx_tup_fetch AS rows FROM pg_stat_xact_user_tables
      WHERE relname = 'schedules'"""
    async with db.transaction():
        before = await db.fetchrow(read)
        await call(db, await computed(db))
        after = await db.fetchrow(read)

    assert after["seq_scan"] == before["seq_scan"]
    assert after["rows"] - before["rows"] < 20
