"""A cancel and a verb of the worker meet, each order forced by a transaction that is still open."""

import asyncio

import pytest

from .steps import (
    attempts,
    cancel,
    claim,
    end,
    insert,
    reap,
    release,
    renew,
    row,
    start,
    status,
    statuses,
    until_waiting,
)

# What the worker says of its running job, and where that leaves a job whose cancellation was asked for before.
ENDS = {
    "completed": "COMPLETED",
    "failed": "CANCELLED",
    "snoozed": "CANCELLED",
    "released": "CANCELLED",
    "reaped": "CANCELLED",
}


async def say(worker, job, word):
    """Let the holder of a claim end it; return the ids that are busy."""
    if word == "released":
        return (await release(worker, [job]))["busy"]
    if word == "reaped":
        return [] if (await reap(worker))["reaped"] else [job["id"]]
    return (await end(worker, job, word))["busy"]


async def nobody_holds(db, job_id):
    """Tell whether the job has ended, and no attempt of it is open."""
    found = await row(db, job_id)
    in_both = await db.fetchval("SELECT count(*) FROM scheduler.jobs WHERE id = $1", job_id)
    return (found["worker_id"], found["lease_expires_at"], in_both) == (None, None, 1)


async def test_f50_a_cancel_under_way_is_passed_over_by_a_claim(db, connect):
    job_id, operator = await insert(db), await connect()

    async with operator.transaction():
        assert (await cancel(operator, job_id))["cancelled"] == [job_id]
        assert await claim(db) == []

    assert await claim(db) == []
    assert await nobody_holds(db, job_id)


async def test_f50_a_cancel_behind_a_claim_asks_and_does_not_end(db, connect):
    job_id, worker, operator = await insert(db), await connect(), await connect()

    async with worker.transaction():
        (job,) = await claim(worker)
        cancelling = asyncio.create_task(cancel(operator, job_id))
        await until_waiting(db, operator)

    assert ((await cancelling)["requested"], await status(db, job_id)) == ([job_id], "RUNNING")
    assert (await renew(db, [job]))["cancel"] == [job_id]


async def test_f50_a_renewal_meets_a_cancel_in_either_order_and_hears_of_it(db, connect):
    job, operator, worker = await start(db), await connect(), await connect()

    async with operator.transaction():
        await cancel(operator, job["id"])
        assert (await renew(worker, [job])) == {"lost": [], "busy": [job["id"]], "cancel": []}
    async with worker.transaction():
        assert (await renew(worker, [job]))["cancel"] == [job["id"]]
        cancelling = asyncio.create_task(cancel(operator, job["id"]))
        await until_waiting(db, operator)

    assert (await cancelling)["requested"] == [job["id"]]
    assert (await row(db, job["id"]))["status"] == "RUNNING"


@pytest.mark.parametrize("word", ENDS)
async def test_f50_a_worker_that_ends_behind_a_cancel_is_busy_and_then_ends_as_the_table_says(db, connect, clock, word):
    job, operator = await start(db), await connect()
    await clock.advance(31)

    async with operator.transaction():
        assert (await cancel(operator, job["id"]))["requested"] == [job["id"]]
        assert await say(db, job, word) == [job["id"]]
    assert await say(db, job, word) == []

    assert await status(db, job["id"]) == ENDS[word]
    assert await nobody_holds(db, job["id"])
    assert len(await attempts(db, job["id"])) == (word != "completed")
    assert await claim(db) == []


@pytest.mark.parametrize("word", ENDS)
async def test_f50_a_cancel_behind_an_end_finds_what_that_left(db, connect, clock, word):
    job, worker, operator = await start(db), await connect(), await connect()
    await clock.advance(31)

    async with worker.transaction():
        await say(worker, job, word)
        cancelling = asyncio.create_task(cancel(operator, job["id"]))
        await until_waiting(db, operator)
    told = await cancelling

    if word == "completed":
        assert (told["ended"], await status(db, job["id"])) == ([job["id"]], "COMPLETED")
    else:
        assert (told["cancelled"], await status(db, job["id"])) == ([job["id"]], "CANCELLED")
    assert await nobody_holds(db, job["id"])
    assert (await end(db, job))["lost"] == ([] if word == "completed" else [job["id"]])


async def test_f50_after_a_cancel_is_told_no_later_fence_is_ever_given(db):
    job = await start(db)
    await cancel(db, job["id"])
    await end(db, job, "failed", delay=0)

    assert await claim(db) == []
    assert (await statuses(db, [job["id"]]), (await row(db, job["id"]))["fence"]) == (
        {job["id"]: "CANCELLED"},
        job["fence"],
    )
