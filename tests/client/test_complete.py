"""What a handler writes in its own transaction and the end of its job become true together, on every connection."""

import contextlib
import json
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import callers
import psycopg
import pytest
from notes import Note
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from scheduler import Context, InvalidJob, LeaseLost, SchedulerError
from scheduler.transaction import Transaction

WORKER, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
async def job(db):
    """A claimed job, as the context of its handler."""
    await db.execute("""SELECT scheduler.declare('[{"kind": "k"}]')""")
    await db.execute("INSERT INTO scheduler.jobs (kind) VALUES ('k')")
    return await claim(db, WORKER)


async def claim(db, worker):
    row = await db.fetchrow("SELECT * FROM scheduler.claim($1, $1, '{default}', '{k}', 1, '30 s')", worker)
    return Context(
        job_id=row["id"], kind="k", queue="default", tenant="", attempt=row["attempt"], failures=0, fence=row["fence"],
        timeout=60.0, transactions=Transaction,
    )  # fmt: skip


async def taken_over(db, job):
    """Give the job to another worker, as happens when its lease has lapsed."""
    await db.execute(
        "SELECT scheduler.release($1, ARRAY[$2::bigint], ARRAY[$3::bigint])", WORKER, job.job_id, job.fence
    )
    return await claim(db, OTHER)


async def texts(db):
    """What is committed, beside the job itself."""
    return [
        row[0] for row in await db.fetch("SELECT payload ->> 'text' FROM scheduler.jobs WHERE kind = 'client_note'")
    ]


async def ending(db, job):
    row = await db.fetchrow("SELECT status::text, result FROM scheduler.jobs WHERE id = $1", job.job_id)
    return row["status"], row["result"] and json.loads(row["result"])


@asynccontextmanager
async def block(caller, job):
    """Enter the block that the connection demands, in its own thread where it blocks."""
    made = job.transaction(caller.connection)
    if not isinstance(caller, callers.Blocking):
        async with made:
            yield
        return
    await caller.do(made.__enter__)
    try:
        yield
    except Exception as error:
        if not await caller.do(lambda error=error: made.__exit__(type(error), error, error.__traceback__)):
            raise
    else:
        await caller.do(lambda: made.__exit__(None, None, None))


async def complete(caller, job, result=None):
    if isinstance(caller, callers.Blocking):
        await caller.do(lambda: job.complete(caller.connection, result))
    else:
        await job.complete(caller.connection, result)


@pytest.fixture
async def idle(caller):
    """A caller without an open transaction."""
    await caller.rollback()
    return caller


async def test_what_the_block_writes_and_the_end_of_the_job_become_true_together_at_its_end(idle, db, job):
    async with block(idle, job):
        await idle.submit(Note("effect"))
        await complete(idle, job, {"sum": 3})
        within = await texts(db), await ending(db, job)

    assert within == ([], ("RUNNING", None))
    assert (await texts(db), await ending(db, job)) == (["effect"], ("COMPLETED", {"sum": 3}))


async def test_a_block_that_raises_writes_nothing_and_completes_nothing(idle, db, job):
    with pytest.raises(ZeroDivisionError):
        async with block(idle, job):
            await idle.submit(Note("effect"))
            await complete(idle, job)
            raise ZeroDivisionError

    assert (await texts(db), await ending(db, job)) == ([], ("RUNNING", None))


async def test_without_complete_the_block_is_written_while_the_attempt_owns_the_job(idle, db, job):
    async with block(idle, job):
        await idle.submit(Note("effect"))
        settling = "SELECT scheduler.release($1, ARRAY[$2::bigint], ARRAY[$3::bigint]) -> 'busy' @> to_jsonb($2)"
        assert await db.fetchval(settling, WORKER, job.job_id, job.fence)  # nobody takes it away

    assert (await texts(db), await ending(db, job)) == (["effect"], ("RUNNING", None))


async def test_a_stale_attempt_does_not_enter_the_block(idle, db, job):
    await taken_over(db, job)

    with pytest.raises(LeaseLost) as lost:
        async with block(idle, job):
            await idle.submit(Note("never"))

    assert (lost.value.job_id, lost.value.attempt) == (job.job_id, 1)
    assert await texts(db) == []
    async with block(idle, await claimed_anew(db, job)):  # and the connection is as good as before
        await idle.submit(Note("effect"))
    assert await texts(db) == ["effect"]


async def claimed_anew(db, job):
    again = "SELECT fence FROM scheduler.jobs_active WHERE id = $1"
    job.fence = await db.fetchval(again, job.job_id)
    return job


@pytest.mark.parametrize("step", ["transaction", "complete"])
async def test_f67_the_whole_transaction_of_a_stale_attempt_rolls_back_whoever_catches_the_error(caller, db, job, step):
    await taken_over(db, job)
    await caller.submit(Note("before"))

    with pytest.raises(LeaseLost):
        if step == "transaction":
            async with block(caller, job):
                raise AssertionError("entered")
        await complete(caller, job)
    with contextlib.suppress(Exception):  # drivers differ in what they say of it
        await caller.submit(Note("after"))
    with contextlib.suppress(Exception):
        await caller.commit()

    assert (await texts(db), await ending(db, job)) == ([], ("RUNNING", None))


