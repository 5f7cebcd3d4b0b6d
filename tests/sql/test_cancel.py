"""Cancelling: at once what has not started; a running attempt is asked, and its end decides."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from .steps import (
    WORKER,
    attempts,
    cancel,
    claim,
    end,
    insert,
    insert_many,
    promote,
    reap,
    release,
    renew,
    row,
    start,
    status,
    until_waiting,
)

NOTHING = {"cancelled": [], "requested": [], "ended": [], "missing": [], "parents": []}


async def test_what_has_not_started_ends_at_once(db, clock):
    pending, delayed = await insert(db), await insert(db, run_at=await clock.now() + timedelta(hours=1))
    blocked = await insert(db, depends_on=[pending, delayed])

    answer = await cancel(db, pending, delayed, blocked)

    assert answer == NOTHING | {"cancelled": [pending, delayed, blocked], "parents": [pending, delayed]}
    for job_id in (pending, delayed, blocked):
        cancelled = await row(db, job_id)
        assert (cancelled["status"], cancelled["finished_at"], cancelled["unmet"]) == (
            "CANCELLED",
            await clock.now(),
            0,
        )


@pytest.mark.parametrize("ending", ["completed", "failed", "timed_out", "cancelled"])
async def test_what_has_ended_stays_as_it_is(db, ending):
    job = await start(db)
    await end(db, job, ending, retryable=False)
    before = dict(await row(db, job["id"]))

    assert await cancel(db, job["id"]) == NOTHING | {"ended": [job["id"]]}
    assert dict(await row(db, job["id"])) == before


async def test_a_running_job_is_asked_and_goes_on(db, clock):
    job = await start(db)
    asked_at = await clock.now()
    assert await cancel(db, job["id"]) == NOTHING | {"requested": [job["id"]]}
    await clock.advance(5)

    await cancel(db, job["id"])

    running = await row(db, job["id"])
    assert (running["status"], running["cancel_requested_at"]) == ("RUNNING", asked_at)
    assert (await renew(db, [job]))["cancel"] == [job["id"]]


@pytest.mark.parametrize("ending", ["failed", "timed_out", "cancelled", "snoozed"])
async def test_the_next_end_of_a_job_asked_to_cancel_is_cancelled(db, ending):
    job = await start(db)
    await cancel(db, job["id"])

    await end(db, job, ending, error_type="E", error="why")

    ended = await row(db, job["id"])
    assert (ended["status"], ended["error"]) == ("CANCELLED", "E: why")
    assert [a["outcome"] for a in await attempts(db, job["id"])] == [ending]


async def test_a_job_that_completes_first_stays_completed(db):
    job = await start(db)
    await cancel(db, job["id"])

    await end(db, job, result={"a": 1})

    assert ((await row(db, job["id"]))["status"], (await row(db, job["id"]))["result"]) == ("COMPLETED", '{"a": 1}')


async def test_a_released_or_reaped_job_asked_to_cancel_is_cancelled_and_names_its_children(db, clock):
    released, reaped = await insert(db), await insert(db)
    children = [await insert(db, depends_on=[parent]) for parent in (released, reaped)]
    jobs = await claim(db, 2)
    await cancel(db, released, reaped)

    assert (await release(db, jobs[:1]))["parents"] == [released]
    await clock.advance(31)
    assert (await reap(db))["parents"] == [reaped]

    assert [await status(db, job_id) for job_id in (released, reaped)] == ["CANCELLED"] * 2
    assert [await status(db, child) for child in children] == ["BLOCKED"] * 2


async def test_one_call_tells_waiting_running_ended_and_missing_apart(db):
    ended = await start(db)
    await end(db, ended)
    running, waiting = await start(db), await insert(db)

    answer = await cancel(db, running["id"], 4711, ended["id"], waiting, waiting)

    expected = {"cancelled": [waiting], "requested": [running["id"]], "ended": [ended["id"]], "missing": [4711]}
    assert answer == NOTHING | expected


async def test_a_cancel_waits_for_a_claim_under_way_and_asks_its_worker(db, connect):
    job_id, worker, operator = await insert(db), await connect(), await connect()

    async with worker.transaction():
        await claim(worker)
        cancelling = asyncio.create_task(cancel(operator, job_id))
        await until_waiting(db, operator)

    assert (await cancelling)["requested"] == [job_id]


async def test_a_cancel_behind_a_completion_finds_the_job_ended(db, connect):
    job, worker, operator = await start(db), await connect(), await connect()

    async with worker.transaction():
        await end(worker, job)
        cancelling = asyncio.create_task(cancel(operator, job["id"]))
        await until_waiting(db, operator)

    assert await cancelling == NOTHING | {"ended": [job["id"]]}


async def test_a_cancel_behind_a_failure_cancels_the_job_before_its_retry(db, connect):
    job, worker, operator = await start(db), await connect(), await connect()

    async with worker.transaction():
        await end(worker, job, "failed", delay=0)
        cancelling = asyncio.create_task(cancel(operator, job["id"]))
        await until_waiting(db, operator)

    assert (await cancelling)["cancelled"] == [job["id"]]
    await promote(db)
    assert await claim(db) == []


async def test_a_cancel_beside_a_cancel_ends_a_job_once(db, connect):
    ids = await insert_many(db, 50)
    operators = [await connect() for _ in range(4)]

    answers = await asyncio.gather(*(cancel(operator, *ids) for operator in operators))

    assert sorted(job_id for answer in answers for job_id in answer["cancelled"]) == ids
    assert {len(answer["cancelled"] + answer["ended"]) for answer in answers} == {50}
    assert all(answer["missing"] == [] for answer in answers)


async def test_the_worker_of_a_running_job_is_told(db, connect):
    listener, heard = await connect(), asyncio.Queue()
    await listener.add_listener("mine", lambda *call: heard.put_nowait(call[2:]))
    await db.execute(
        "SELECT scheduler.register($1, $2)",
        WORKER,
        '{"host": "h", "pid": 1, "version": "1", "queues": [], "kinds": [], "slots": {}, "channel": "mine"}',
    )
    job = await start(db)

    await cancel(db, job["id"])

    assert await asyncio.wait_for(heard.get(), 10) == ("mine", "cancel")


async def test_a_cancelled_job_frees_its_unique_key(db):
    job_id = await insert(db, unique_key="one")
    await cancel(db, job_id)

    assert await insert(db, unique_key="one") is not None


async def test_a_job_nobody_has_heard_of_is_missing(db):
    assert await cancel(db, 1, 2) == NOTHING | {"missing": [1, 2]}
    assert await cancel(db) == NOTHING
    assert await claim(db, worker=uuid4()) == []
