"""Who may do what: a login role that is a member of one of the scheduler's roles and of nothing else."""

import asyncpg
import pytest

from .steps import insert, insert_many, start, status, submit

GOOD = "INSERT INTO scheduler.jobs (kind) VALUES ('k')"


async def test_a_submitter_inserts_submits_and_reads_the_id(db, login):
    submitter = await login("scheduler_submitter")

    ids = [await insert(submitter), await submit(submitter), *await insert_many(submitter, 3)]

    assert {await status(db, job_id) for job_id in ids} == {"PENDING"}
    assert await submitter.fetchval("SELECT count(id) FROM scheduler.jobs") == 5


async def test_a_submitter_inserts_children_undeclared_kinds_and_keys(db, login):
    submitter = await login("scheduler_submitter")

    parent = await insert(submitter, "never_seen")
    child = await insert(submitter, depends_on=[parent], idempotency_key="i", unique_key="u")

    assert await status(db, child) == "BLOCKED"
    assert await insert(submitter, idempotency_key="i") is None


async def test_on_conflict_do_nothing_works_for_a_submitter(db, login):
    submitter = await login("scheduler_submitter")
    statement = "INSERT INTO scheduler.jobs (kind, unique_key) VALUES ('k', 'one') ON CONFLICT DO NOTHING RETURNING id"

    assert [await submitter.fetchval(statement) is None for _ in range(2)] == [False, True]


COMPUTED = (
    "status",
    "submitted_at",
    "attempt",
    "fence",
    "worker_id",
    "rank_at",
    "result",
    "schedule_id",
    "line",
    "unmet",
)
FORBIDDEN = (
    "INSERT INTO scheduler.jobs (kind, colour) VALUES ('k', 'red')",
    "INSERT INTO scheduler.jobs_active (kind) VALUES ('k')",
    "INSERT INTO scheduler.jobs_finished (kind) VALUES ('k')",
    "SELECT payload FROM scheduler.jobs",
    "SELECT * FROM scheduler.jobs",
    "SELECT result FROM scheduler.jobs",
    "UPDATE scheduler.jobs SET payload = '{}'",
    "DELETE FROM scheduler.jobs",
    "TRUNCATE scheduler.jobs",
    "SELECT id FROM scheduler.jobs FOR UPDATE",
    "SELECT * FROM scheduler.claim(gen_random_uuid(), gen_random_uuid(), '{default}', '{k}', 1, '30 s')",
    "SELECT scheduler.cancel('{1}')",
    "SELECT scheduler.take_key('k', 'x', 1, '1 h')",
    "SELECT scheduler.hold_parents(1, '{1}', 'run')",
    "SELECT scheduler.finish('{}')",
    "SELECT scheduler.new_epoch()",
    "UPDATE scheduler.epoch SET epoch = 0",
    "SELECT FROM scheduler.idempotency_keys",
    "CREATE TABLE scheduler.mine (a int)",
)


async def test_a_submitter_may_not_write_what_the_scheduler_computes(db, login):
    submitter = await login("scheduler_submitter")

    for column in COMPUTED:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await submitter.execute(f"INSERT INTO scheduler.jobs (kind, {column}) VALUES ('k', NULL)")

    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0


async def test_f69_a_submitter_may_do_nothing_else(db, login):
    await insert(db)
    submitter = await login("scheduler_submitter")

    for statement in FORBIDDEN:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedColumnError)):
            await submitter.execute(statement)


async def test_a_role_of_no_group_can_do_nothing(db, login):
    stranger = await login("pg_monitor")

    for statement in (
        GOOD,
        "SELECT scheduler.submit('k')",
        "SELECT id FROM scheduler.jobs",
        "SELECT scheduler.clock()",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await stranger.execute(statement)


async def test_a_viewer_reads_all_but_what_may_be_secret(db, login):
    await start(db)
    viewer = await login("scheduler_viewer")

    assert await viewer.fetchval("SELECT status::text FROM scheduler.jobs") == "RUNNING"
    assert await viewer.fetchval("SELECT running FROM scheduler.queue_depth") == 1
    assert await viewer.fetchval("SELECT started FROM scheduler.schedule_lag") == 1
    for statement in ("SELECT payload FROM scheduler.jobs", "SELECT error FROM scheduler.jobs", GOOD):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await viewer.execute(statement)


async def test_every_function_is_closed_to_the_public_and_has_a_fixed_search_path_where_it_acts_as_owner(db):
    functions = await db.fetch("""
        SELECT p.proname, pg_get_userbyid(p.proowner) AS owner, p.proconfig, p.prosecdef,
          has_function_privilege('public', p.oid, 'EXECUTE') AS public
        FROM pg_proc p WHERE p.pronamespace = 'scheduler'::regnamespace""")

    assert len(functions) > 30
    for name, owner, config, definer, public in functions:
        assert (name, owner, public) == (name, "scheduler_owner", False)
        assert not definer or "search_path=pg_catalog, pg_temp" in config, name


async def test_f69_a_schema_of_the_caller_cannot_lead_a_function_astray(db, login):
    """What a caller puts first in his search path is not what a function of the owner calls."""
    submitter = await login("scheduler_submitter")
    await db.execute("CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC")
    await db.execute("CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS $$ SELECT 'object' $$")
    await submitter.execute("SET search_path = evil, pg_catalog")

    with pytest.raises(asyncpg.CheckViolationError, match="payload must be a JSON object"):
        await submitter.execute("INSERT INTO scheduler.jobs (kind, payload) VALUES ('k', '[]')")
