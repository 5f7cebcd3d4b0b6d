"""Migrating: on an empty and on a live database, several at once, again, as a role with few rights, down and up."""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlsplit

import asyncpg
import pytest
from alembic import command
from alembic.config import Config

from scheduler.schema import migrate, migrations_folder

from .steps import claim, declare, insert, outcome, release, settle, status, statuses, submit

FUNCTIONS = (
    "SELECT proname, oid, xmin, proacl, prosrc FROM pg_proc WHERE pronamespace = 'scheduler'::regnamespace ORDER BY 1"
)
TRIGGERS = "SELECT tgname, tgrelid::regclass FROM pg_trigger ORDER BY 1, 2"
OLD = "of an older version"
FORGET = f"""
DO $$ DECLARE f regprocedure; BEGIN
  FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'scheduler'::regnamespace LOOP
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', f, '{OLD}');
  END LOOP;
  COMMENT ON VIEW scheduler.queue_depth IS '{OLD}';
END $$"""


async def works(db):
    await declare(db, "k")
    job_id = await submit(db)
    assert [job["id"] for job in await claim(db)] == [job_id]


async def test_three_programs_migrate_an_empty_database_at_once(empty_dsn, connect):
    program = f"import asyncio; from scheduler.schema import migrate; print(asyncio.run(migrate({empty_dsn!r})))"
    options = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    programs = [await asyncio.create_subprocess_exec(sys.executable, "-c", program, **options) for _ in range(3)]

    outputs = await asyncio.gather(*(program.communicate() for program in programs))

    assert [(p.returncode, *output) for p, output in zip(programs, outputs, strict=True)] == [(0, b"True\n", b"")] * 3
    await works(await connect(empty_dsn))


async def test_migrating_again_changes_nothing(db, dsn):
    before = [await db.fetch(FUNCTIONS), await db.fetch(TRIGGERS)]

    assert await migrate(dsn) is True

    assert [await db.fetch(FUNCTIONS), await db.fetch(TRIGGERS)] == before


async def test_a_function_whose_text_changed_is_installed_again_and_keeps_its_grants(db, dsn):
    await db.execute("GRANT EXECUTE ON FUNCTION scheduler.new_epoch() TO scheduler_viewer")
    before = {record["proname"]: record for record in await db.fetch(FUNCTIONS)}
    await db.execute(f"""
        CREATE OR REPLACE FUNCTION scheduler.new_epoch() RETURNS bigint LANGUAGE sql AS 'SELECT 42::bigint';
        COMMENT ON FUNCTION scheduler.new_epoch() IS '{OLD}'""")

    await migrate(dsn)

    after = {record["proname"]: record for record in await db.fetch(FUNCTIONS)}
    changed = {name for name in after if after[name]["xmin"] != before[name]["xmin"]}
    same = ("oid", "prosrc", "proacl")
    assert changed == {"new_epoch"}
    assert [after["new_epoch"][c] for c in same] == [before["new_epoch"][c] for c in same]


async def test_a_view_whose_text_changed_is_made_again_with_its_grants(db, dsn, login):
    viewer = await login("scheduler_viewer")
    await db.execute(f"COMMENT ON VIEW scheduler.queue_depth IS '{OLD}'")

    await migrate(dsn)

    assert await viewer.fetch("SELECT * FROM scheduler.queue_depth") == []


async def test_claims_go_on_while_a_migration_waits_for_readers_and_writers(db, connect, dsn):
    """Every try to take a table's lock is short; between two of them the claims that queued behind it run."""
    await insert(db)
    await db.execute(FORGET)
    reader, writer, worker = [await connect() for _ in range(3)]
    waits, migrated = [], asyncio.Event()

    async def keep_claiming():
        while not migrated.is_set():
            began = time.monotonic()
            jobs = await claim(worker)
            await release(worker, jobs)
            waits.append(time.monotonic() - began)

    async with reader.transaction(), writer.transaction():
        await reader.execute("SELECT * FROM scheduler.queue_depth; LOCK TABLE scheduler.jobs IN ACCESS SHARE MODE")
        await insert(writer)
        claiming, migrating = asyncio.create_task(keep_claiming()), asyncio.create_task(migrate(dsn))
        tries = set()
        while not migrating.done() and len(tries) < 3:
            tries |= await waiting_for_a_lock(db)
        assert not migrating.done(), migrating.exception()
    await migrating
    migrated.set()
    await claiming

    assert len(waits) > 20
    assert max(waits) < 10  # a try waits 200 ms; the rest is what a busy machine may add
    assert await db.fetchval("SELECT obj_description('scheduler.queue_depth'::regclass)") != OLD
    assert await db.fetchval("SELECT obj_description('scheduler.wake(text[])'::regprocedure)") != OLD


