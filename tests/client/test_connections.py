"""What is no connection to PostgreSQL is refused in one sentence; what callers set on theirs changes nothing."""

import json
from urllib.parse import urlsplit

import asyncpg
import callers
import psycopg
import pytest
import sqlalchemy
from jobs import Note
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from scheduler import ConfigurationError, InvalidJob, SchemaMismatch

PREFIX = "connection: must be an open connection to PostgreSQL: of asyncpg, psycopg or Django, or SQLAlchemy's"


def engine_of(dsn):
    return sqlalchemy.create_engine(callers.sqlalchemy_url(dsn, "psycopg"))


NO_CONNECTIONS = {
    "a pool": (lambda dsn: asyncpg.create_pool(dsn, min_size=0), "not asyncpg.pool.Pool: take a connection"),
    "an engine": (engine_of, "not sqlalchemy.engine.base.Engine: take a connection"),
    "an asynchronous engine": (
        lambda dsn: create_async_engine(callers.sqlalchemy_url(dsn, "asyncpg")),
        "AsyncEngine: take a connection",
    ),
    "an address": (str, "not builtins.str"),
    "a class": (lambda dsn: asyncpg.Connection, "not asyncpg.connection.ConnectionMeta"),
}


@pytest.mark.parametrize("case", NO_CONNECTIONS)
async def test_what_is_no_connection_is_refused_with_its_name_and_what_is_accepted(dsn, scheduler, case):
    make, words = NO_CONNECTIONS[case]

    with pytest.raises(InvalidJob) as refused:
        await scheduler.submit(Note(), connection=make(dsn))

    assert str(refused.value).startswith(PREFIX)
    assert words in str(refused.value)


def test_a_connection_to_another_database_system_is_refused(sync_scheduler):
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, Session(engine) as session:
        for given in (connection, session):
            with pytest.raises(InvalidJob, match="this one is of sqlite; without connection= the job"):
                sync_scheduler.submit(Note(), connection=given)
    engine.dispose()


def test_a_django_connection_of_another_vendor_is_refused(sync_scheduler):
    from django.db.backends.sqlite3.base import DatabaseWrapper

    with pytest.raises(InvalidJob, match="this one is of sqlite"):
        sync_scheduler.submit(Note(), connection=DatabaseWrapper({"NAME": ":memory:"}))


async def test_the_synchronous_client_refuses_a_connection_that_belongs_to_an_event_loop(sync_scheduler, connect):
    with pytest.raises(InvalidJob, match="belongs to an event loop: use the Scheduler"):
        sync_scheduler.submit(Note(), connection=await connect())


async def test_a_connection_that_blocks_is_used_in_place_by_the_asynchronous_client(scheduler, dsn, db):
    with psycopg.connect(dsn) as connection:
        handle = await scheduler.submit(Note("a"), connection=connection)
        assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0

    assert await db.fetchval("SELECT id FROM scheduler.jobs") == handle.id


async def test_within_run_sync_the_synchronous_client_submits_on_the_session_that_is_given(dsn, sync_scheduler, db):
    engine = create_async_engine(callers.sqlalchemy_url(dsn, "asyncpg"))
    async with engine.begin() as connection:
        handle = await connection.run_sync(
            lambda inner: sync_scheduler.submit(Note(), connection=inner)  # a greenlet of the event loop's thread
        )
        assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0
    await engine.dispose()

    assert await db.fetchval("SELECT id FROM scheduler.jobs") == handle.id


@pytest.mark.parametrize("autocommit", [True, False])
async def test_where_the_driver_commits_by_itself_the_job_exists_at_once(scheduler, dsn, db, autocommit):
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit) as connection:
        await scheduler.submit(Note(), connection=connection)
        await scheduler.submit_many([Note(), Note()], connection=connection)
        found = await db.fetchval("SELECT count(*) FROM scheduler.jobs")

    assert found == (3 if autocommit else 0)


async def test_a_codec_that_the_caller_has_set_for_json_changes_no_payload(scheduler, connect, db):
    mine = await connect()
    await mine.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)

    await scheduler.submit(Note({"a": [1, None]}), metadata={"b": "c"}, connection=mine)
    await scheduler.submit_many([Note({"a": [1, None]})], metadata={"b": "c"}, connection=mine)

    rows = await db.fetch("SELECT payload, metadata FROM scheduler.jobs")
    assert [(json.loads(row["payload"]), json.loads(row["metadata"])) for row in rows] == [
        ({"text": {"a": [1, None]}}, {"b": "c"})
    ] * 2


@pytest.mark.parametrize("text", ["100 % sure: %s :p1 $1 {0}", 'it\'s "quoted" \\ and ünïcode \N{SNOWMAN}'])
async def test_a_payload_arrives_as_it_is_whatever_marks_a_driver_looks_for(caller, db, text):
    await caller.submit(Note(text), tenant=text)
    await caller.submit_many([Note(text)], tenant=text)
    await caller.commit()

    rows = await db.fetch("SELECT payload ->> 'text', tenant FROM scheduler.jobs")
    assert [tuple(row) for row in rows] == [(text, text)] * 2


async def test_a_closed_connection_is_an_error_of_its_driver(scheduler, connect):
    closed = await connect()
    await closed.close()

    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await scheduler.submit(Note(), connection=closed)


async def test_a_deadlock_or_a_lock_timeout_of_the_caller_is_an_error_of_its_driver(scheduler, connect, db):
    mine, other = await connect(server_settings={"lock_timeout": "50ms"}), await connect()
    async with other.transaction():
        await scheduler.submit(Note(), idempotency_key="one", connection=other)

        with pytest.raises(asyncpg.LockNotAvailableError):
            await scheduler.submit(Note(), idempotency_key="one", connection=mine)


async def test_a_callers_database_without_the_schema_says_to_migrate(scheduler, connect, databases):
    with databases.database() as elsewhere:
        mine = await connect(elsewhere)
        with pytest.raises(SchemaMismatch, match="scheduler migrate"):
            await scheduler.submit(Note(), connection=mine)
        await mine.close()


async def test_a_caller_without_the_right_to_submit_is_told_which_role_to_ask_for(scheduler, connect, dsn, db):
    await db.execute("CREATE ROLE client_stranger LOGIN PASSWORD 'x'")
    try:
        host = urlsplit(dsn).netloc.rpartition("@")[2]
        address = urlsplit(dsn)._replace(netloc=f"client_stranger:x@{host}").geturl()
        mine = await connect(address)
        with pytest.raises(ConfigurationError, match="GRANT scheduler_submitter"):
            await scheduler.submit(Note(), connection=mine)
        await mine.close()
    finally:
        await db.execute("DROP ROLE client_stranger")