async def test_in_an_open_transaction_the_block_is_a_savepoint_and_its_owner_commits(caller, db, job):
    await caller.submit(Note("before"))
    async with block(caller, job):
        await caller.submit(Note("effect"))
        await complete(caller, job)
    within = await texts(db), await ending(db, job)
    await caller.commit()

    assert within == ([], ("RUNNING", None))
    assert (await texts(db), (await ending(db, job))[0]) == (["before", "effect"], "COMPLETED")


async def test_a_savepoint_that_rolls_back_takes_the_completion_along_and_nothing_else(caller, db, job):
    await caller.submit(Note("before"))
    with pytest.raises(ZeroDivisionError):
        async with block(caller, job):
            await caller.submit(Note("effect"))
            await complete(caller, job)
            raise ZeroDivisionError
    await caller.commit()

    assert (await texts(db), await ending(db, job)) == (["before"], ("RUNNING", None))


async def test_a_job_completes_once_in_a_transaction(idle, db, job):
    with pytest.raises(LeaseLost):
        async with block(idle, job):
            await complete(idle, job)
            await complete(idle, job)

    assert await ending(db, job) == ("RUNNING", None)


@pytest.mark.parametrize("result", ["x" * 70_000, {"at": float("nan")}, object()])
async def test_a_result_that_cannot_be_stored_is_refused_by_name_before_anything_is_sent(connect, db, job, result):
    connection = await connect()
    async with job.transaction(connection):
        with pytest.raises(InvalidJob, match="result"):
            await job.complete(connection, result)
        assert not job.completing
        await job.complete(connection, "smaller")

    assert await ending(db, job) == ("COMPLETED", "smaller")


async def test_a_result_that_only_the_database_finds_too_large_is_refused_with_the_way_out(idle, db, job):
    with pytest.raises(InvalidJob, match="result: is over 64 kB: store it elsewhere and return a reference"):
        async with block(idle, job):
            await complete(idle, job, [1e300] * 300)

    assert await ending(db, job) == ("RUNNING", None)


async def test_the_wrong_block_says_which_is_right(dsn, connect, job):
    with (
        pytest.raises(InvalidJob, match=r"belongs to an event loop: write `async with ctx.transaction\(connection\)`"),
        job.transaction(await connect()),
    ):
        pass
    blocking = psycopg.connect(dsn)
    with pytest.raises(InvalidJob, match=r"blocks: write `with ctx.transaction\(connection\)`"):
        async with job.transaction(blocking):
            pass
    blocking.close()


async def test_what_a_blocking_connection_has_completed_may_be_awaited_all_the_same(dsn, db, job):
    with psycopg.connect(dsn) as blocking:
        await job.complete(blocking, 1)

    assert await ending(db, job) == ("COMPLETED", 1)


async def test_a_copy_of_a_django_connection_is_refused_as_django_would_begin_on_the_original(dsn, sync_scheduler, job):
    async with callers.BLOCKING["Django"](dsn, None, sync_scheduler) as caller:
        await caller.rollback()
        copy = await caller.do(caller.connection.copy)

        with pytest.raises(InvalidJob, match=r"this one is a copy: use django.db.connection, or connections\[alias\]"):
            await caller.do(job.transaction(copy).__enter__)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_connection_that_commits_each_statement_is_refused_before_anything_is_written(dsn, db, job, driver):
    engine = create_async_engine(dsn.replace("postgresql", f"postgresql+{driver}", 1), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection, AsyncSession(engine) as session:
        for given in (connection, session):
            with pytest.raises(InvalidJob, match="AUTOCOMMIT: take one of another isolation level"):
                async with job.transaction(given):
                    await job.complete(given)
    await engine.dispose()

    assert await ending(db, job) == ("RUNNING", None)


@pytest.mark.parametrize("step", ["transaction", "complete"])
async def test_what_is_no_connection_is_refused(dsn, job, step):
    with pytest.raises(InvalidJob, match="take a connection from a pool or an engine"):
        getattr(job, step)(asyncpg.create_pool(dsn, min_size=0))

    assert not job.completing


def test_a_context_made_outside_a_worker_says_so(job):
    job._transactions = None

    with pytest.raises(SchedulerError, match="this context belongs to no worker"):
        job.transaction(object())


async def test_a_role_that_may_not_complete_is_told_what_to_grant(db, connect, dsn, job):
    submitter = await connect()
    await submitter.execute("SET ROLE scheduler_submitter")

    with pytest.raises(SchedulerError, match="GRANT scheduler_submitter, scheduler_worker"):
        async with job.transaction(submitter):
            pass
