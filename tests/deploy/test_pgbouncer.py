"""Behind PgBouncer in transaction mode all works, by polling or with a listener past it, and nothing is left behind."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import asyncpg
import jobs
import pytest
from bouncer import POOL
from witness import asleep, attempts, backends, ended, has_status, insert, insert_many, row, until

from scheduler import JobCancelled, Scheduler
from scheduler.connections import is_pooled, open_connection, open_pool
from scheduler.store import Store

pytestmark = pytest.mark.slow

SOON = timedelta(seconds=60)
DEAF = "notices do not pass a pooler"
TRACKED = {"application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings"}
# PgBouncer puts the above right for each client. jit: asyncpg switches it off and on around its first look at a type.
LEFT = {*TRACKED, "jit"}
PROGRAM = Path(sys.executable).with_name("scheduler")


@pytest.fixture
async def pooled(pooled_dsn):
    """A client behind PgBouncer."""
    async with Scheduler.connect(pooled_dsn) as client:
        yield client


@contextlib.asynccontextmanager
async def every_server_connection(pooled_dsn):
    """Hold all of PgBouncer's connections to this database at once."""
    async with contextlib.AsyncExitStack() as stack:
        held = {}
        for _ in range(POOL):
            connection = await asyncpg.connect(pooled_dsn, statement_cache_size=0)
            stack.push_async_callback(connection.close)
            await stack.enter_async_context(connection.transaction())
            held[await connection.fetchval("SELECT pg_backend_pid()")] = connection
        assert len(held) == POOL
        yield held.values()


async def assert_nothing_is_left_behind(pooled_dsn):
    async with every_server_connection(pooled_dsn) as connections:
        for connection in connections:
            settings = await connection.fetch("SELECT name, setting FROM pg_settings WHERE source = 'session'")
            assert {name for name, _ in settings} <= LEFT, settings
            assert await connection.fetch("SELECT statement FROM pg_prepared_statements") == []
            assert await connection.fetch("SELECT * FROM pg_listening_channels()") == []
        held = "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database"
        assert await connection.fetch(f"{held} WHERE datname = current_database())") == []


@pytest.mark.parametrize("hears_by", ["polling", "a listener past it"])
async def test_f63_workers_behind_pgbouncer_run_jobs_of_every_executor(pooled, pooled_dsn, dsn, db, launch, hears_by):
    listen = {} if hears_by == "polling" else {"SCHEDULER_LISTEN_DSN": dsn}
    workers = [launch(address=pooled_dsn, lease=30, environment=listen) for _ in range(2)]
    for worker in workers:
        await worker.ready()

    handles = [await pooled.submit(jobs.Echo(value=n)) for n in range(100)]
    handles += [await pooled.submit(jobs.EchoInThread(value=n)) for n in range(100)]
    handles += [await pooled.submit(jobs.EchoInProcess(value=n)) for n in range(50)]
    later = [await pooled.submit(jobs.Echo(value=n), delay=timedelta(seconds=1 + n / 50)) for n in range(50)]
    again = [await pooled.submit(jobs.Steer(how=how)) for how in ("fail", "snooze", "retry_after") * 5]
    child = await pooled.submit(jobs.Echo(value="after all"), depends_on=handles[-5:])
    ids = await insert_many(db, 100, "Echo", {"value": 0})
    waiting = await pooled.submit(jobs.Echo(), delay=timedelta(days=1))
    cancelled = await pooled.cancel(waiting)

    results = await asyncio.gather(*(handle.result(SOON) for handle in [*handles, *later]))
    assert results == [*range(100), *range(100), *range(50), *range(50)]
    assert {(await handle.result(SOON))["attempt"] for handle in again} == {2}
    assert await child.result(SOON) == "after all"
    assert {job["status"] for job in (await ended(db, *ids)).values()} == {"COMPLETED"}
    assert cancelled.cancelled == [waiting.id]
    with pytest.raises(JobCancelled):
        await waiting.result(SOON)
    query = "SELECT attempt FROM scheduler.jobs WHERE kind ^@ 'Echo' AND status = 'COMPLETED'"
    assert Counter(found["attempt"] for found in await db.fetch(query)) == {1: 401}
    for worker in workers:
        assert worker.log.count(DEAF) == (1 if hears_by == "polling" else 0)
        assert "Traceback" not in worker.log
        assert "prepared statement" not in worker.log
        worker.send(15)
        assert await worker.exits() == 0
    await assert_nothing_is_left_behind(pooled_dsn)


async def test_f63_eight_workers_share_two_connections(pooled, pooled_dsn, db, work, caplog):
    for _ in range(8):
        await work(pooled_dsn, processes=0, poll=0.2, lease=10)
    ids = await insert_many(db, 400, "Echo") + await insert_many(db, 100, "EchoInThread")

    found = await ended(db, *ids, seconds=60)

    assert Counter((job["status"], job["attempt"]) for job in found.values()) == {("COMPLETED", 1): 500}
    assert len(await backends(db)) <= POOL
    assert "prepared statement" not in caplog.text
    await assert_nothing_is_left_behind(pooled_dsn)


async def test_f63_a_worker_that_listens_past_pgbouncer_is_woken_at_once(pooled_dsn, dsn, db, work):
    await work(pooled_dsn, listen_dsn=dsn, poll=60)
    await asleep(db)

    woken = await ended(db, await insert(db, "Echo"), seconds=30)
    due = await ended(db, await insert(db, "Echo", run_at=await in_seconds(db, 1)), seconds=30)

    assert (woken["status"], due["status"]) == ("COMPLETED", "COMPLETED")
    assert due["started_at"] >= due["run_at"]


