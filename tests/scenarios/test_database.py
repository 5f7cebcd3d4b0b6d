"""The database makes trouble under a running worker: nothing is lost, no job is charged, and it is not asked often."""

import asyncio
import random
import re
import time
from datetime import timedelta

import asyncpg
import jobs
import pytest
from wire import Wire
from witness import asleep, attempts, backends, cpu_seconds, ended, insert, insert_many, row, until

OURS = "application_name LIKE 'scheduler-worker%' AND datname = current_database()"
SOON = timedelta(minutes=1)


@pytest.fixture
async def wire(dsn):
    wire = await Wire(dsn).open()
    yield wire
    await wire.close()


async def terminate(db, which=OURS):
    return await db.fetch(f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {which}")


async def assert_nothing_was_charged(db, ids, seconds=60):
    found = await ended(db, *ids, seconds=seconds)
    ends = {(job["status"], job["failures"], job["crashes"]) for job in found.values()}
    assert ends == {("COMPLETED", 0, 0)}
    return found


@pytest.mark.slow
async def test_f36_a_worker_whose_connections_are_terminated_at_random_goes_on(db, launch):
    process = await launch(lease=10, **{"async": 10}).ready()
    ids = await insert_many(db, 1000, "Short") + await insert_many(db, 200, "EchoInThread")
    roles = ("scheduler-worker", "scheduler-worker keeper", "scheduler-worker listener")
    chance, hit = random.Random(36), dict.fromkeys(roles, 0)

    async def some_role_is_there():
        return await db.fetchrow(
            f"SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND {OURS} ORDER BY random() LIMIT 1", role
        )

    for n in range(30):
        role = roles[n % 3]
        victim = await until(some_role_is_there, f"there should be a connection of {role}")
        hit[role] += await db.fetchval("SELECT pg_terminate_backend($1)", victim["pid"])
        await asyncio.sleep(chance.uniform(0.05, 0.3))  # how often, not a wait

    found = await assert_nothing_was_charged(db, ids, 120)
    assert min(hit.values()) >= 8, hit
    assert sum(job["attempt"] - 1 for job in found.values()) == 0  # what a lost reply took is fetched again
    await until(lambda: backends(db, "scheduler-worker listener"), "the listener should be back")
    assert process.popen.poll() is None
    assert "Traceback" not in process.log


async def test_f37_b60_a_listener_that_is_killed_is_replaced_and_jobs_start_within_the_poll(db, work):
    await work(poll=1)
    await asleep(db)
    (old,) = await backends(db, "scheduler-worker listener")

    await terminate(db, f"pid = {old}")
    job = await ended(db, await insert(db, "Echo"))

    assert (job["started_at"] - job["submitted_at"]).total_seconds() < 1.2 + 10
    (new,) = await until(lambda: backends(db, "scheduler-worker listener"), "it should be back")
    assert new != old

    async def hears():
        return await db.fetchval("SELECT query ~ 'LISTEN' FROM pg_stat_activity WHERE pid = $1", new)

    await until(hears, "it should listen again")


@pytest.mark.slow
async def test_f37_b60_a_listener_whose_connection_swallows_is_replaced_and_jobs_start_within_the_poll(
    db, wire, launch
):
    process = await launch(environment={"SCHEDULER_LISTEN_DSN": wire.dsn}).ready()
    await asleep(db)
    asked = wire.asked

    wire.swallow()
    job = await ended(db, await insert(db, "Echo"))

    assert (job["started_at"] - job["submitted_at"]).total_seconds() < 1.2 + 10
    await until(lambda: wire.asked > asked, "it should be replaced", 90)
    assert "Traceback" not in process.log


@pytest.mark.slow
async def test_b51_connections_that_swallow_are_replaced_and_what_runs_keeps_its_lease(db, wire, launch, gate):
    gate = gate()
    process = await launch(address=wire.dsn, lease=15).ready()
    held = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    await asleep(db)

    wire.swallow()
    gate.open()
    ids = [held, *await insert_many(db, 10, "Echo")]

    found = await assert_nothing_was_charged(db, ids, 120)
    assert {job["attempt"] for job in found.values()} == {1}
    assert "Traceback" not in process.log


@pytest.mark.parametrize("database", ["refusing", "starting up"])
@pytest.mark.slow
async def test_b18_an_outage_meets_few_knocks_and_little_work_and_is_over_soon(db, wire, launch, gate, database):
    gate, seconds = gate(), 8
    process = await launch(address=wire.dsn, lease=60, **{"async": 50}).ready()
    held = await insert_many(db, 40, "Wait", {"path": gate.path})
    await gate.begun(40)
    wire.refuses = (
        True if database == "refusing" else b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
    )
    wire.cut()
    gate.open()  # 40 outcomes for a database that is away
    await process.says("PostgreSQL cannot be reached")
    asked, used, began = wire.asked, cpu_seconds(process.pid), time.monotonic()

    await asyncio.sleep(seconds)  # a measurement, not a wait

    knocks, took = wire.asked - asked, time.monotonic() - began
    used = cpu_seconds(process.pid) - used
    wire.refuses = False
    found = await assert_nothing_was_charged(db, [*held, *await insert_many(db, 10, "Echo")])
    assert {job["attempt"] for job in found.values()} == {1}
    assert 2 <= knocks <= 5 * took
    assert used < 0.3 * took
    assert "Traceback" not in process.log


async def test_a_read_only_database_charges_no_job_and_is_left_when_it_writes_again(db, connect, launch, gate):
    gate, name = gate(), await db.fetchval("SELECT current_database()")
    process = await launch(lease=30).ready()
    held = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await terminate(db)
    gate.open()
    await process.says("cannot execute")
    await process.says("settle: PostgreSQL cannot be reached")
    ids = [held, await insert(db, "Echo")]  # this connection is older
    assert (await row(db, held))["status"] == "RUNNING"
    await db.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await terminate(db)

    found = await assert_nothing_was_charged(db, ids)
    assert {job["attempt"] for job in found.values()} == {1}
    assert "Traceback" not in process.log


async def test_too_many_connections_charge_no_job(db, dsn, launch, gate):
    gate, database = gate(), await db.fetchval("SELECT current_database()")
    user = f"u_{database[-12:]}"
    await db.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE scheduler_worker")
    try:
        address = re.sub(r"//[^@]*@", f"//{user}:pw@", dsn)
        process = await launch(address=address, lease=30).ready()
        held = await insert(db, "Wait", {"path": gate.path})
        await gate.begun()

        await db.execute(f"ALTER ROLE {user} CONNECTION LIMIT 0")
        await terminate(db)
        gate.open()
        await process.says("too many connections")
        ids = [held, await insert(db, "Echo")]
        await process.says("settle: PostgreSQL cannot be reached")
        await db.execute(f"ALTER ROLE {user} CONNECTION LIMIT -1")

        found = await assert_nothing_was_charged(db, ids)
        assert {job["attempt"] for job in found.values()} == {1}
        assert "Traceback" not in process.log
    finally:
        if process:
            process.end()
        await db.execute(f"DROP ROLE {user}")


@pytest.mark.parametrize("state", ["deadlock_detected", "serialization_failure"])
async def test_deadlocks_and_serialization_failures_are_nobodys(scheduler, db, launch, state):
    await db.execute(f"""
        CREATE SEQUENCE scheduler.bad_luck;
        CREATE FUNCTION scheduler.bad_luck() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
          IF nextval('scheduler.bad_luck') % 7 = 0 THEN RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'bad luck';
          END IF; RETURN NULL; END $$;
        CREATE TRIGGER bad_luck AFTER INSERT OR UPDATE OR DELETE ON scheduler.jobs_active
        FOR EACH STATEMENT EXECUTE FUNCTION scheduler.bad_luck()""")
    process = await launch(lease=30).ready()

    handles = [await scheduler.submit(jobs.Echo(value=n)) for n in range(30)]
    handles += [await scheduler.submit(jobs.Echo(value=n), delay=timedelta(seconds=0.5)) for n in range(5)]
    results = await asyncio.gather(*(handle.result(SOON) for handle in handles))

    assert results == [*range(30), *range(5)]
    found = await assert_nothing_was_charged(db, [handle.id for handle in handles])
    assert {job["attempt"] for job in found.values()} == {1}
    assert await db.fetchval("SELECT last_value FROM scheduler.bad_luck") > 30
    assert "Traceback" not in process.log


async def add_a_column(db, table):
    while True:
        try:
            return await db.execute(f"ALTER TABLE {table} ADD COLUMN of_the_next_version int")
        except asyncpg.DeadlockDetectedError:  # with a verb, which locks a partition first and then the table
            continue


async def test_f64_a_changed_table_under_prepared_statements_reaches_nobody(scheduler, connect, db, work, caplog):
    await work()
    user = await connect()
    async with user.transaction():
        first = await scheduler.submit(jobs.Echo(value=1), connection=user)
    assert await first.result(SOON) == 1

    async with user.transaction():
        second = await scheduler.submit(jobs.Echo(value=2), connection=user)
        await add_a_column(db, "scheduler.attempts")
    await add_a_column(db, "scheduler.jobs")
    async with user.transaction():
        third = await scheduler.submit(jobs.Echo(value=3), connection=user)
    fourth = await scheduler.submit(jobs.Echo(value=4))

    assert [await handle.result(SOON) for handle in (second, third, fourth)] == [2, 3, 4]
    assert len(await scheduler.jobs(kind="Echo")) == 4
    assert (await scheduler.job(fourth.id))["status"] == "COMPLETED"
    assert "InvalidCachedStatement" not in caplog.text
    assert "Traceback" not in caplog.text
    assert await attempts(db, third.id) == []
