"""The epoch: fences keep growing across restores and promotions, which attempts alone would not survive."""

import asyncio
from uuid import UUID

import pytest

from .steps import claim, insert, insert_many, release, renew, start

EPOCH = "SELECT epoch FROM scheduler.epoch"


async def test_the_first_claim_learns_where_it_is_and_counts_no_change(db):
    await start(db)

    epoch = await db.fetchrow("SELECT epoch, timeline, system_identifier FROM scheduler.epoch")
    here = await db.fetchval("SELECT system_identifier FROM pg_control_system()")
    assert tuple(epoch) == (1, "00000001", here)


async def test_a_new_epoch_makes_every_later_fence_greater(db):
    await insert(db)
    for _ in range(3):
        (job,) = await claim(db)
        await release(db, [job])

    assert await db.fetchval("SELECT scheduler.new_epoch()") == 2
    fresh = await start_another(db)

    assert fresh["fence"] > job["fence"]
    assert fresh["fence"] == 2 << 32 | 1


async def start_another(db):
    job_id = await insert(db, priority=100)
    (job,) = await claim(db)
    assert job["id"] == job_id
    return job


@pytest.mark.parametrize(
    "lost", ["timeline = '0000002A'", "system_identifier = 42", "timeline = 'x', system_identifier = 4"]
)
async def test_another_timeline_or_cluster_raises_the_epoch_once_for_all(db, connect, lost):
    await start(db)
    await insert_many(db, 40)
    await db.execute(f"UPDATE scheduler.epoch SET {lost}")
    workers = [await connect() for _ in range(10)]

    claims = await asyncio.gather(*(claim(worker, 2, worker=UUID(int=n + 1)) for n, worker in enumerate(workers)))

    assert {job["fence"] >> 32 for jobs in claims for job in jobs} == {2}
    assert await db.fetchval(EPOCH) == 2


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


async def test_a_worker_without_other_rights_learns_the_epoch_and_claims(db, login):
    await insert(db)

    assert await claim(await login("scheduler_worker"))

    assert await db.fetchval("SELECT timeline IS NOT NULL AND system_identifier IS NOT NULL FROM scheduler.epoch")