async def waiting_for_a_lock(db):
    """Return the sessions, other than claims, that wait: each try of a migration is a session of its own."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return {pid for (pid,) in await db.fetch(f"{waiting} AND query !~ 'scheduler.(claim|release).[$]'")}


@pytest.fixture
async def owner(connect, empty_dsn, server_dsn):
    """Make the address under which an ordinary role reaches an empty database that it owns."""
    admin, address, names = await connect(server_dsn), urlsplit(empty_dsn), []

    async def owner(rights):
        names.append(f"leasework_owner_{time.monotonic_ns()}")
        await admin.execute(f"CREATE ROLE {names[-1]} LOGIN PASSWORD 'x' {rights}")
        await admin.execute(f"ALTER DATABASE {address.path[1:]} OWNER TO {names[-1]}")
        return address._replace(netloc=f"{quote(names[-1])}:x@{address.netloc.rpartition('@')[2]}").geturl()

    yield owner
    here = await connect(empty_dsn)
    for name in names:
        await here.execute(f"REASSIGN OWNED BY {name} TO CURRENT_USER; DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("rights", ["", "CREATEROLE"])
async def test_a_role_that_cannot_have_the_schedulers_roles_owns_everything_itself(owner, connect, rights):
    """They exist in this cluster already, another's, and it is no member of theirs."""
    dsn = await owner(rights)

    in_roles = await migrate(dsn)
    assert await migrate(dsn) == in_roles

    db = await connect(dsn)
    await works(db)
    if not in_roles:
        assert await db.fetchval("SELECT relowner = current_user::regrole FROM pg_class WHERE relname = 'jobs_active'")
        assert await db.fetchval("SELECT has_function_privilege('public', 'scheduler.new_epoch()', 'EXECUTE')") is False


async def test_a_database_can_be_taken_down_and_up_again(db, dsn):
    before = [{r["proname"] for r in await db.fetch(FUNCTIONS)}, await db.fetch(TRIGGERS)]

    await downgrade(dsn)
    left = "SELECT count(*) FROM pg_class WHERE relnamespace = 'scheduler'::regnamespace AND relkind IN ('r', 'p', 'v')"
    assert await db.fetchval(left) == 1  # the version table
    await migrate(dsn)

    after = [{r["proname"] for r in await db.fetch(FUNCTIONS)}, await db.fetch(TRIGGERS)]
    assert [after[0], [t["tgname"] for t in after[1]]] == [before[0], [t["tgname"] for t in before[1]]]
    await db.reload_schema_state()
    await works(db)
    assert await status(db, await insert(db)) == "PENDING"


async def test_a_database_goes_one_version_down_and_up_again_with_all_its_jobs(db, dsn):
    """Back to the tables before operators' verbs: what was paused goes on, and no job is lost."""
    waiting, ended = await submit(db, idempotency_key="one"), await submit(db)
    (job,) = [job for job in await claim(db, 2) if job["id"] == ended]
    await settle(db, outcome(job, "failed", retryable=False))
    await db.execute("SELECT scheduler.pause('default', NULL)")
    tables = ("jobs", "attempts", "idempotency_keys", "kinds")
    rows = "SELECT to_jsonb(t) - ARRAY['paused_until', 'paused_by'] FROM scheduler.{} t"
    before = [await db.fetch(rows.format(table)) for table in tables]

    await downgrade(dsn, "0001")
    assert await db.fetchval("SELECT scheduler.schema_version()") == "0001"
    assert await db.fetchval("SELECT to_regclass('scheduler.kept')") is None
    assert await db.fetchval("SELECT count(*) FROM scheduler.queues") == 1
    await migrate(dsn)

    after = [await db.fetch(rows.format(table)) for table in tables]
    assert after == before
    await db.reload_schema_state()
    assert await db.fetchval("SELECT scheduler.retry($1)", [ended]) is not None
    assert await statuses(db, [waiting, ended]) == {waiting: "RUNNING", ended: "PENDING"}


async def downgrade(dsn, revision="base"):
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.attributes["connect"] = lambda: asyncpg.connect(dsn, statement_cache_size=0)
    with ThreadPoolExecutor(1) as thread:
        await asyncio.get_running_loop().run_in_executor(thread, command.downgrade, config, revision)