async def test_f63_a_worker_that_polls_listens_to_nothing_and_sleeps_for_due_times(pooled_dsn, db, work):
    await work(pooled_dsn, poll=0.2)
    await asleep(db)

    found = await ended(db, await insert(db, "Echo"))
    due = await ended(db, await insert(db, "Echo", run_at=await in_seconds(db, 1)))

    assert (found["status"], due["status"]) == ("COMPLETED", "COMPLETED")
    await assert_nothing_is_left_behind(pooled_dsn)  # no server process that listens


async def in_seconds(db, seconds):
    return await db.fetchval("SELECT clock_timestamp() + make_interval(secs => $1)", float(seconds))


async def test_f63_a_running_job_behind_pgbouncer_hears_of_its_cancellation(pooled, pooled_dsn, db, work, gate):
    gate = gate()
    await work(pooled_dsn, lease=3)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    assert (await pooled.cancel(job_id)).requested == [job_id]

    await gate.noted("stopped")
    await has_status(db, job_id, "CANCELLED")


async def test_f63_nothing_is_lost_when_pgbouncer_is_killed_and_comes_back(pgbouncer, pooled_dsn, db, launch, gate):
    gate = gate()
    workers = [await launch(address=pooled_dsn, lease=30).ready() for _ in range(2)]
    held = [await insert(db, "Wait", {"path": gate.path}) for _ in range(10)]
    await gate.begun(10)
    ids = await insert_many(db, 150, "Short") + await insert_many(db, 50, "EchoInThread")
    await until(lambda: some_have_ended(db), "some jobs should have ended")

    pgbouncer.kill()
    gate.open()  # they end while there is no database
    for worker in workers:
        await worker.says("PostgreSQL cannot be reached")
    ids += await insert_many(db, 50, "Echo")
    pgbouncer.start()

    found = await ended(db, *held, *ids, seconds=60)
    assert {job["status"] for job in found.values()} == {"COMPLETED"}
    assert {job["attempt"] for job in found.values()} == {1}
    assert {found[job_id]["result"] for job_id in held} == {"1"}
    for worker in workers:
        assert "Traceback" not in worker.log


async def some_have_ended(db):
    return await db.fetchval("SELECT EXISTS (SELECT FROM scheduler.jobs_finished)")


async def test_f63_databases_are_migrated_through_pgbouncer_by_three_at_once(pgbouncer, empty_dsn, connect):
    if pgbouncer.process.poll() is not None:
        pgbouncer.start()
    options = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    words = (PROGRAM, "migrate", "--dsn", pgbouncer.address(empty_dsn))
    programs = [await asyncio.create_subprocess_exec(*words, **options) for _ in range(3)]

    outputs = await asyncio.gather(*(program.communicate() for program in programs))

    assert [(program.returncode, error) for program, (_, error) in zip(programs, outputs, strict=True)] == [
        (0, b"")
    ] * 3
    async with Scheduler.connect(empty_dsn) as direct:
        await direct.submit(jobs.Echo())
    await assert_nothing_is_left_behind(pgbouncer.address(empty_dsn))


def test_f63_commands_work_through_pgbouncer(pooled_dsn):
    def run(*words):
        environment = os.environ | {"SCHEDULER_DSN": pooled_dsn, "SCHEDULER_APP": "jobs"}
        done = subprocess.run([PROGRAM, *words], cwd=Path(jobs.__file__).parent, env=environment,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "changed: " in run("declare")
    ids = [run("submit", "Echo", '{"value": 1}').strip() for _ in range(5)]
    assert run("cancel", *ids[:2]) == f"2 jobs cancelled: {', '.join(ids[:2])}\n"
    assert run("jobs", "--json").count('"id"') == 5
    assert "Echo" in run("job", ids[-1])


async def test_a_transaction_of_the_user_behind_pgbouncer_takes_its_jobs_along(pooled, pooled_dsn, db):
    user = await asyncpg.connect(pooled_dsn, statement_cache_size=0)
    transaction = user.transaction()
    await transaction.start()
    gone = await pooled.submit(jobs.Echo(), connection=user)
    await transaction.rollback()
    async with user.transaction():
        kept = await pooled.submit(jobs.Echo(), connection=user)
    await user.close()

    assert await row(db, gone.id) is None
    assert (await row(db, kept.id))["status"] == "PENDING"
    assert await attempts(db, kept.id) == []


async def test_a_pooler_is_noticed_and_a_direct_connection_keeps_its_statements_prepared(pooled_dsn, dsn):
    prepared = "SELECT count(*) FROM pg_prepared_statements"
    counts = {}
    for address in (dsn, pooled_dsn):
        connection = await open_connection(address, name="test")
        noticed = await is_pooled(connection)
        await connection.close()
        pool = await open_pool(address, size=1, name="test")
        await Store(pool).check_schema()
        counts[address] = noticed, await pool.fetchval(prepared)
        await pool.close()

    assert counts == {dsn: (False, 2), pooled_dsn: (True, 0)}


async def test_a_listen_address_that_is_a_pooler_too_is_told(pooled_dsn, work, caplog, db):
    await work(pooled_dsn, listen_dsn=pooled_dsn, poll=0.2)

    assert (await ended(db, await insert(db, "Echo")))["status"] == "COMPLETED"
    await until(lambda: DEAF in caplog.text, "it should be told")
