"""A handler's own transaction: it is written by an attempt that owns the job, or not at all."""

import asyncio
import json
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from .steps import (
    attempts,
    cancel,
    claim,
    complete,
    end,
    hold,
    insert,
    outcome,
    reap,
    release,
    renew,
    resolve_all,
    row,
    settle,
    start,
    status,
    until_waiting,
)

OTHER = UUID(int=2)
LOST = "LW001"


@pytest.fixture
async def user(db, connect):
    """A handler's connection, and a table of its own."""
    await db.execute("CREATE TABLE effects (job_id bigint)")
    return await connect()


async def effects(db):
    return [row["job_id"] for row in await db.fetch("SELECT job_id FROM effects")]


async def taken_over(db, clock, job):
    """Let the lease lapse and another worker claim the job."""
    await clock.advance(31)
    await reap(db)
    (again,) = await claim(db, worker=OTHER)
    assert again["id"] == job["id"]
    return again


@pytest.mark.parametrize("verb", [hold, complete])
async def test_a_stale_attempt_has_its_whole_transaction_refused(db, clock, user, verb):
    job = await start(db)
    again = await taken_over(db, clock, job)

    with pytest.raises(asyncpg.PostgresError, match=r"attempt 1 of job \d+ no longer owns the job") as refused:
        async with user.transaction():
            await user.execute("INSERT INTO effects VALUES ($1)", job["id"])
            await verb(user, job)

    assert refused.value.sqlstate == LOST
    assert await effects(db) == []
    assert (await row(db, job["id"]))["fence"] == again["fence"]


@pytest.mark.parametrize("ending", ["completed", "failed", "released", "cancelled"])
async def test_an_attempt_that_has_ended_holds_nothing(db, user, ending):
    job = await start(db)
    await (release(db, [job]) if ending == "released" else end(db, job, ending))

    with pytest.raises(asyncpg.PostgresError) as refused:
        await hold(user, job)

    assert refused.value.sqlstate == LOST


@pytest.mark.parametrize("verb", [hold, complete])
async def test_b29_a_job_that_does_not_run_is_neither_held_nor_completed_and_the_error_says_so(db, user, verb):
    running = await start(db)
    done, failed = [await start(db) for _ in range(2)]
    await end(db, done), await end(db, failed, "failed", retryable=False)
    ids = [
        await insert(db),
        await insert(db, run_at=datetime(9000, 1, 1, tzinfo=UTC)),
        await insert(db, depends_on=[running["id"]]),
        done["id"],
        failed["id"],
        running["id"],
        4711,
    ]
    before = await db.fetch("SELECT * FROM scheduler.jobs ORDER BY id")

    for job_id in ids:
        fence = done["fence"] if job_id != running["id"] else running["fence"] + 1
        with pytest.raises(asyncpg.PostgresError, match=f"job {job_id} no longer owns the job") as refused:
            await verb(user, {"id": job_id, "fence": fence})
        assert refused.value.sqlstate == LOST

    assert await db.fetch("SELECT * FROM scheduler.jobs ORDER BY id") == before


async def test_nobody_takes_a_job_from_a_transaction_that_holds_it(db, clock, user):
    job = await start(db)
    async with user.transaction():
        await hold(user, job)
        await clock.advance(31)

        assert (await reap(db))["reaped"] == []
        assert (await end(db, job))["busy"] == [job["id"]]
        assert (await renew(db, [job])) == {"lost": [], "busy": [], "cancel": []}
        assert (await cancel(db, job["id"]))["requested"] == [job["id"]]

    assert await status(db, job["id"]) == "RUNNING"


async def test_a_transaction_that_waits_for_the_reaper_is_refused_once_the_job_is_gone(db, connect, clock, user):
    job, reaper = await start(db), await connect()
    await clock.advance(31)
    async with reaper.transaction():
        await reap(reaper)
        holding = asyncio.create_task(hold(user, job))
        await until_waiting(db, user)

    with pytest.raises(asyncpg.PostgresError) as refused:
        await holding

    assert refused.value.sqlstate == LOST


