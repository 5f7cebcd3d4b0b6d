"""The epoch: fences keep growing across restores and promotions, which attempts alone would not survive."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import pytest

from .steps import claim, end, insert, insert_many, outcome, reap, release, renew, settle, start

EPOCH = "SELECT epoch FROM scheduler.epoch"


async def test_a_database_knows_from_its_migration_on_where_it_is(db):
    await start(db)

    epoch = await db.fetchrow("SELECT epoch, timeline, system_identifier FROM scheduler.epoch")
    here = await db.fetchval("SELECT system_identifier FROM pg_control_system()")
    assert tuple(epoch) == (1, "00000001", here)


async def test_a_new_epoch_makes_every_later_fence_greater(db):
    await insert(db)
    for _ in range(3):
        (job,) = await claim(db)
        await release(db, [job])

    epoch = await db.fetchval("SELECT scheduler.new_epoch()")
    fresh = await start_another(db)

    assert fresh["fence"] > job["fence"]
    assert fresh["fence"] == epoch << 32 | 1


async def start_another(db):
    job_id = await insert(db, priority=100)
    (job,) = await claim(db)
    assert job["id"] == job_id
    return job


@pytest.mark.parametrize(
    "lost", ["timeline = '0000002A'", "system_identifier = 42", "timeline = 'x', system_identifier = 4"]
)
async def test_another_timeline_or_cluster_raises_the_epoch_once_for_all(db, connect, clock, lost):
    await start(db)
    await insert_many(db, 40)
    await db.execute(f"UPDATE scheduler.epoch SET {lost}")
    workers = [await connect() for _ in range(10)]

    claims = await asyncio.gather(*(claim(worker, 2, worker=UUID(int=n + 1)) for n, worker in enumerate(workers)))

    assert {job["fence"] >> 32 for jobs in claims for job in jobs} == {await db.fetchval(EPOCH)}
    assert await db.fetchval(EPOCH) == await seconds_since_2020(db)


async def seconds_since_2020(db):
    return await db.fetchval("SELECT extract(epoch FROM scheduler.clock() - '2020-01-01 00:00+00')::bigint")


async def test_of_two_standbys_that_saw_nothing_of_each_other_the_later_promoted_one_has_the_greater_epoch(db, clock):
    """Both go on from the same row, as two copies of the database do."""
    await start(db)
    promote = "UPDATE scheduler.epoch SET epoch = 1, timeline = '00000000'"
    await db.execute(promote)
    first = await start_another(db)
    await clock.advance(1)
    await db.execute(promote)

    second = await start_another(db)

    assert second["fence"] > first["fence"]
    assert second["fence"] >> 32 == (first["fence"] >> 32) + 1


@pytest.mark.parametrize("moment", [datetime(2019, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)])
async def test_f71_a_clock_that_is_wrong_by_years_stops_no_fence_from_growing(db, clock, moment):
    fences = [(await start_another(db))["fence"]]
    for at in [await clock.now(), moment, moment, await clock.now()]:
        await clock.set(at)
        await db.execute("SELECT scheduler.new_epoch()")
        fences.append((await start_another(db))["fence"])

    assert fences == sorted(set(fences))
    assert fences[-1] < 2**63


async def test_f71_a_clock_stepped_forward_costs_a_lease_once_and_the_old_fence_is_refused(db, clock):
    old = await start(db)
    await clock.advance(60)
    assert (await reap(db))["reaped"] == [old["id"]]

    (again,) = await claim(db, worker=UUID(int=2))

    assert again["fence"] > old["fence"]
    assert (await renew(db, [old]))["lost"] == (await end(db, old))["lost"] == [old["id"]]
    assert (await reap(db))["reaped"] == []
    assert (await settle(db, outcome(again), worker=UUID(int=2)))["lost"] == []


async def test_f71_a_clock_stepped_back_keeps_a_lost_job_no_longer_than_the_step_and_a_lease(db, clock):
    kept, left = await start(db), await start(db)
    await clock.advance(-60)

    assert (await renew(db, [kept]))["lost"] == []
    await clock.advance(31)
    assert (await reap(db))["reaped"] == [kept["id"]]  # its renewal counts by the clock as it is now
    await clock.advance(60)
    assert (await reap(db))["reaped"] == [left["id"]]


async def test_a_change_of_epoch_takes_no_running_job_from_its_worker(db):
    job = await start(db)
    await db.execute("SELECT scheduler.new_epoch()")

    assert (await renew(db, [job]))["lost"] == []


async def test_the_writes_of_a_worker_from_before_a_failover_are_refused(db):
    """An asynchronous standby without the newest claim was promoted; the attempt is handed out again."""
    zombie = await start(db)
    await db.execute("""UPDATE scheduler.jobs_active
        SET status = 'PENDING', attempt = 0, fence = NULL, worker_id = NULL, lease_expires_at = NULL, request = NULL""")
    await db.execute("UPDATE scheduler.epoch SET timeline = '00000000'")

    (again,) = await claim(db)

    assert again["attempt"] == zombie["attempt"]
    assert again["fence"] > zombie["fence"]
    assert (await renew(db, [zombie]))["lost"] == [zombie["id"]]


async def test_where_the_migration_was_not_told_the_first_claim_learns_it(db):
    await db.execute("UPDATE scheduler.epoch SET timeline = NULL, system_identifier = NULL")

    await start(db)

    epoch = await db.fetchrow("SELECT epoch, timeline FROM scheduler.epoch")
    assert (epoch["epoch"] > 1, epoch["timeline"]) == (True, "00000001")


async def test_a_worker_without_other_rights_learns_the_epoch_and_claims(db, login):
    await insert(db)

    assert await claim(await login("scheduler_worker"))

    assert await db.fetchval("SELECT timeline IS NOT NULL AND system_identifier IS NOT NULL FROM scheduler.epoch")
