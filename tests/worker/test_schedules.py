"""Workers fire schedules: at their time, once, and their handlers know for which time."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
import recurring_jobs
from wire import Wire
from witness import until

from scheduler import Schedule, Scheduler, SyncScheduler
from scheduler.schedules import SCHEDULES
from worker.duties import FIRES, Firer

KINDS = [recurring_jobs.TellTime, recurring_jobs.TellTimeInThread, recurring_jobs.TellTimeInProcess]
SECOND = timedelta(seconds=1)


async def completed(db, name, number=1):
    """Wait until so many jobs of a schedule have completed; return them, oldest first."""
    query = """SELECT j.* FROM scheduler.jobs_finished j JOIN scheduler.schedules s ON s.id = j.schedule_id
      WHERE s.name = $1 AND j.status = 'COMPLETED' ORDER BY j.fire_time, j.id"""

    async def enough():
        found = await db.fetch(query, name)
        return found if len(found) >= number else None

    return await until(enough, f"{number} jobs of {name} should have completed")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_handler_knows_for_which_time_its_job_was_made(db, work, scheduler, kind):
    await work(kinds=[kind])
    await scheduler.schedule("tell", kind(), every=SECOND)

    plain = await scheduler.submit(kind())
    made = await completed(db, "tell")

    assert made[0]["result"] == f'"{made[0]["fire_time"].isoformat()}"'
    assert made[0]["fire_time"].tzinfo is not None
    assert await plain.result(timedelta(minutes=1)) is None


async def test_a_schedule_made_while_a_worker_sleeps_long_is_found_and_an_edit_too(db, work, scheduler):
    await work(kinds=KINDS, poll=60)
    await scheduler.schedule("s", KINDS[0](), every=SECOND)
    await completed(db, "s")

    await scheduler.schedule("s", KINDS[0](), cron="* * * * * *", tenant="edited")

    async def edited():
        return [job for job in await completed(db, "s") if job["tenant"] == "edited"]

    await until(edited, "a job should have been made by the new definition")


async def test_a_declaration_beside_the_job_is_declared_by_a_worker_that_runs_it_and_by_no_other(db, work):
    await work(kinds=KINDS)
    assert await db.fetchval("SELECT count(*) FROM scheduler.schedules") == 0

    await work(kinds=[recurring_jobs.Tick])
    made = await completed(db, "ticks", 3)

    assert {later["fire_time"] - job["fire_time"] for job, later in itertools.pairwise(made)} == {SECOND}
    assert await db.fetchval("SELECT jsonb_array_length(declared) FROM scheduler.schedules") == 1


async def test_nothing_fires_before_its_time_and_a_worker_asks_little_for_it(db, dsn, work, scheduler):
    await scheduler.schedule("s", KINDS[0](), every=SECOND)
    wire = await Wire(dsn).open()
    worker = await work(wire.dsn, kinds=KINDS)
    await completed(db, "s")
    before, fired = wire.calls["fire"], await db.fetchval("SELECT count(*) FROM scheduler.jobs")

    await completed(db, "s", fired + 4)

    asked = wire.calls["fire"] - before
    made = await db.fetchval("SELECT count(*) FROM scheduler.jobs") - fired
    await worker.stop()
    await wire.close()
    assert asked <= 4 * made + 4  # one at the time, one that was late for the computation, and the poll
    assert await db.fetchval("SELECT min(submitted_at - fire_time) >= interval '0' FROM scheduler.jobs")


async def test_a_schedule_that_cannot_be_computed_stops_no_other(db, work, scheduler):
    await work(kinds=KINDS)
    await db.execute(
        """SELECT scheduler.upsert_schedule('bad', '{"kind": "TellTime", "cron": "@daily", "time_zone": "No/Where"}')"""
    )
    await scheduler.schedule("good", KINDS[0](), every=SECOND)

    await completed(db, "good", 2)

    assert "no IANA zone" in await db.fetchval("SELECT error FROM scheduler.schedules WHERE name = 'bad'")


async def test_after_a_downtime_the_jobs_of_many_backfills_are_made_in_transactions_of_bounded_size(
    db, clock, scheduler
):
    """All at once took longer than a call may take; it was cut off then, and tried again, for ever."""
    await db.execute('SELECT scheduler.declare(\'[{"kind": "k"}]\')')
    await db.execute("""SELECT scheduler.upsert_schedule('s' || n, '{"kind": "k", "every": 1, "misfire": "backfill",
      "backfill_limit": 300}') FROM generate_series(1, 10) AS n""")
    firer = Firer(scheduler.store, 1.0, lambda: None)
    await firer.fire()
    await firer.fire()
    await clock.advance(3600)
    made = [0]

    while made[-1] < 3000:
        await firer.fire()
        made.append(await db.fetchval("SELECT count(*) FROM scheduler.jobs"))

    assert max(later - before for before, later in itertools.pairwise(made)) <= 2 * FIRES


async def test_a_program_makes_steers_and_deletes_schedules_with_and_without_await(db, dsn, scheduler):
    import asyncio

    def blocking():
        with SyncScheduler.connect(dsn) as client:
            client.schedule("s", KINDS[0](), cron="0 3 * * *", time_zone="Europe/Berlin", starts_at=datetime.now(UTC))

    await asyncio.to_thread(blocking)

    (row,) = await scheduler.admin.schedules()
    assert (row["name"], row["cron"], row["time_zone"], row["paused"]) == ("s", "0 3 * * *", "Europe/Berlin", False)
    assert await scheduler.admin.pause_schedule("s") is False
    assert await scheduler.admin.pause_schedule("s", paused=False) is True
    job_id = await scheduler.admin.run_schedule("s")
    assert (await scheduler.job(job_id))["schedule_id"] == row["id"]
    assert await scheduler.admin.delete_schedule("s") is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "61 * * * *"}, "cron: '61 .*': bad minute"),
        ({"cron": "@daily", "time_zone": "Berlin"}, "time_zone: 'Berlin' is no IANA zone"),
        ({}, "cron: must be given, or every, and not both"),
        ({"every": SECOND / 2}, "every: must lie between 1 second and 366 days"),
        ({"every": SECOND, "starts_at": datetime(2030, 1, 1)}, "starts_at: must have a time and a time zone"),  # noqa: DTZ001 - that is it
        ({"every": SECOND, "colour": "red"}, "colour: is no option of a schedule"),
        ({"every": SECOND, "priority": "high"}, "priority: must be a JSON number"),
        ({"every": SECOND, "tenant": "a\0"}, "tenant"),
        ({"every": SECOND, "tenant": "\ud800"}, "tenant"),
    ],
)
async def test_what_a_program_gets_wrong_is_one_clear_error(scheduler, options, words):
    from scheduler import InvalidJob

    with pytest.raises(InvalidJob, match=words):
        await scheduler.schedule("s", KINDS[0](), **options)


def test_one_name_cannot_be_declared_twice_with_different_settings():
    from scheduler import ConfigurationError

    try:
        Schedule("twice", KINDS[0](), every=SECOND)
        Schedule("twice", KINDS[0](), every=SECOND)
        with pytest.raises(ConfigurationError, match="schedule twice is declared twice"):
            Schedule("twice", KINDS[0](), every=2 * SECOND)
    finally:
        del SCHEDULES["twice"]


async def test_declare_tells_of_schedules_too(dsn):
    async with Scheduler.connect(dsn) as client:
        first = await client.declare([], [], [SCHEDULES["ticks"]])
        second = await client.declare([], [], [SCHEDULES["ticks"]])

    assert (first.changed, second.changed) == (["schedule ticks"], [])