async def test_what_a_transaction_wrote_and_the_end_of_its_job_become_true_together(db, user):
    job = await start(db)

    async with user.transaction():
        await hold(user, job)
        await user.execute("INSERT INTO effects VALUES ($1)", job["id"])
        await complete(user, job, {"sum": 3})
        assert await status(db, job["id"]) == "RUNNING"

    ended = await row(db, job["id"])
    assert (ended["status"], json.loads(ended["result"])) == ("COMPLETED", {"sum": 3})
    assert await effects(db) == [job["id"]]


async def test_a_transaction_that_rolls_back_completes_nothing(db, user):
    job = await start(db)
    transaction = user.transaction()
    await transaction.start()
    await complete(user, job)
    await transaction.rollback()

    assert (await end(db, job, "failed", retryable=False))["lost"] == []

    assert await status(db, job["id"]) == "FAILED"


NOT_COMMITTED = {"error_type": "NotCommitted"}


@pytest.mark.parametrize("ending", ["failed", "timed_out", "cancelled", "snoozed", "completed"])
async def test_however_the_attempt_ends_after_its_transaction_the_job_is_completed_and_its_children_are_named(
    db, user, ending
):
    job = await start(db)
    child = await insert(db, depends_on=[job["id"]])
    await complete(user, job, 1)

    answer = await settle(db, outcome(job, ending))

    assert (answer["lost"], answer["busy"], answer["parents"]) == ([], [], [job["id"]])
    assert answer["became"] == {str(job["id"]): "COMPLETED"}
    await resolve_all(db, answer["parents"])
    assert (await status(db, child), await status(db, job["id"])) == ("PENDING", "COMPLETED")
    assert json.loads((await row(db, job["id"]))["result"]) == 1
    assert await attempts(db, job["id"]) == []
    assert (await settle(db, outcome(job, ending)))["parents"] == []


async def test_while_the_transaction_is_open_the_end_of_the_attempt_is_undecided(db, user):
    job = await start(db)
    async with user.transaction():
        await complete(user, job)
        assert (await settle(db, outcome(job, "failed", **NOT_COMMITTED)))["busy"] == [job["id"]]

    answer = await settle(db, outcome(job, "failed", **NOT_COMMITTED))

    assert answer["became"] == {str(job["id"]): "COMPLETED"}


async def test_an_attempt_whose_transaction_rolled_back_fails_as_it_says(db, user):
    job = await start(db)
    transaction = user.transaction()
    await transaction.start()
    await complete(user, job)
    await transaction.rollback()

    answer = await settle(db, outcome(job, "failed", **NOT_COMMITTED))

    assert answer["became"] == {str(job["id"]): "DELAYED"}
    assert (await attempts(db, job["id"]))[0]["error_type"] == "NotCommitted"


async def test_a_job_completes_once_in_one_transaction(db, user):
    job = await start(db)

    with pytest.raises(asyncpg.PostgresError) as refused:
        async with user.transaction():
            await complete(user, job)
            await complete(user, job)

    assert refused.value.sqlstate == LOST
    assert await status(db, job["id"]) == "RUNNING"


async def test_completing_waits_for_a_renewal_under_way(db, connect, user):
    job, keeper = await start(db), await connect()
    async with keeper.transaction():
        await renew(keeper, [job])
        completing = asyncio.create_task(complete(user, job))
        await until_waiting(db, user)

    await completing

    assert await status(db, job["id"]) == "COMPLETED"


async def test_a_result_that_is_too_large_refuses_the_transaction(db, user):
    job = await start(db)

    with pytest.raises(asyncpg.CheckViolationError, match="result is over 64 kB"):
        await complete(user, job, "x" * 70_000)

    assert await status(db, job["id"]) == "RUNNING"


async def test_completing_needs_to_see_what_others_commit(db, user):
    job = await start(db)

    with pytest.raises(asyncpg.PostgresError, match="complete needs READ COMMITTED"):
        async with user.transaction(isolation="repeatable_read"):
            await complete(user, job)


@pytest.mark.parametrize("verb", ["hold", "complete"])
async def test_a_submitter_neither_holds_nor_completes(login, db, verb):
    job, submitter = await start(db), await login("scheduler_submitter")

    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await submitter.execute(f"SELECT scheduler.{verb}($1, $2)", job["id"], job["fence"])
