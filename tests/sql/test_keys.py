"""Keys: idempotency_key makes one job of many submits; unique_key lets one unfinished job exist."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from .steps import cancel, claim, declare, end, insert, start, status, submit, until_waiting

DAY = timedelta(hours=24).total_seconds()
NOTHING_ON_CONFLICT = "INSERT INTO scheduler.jobs (kind, {0}) VALUES ('k', 'one') ON CONFLICT DO NOTHING RETURNING id"


async def test_b10_twenty_submits_at_once_with_one_key_make_one_job_and_all_get_its_id(db, connect):
    submitters = [await connect() for _ in range(20)]

    ids = await asyncio.gather(*(submit(c, idempotency_key="one") for c in submitters))

    assert len(set(ids)) == 1
    assert await db.fetchval("SELECT array_agg(id) FROM scheduler.jobs") == ids[:1]


async def test_twenty_inserts_at_once_with_one_key_insert_one_row(db, connect):
    submitters = [await connect() for _ in range(20)]

    ids = await asyncio.gather(*(insert(c, idempotency_key="one") for c in submitters))

    assert len([i for i in ids if i is not None]) == 1
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 1


async def test_one_statement_with_a_key_twice_inserts_one_row(db):
    ids = await db.fetch("""INSERT INTO scheduler.jobs (kind, idempotency_key)
        VALUES ('k', 'one'), ('k', 'two'), ('k', 'one') RETURNING id""")

    assert len(ids) == 2


async def test_a_key_is_of_one_kind(db):
    await declare(db, "other")

    assert await insert(db, idempotency_key="one") != await insert(db, "other", idempotency_key="one")


async def test_a_taken_key_is_waited_for_until_its_transaction_ends(db, connect):
    first, second = await connect(), await connect()

    async with first.transaction():
        job_id = await submit(first, idempotency_key="one")
        submitting = asyncio.create_task(submit(second, idempotency_key="one"))
        await until_waiting(db, second)

    assert await submitting == job_id


async def test_a_key_whose_transaction_is_rolled_back_goes_to_who_waits(db, connect):
    first, second = await connect(), await connect()

    transaction = first.transaction()
    await transaction.start()
    job_id = await submit(first, idempotency_key="one")
    submitting = asyncio.create_task(submit(second, idempotency_key="one"))
    await until_waiting(db, second)
    await transaction.rollback()

    assert await submitting not in {job_id, None}


async def test_a_key_is_held_after_its_job_ended_until_the_window_ends(db, clock):
    job = await start(db, idempotency_key="one")
    await end(db, job)
    await clock.advance(DAY - 1)
    assert await submit(db, idempotency_key="one") == job["id"]
    assert await insert(db, idempotency_key="one") is None

    await clock.advance(1)
    assert await submit(db, idempotency_key="one") != job["id"]


async def test_a_key_is_held_while_its_job_is_unfinished_however_long(db, clock):
    job_id = await insert(db, idempotency_key="one")
    await clock.advance(365 * DAY)

    assert await submit(db, idempotency_key="one") == job_id


async def test_a_key_whose_window_ended_goes_to_one_of_two_who_take_it_at_once(db, connect, clock):
    job = await start(db, idempotency_key="one")
    await end(db, job)
    await clock.advance(DAY + 1)
    first, second = await connect(), await connect()

    async with first.transaction():
        job_id = await submit(first, idempotency_key="one")
        submitting = asyncio.create_task(submit(second, idempotency_key="one"))
        await until_waiting(db, second)

    assert await submitting == job_id != job["id"]


async def test_the_window_is_the_kinds(db, clock):
    await declare(db, {"kind": "short", "idempotency_window": 60})
    job = await start(db, "short", idempotency_key="one", queue="default")
    await end(db, job)
    await clock.advance(61)

    assert await insert(db, "short", idempotency_key="one") is not None


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_a_key_is_held_however_its_job_ended(db, ending):
    job = await start(db, idempotency_key="one")
    await end(db, job, ending, retryable=False)

    assert await submit(db, idempotency_key="one") == job["id"]


async def test_a_key_is_free_when_its_job_is_gone(db):
    job_id = await insert(db, idempotency_key="one")
    await cancel(db, job_id)
    await db.execute("DELETE FROM scheduler.jobs_finished WHERE id = $1", job_id)

    assert await insert(db, idempotency_key="one") > job_id


async def test_a_key_is_free_when_its_insert_came_to_nothing_afterwards(db):
    """The key is taken in the trigger, before the row meets the unique key that is in its way."""
    holder = await insert(db, unique_key="u")
    statement = (
        "INSERT INTO scheduler.jobs (kind, unique_key, idempotency_key) VALUES ('k', 'u', 'i') ON CONFLICT DO NOTHING"
    )
    await db.execute(statement)
    await cancel(db, holder)

    job_id = await submit(db, idempotency_key="i")

    assert await status(db, job_id) == "PENDING"
    assert await submit(db, idempotency_key="i") == job_id


async def test_a_key_rolled_back_with_its_job_is_free(db):
    with pytest.raises(asyncpg.CheckViolationError):
        await insert(db, idempotency_key="one", priority=101)

    assert await insert(db, idempotency_key="one") is not None


async def test_in_repeatable_read_a_key_taken_meanwhile_is_a_serialization_failure(db, connect):
    submitter = await connect()

    await submitter.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    await insert(db, idempotency_key="one")

    with pytest.raises(asyncpg.SerializationError):
        await insert(submitter, idempotency_key="one")


async def test_a_unique_key_that_is_held_is_refused_by_name(db):
    await insert(db, unique_key="one")

    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await insert(db, unique_key="one")

    assert caught.value.constraint_name == "unique_key is held by an unfinished job of this kind"


@pytest.mark.parametrize("key", ["unique_key", "idempotency_key"])
async def test_on_conflict_do_nothing_inserts_nothing_for_a_key_that_is_held(db, key):
    first, second = [await db.fetchval(NOTHING_ON_CONFLICT.format(key)) for _ in range(2)]

    assert (first is None, second) == (False, None)


async def test_a_unique_key_is_held_through_retries_and_free_when_its_job_ends(db):
    job = await start(db, unique_key="one")
    await end(db, job, "failed", delay=0)
    assert await db.fetchval(NOTHING_ON_CONFLICT.format("unique_key")) is None

    await db.execute("SELECT scheduler.promote()")
    (again,) = await claim(db)
    await end(db, again)

    assert await insert(db, unique_key="one") is not None


async def test_a_unique_key_is_of_one_kind(db):
    await declare(db, "other")

    assert await insert(db, unique_key="one") != await insert(db, "other", unique_key="one")
