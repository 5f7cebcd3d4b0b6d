"""Bring a database to the newest schema: tables by versions, then every function and view whose text changed.

Safe on an empty and on a live database, and when two run at once: an advisory lock of the transaction admits one at a
time. Waiting for it blocks nobody; waiting behind a table lock would block every claim, so after it no statement waits
longer than LOCK_TIMEOUT, and the whole transaction is tried again.

Everything belongs to the role scheduler_owner, which cannot log in. Where the migrating role may not create roles it
owns everything itself, and no grants are made; so it stays, whoever migrates later.
"""

import asyncio
import hashlib
import re
from functools import partial
from importlib.resources import files

import asyncpg
from alembic import context
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

LOCK_TIMEOUT = "200ms"
TRIES = 100
ROLES = ("owner", "submitter", "worker", "operator", "viewer")
LOCK_NOT_AVAILABLE = "55P03"
ONE_AT_A_TIME = 7_162_513_590_021  # any number that no other program's advisory lock is likely to have


def prepare(connection: Connection) -> bool:
    """Make roles and schema where they are missing; return whether the roles exist."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ONE_AT_A_TIME})
    connection.execute(text("SELECT set_config('lock_timeout', :t, true)"), {"t": LOCK_TIMEOUT})
    may_create = connection.execute(
        text("SELECT rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = current_user")
    ).scalar_one()
    existing = set(
        connection.execute(text("SELECT rolname FROM pg_roles WHERE rolname LIKE 'scheduler\\_%'")).scalars()
    )
    wanted = {f"scheduler_{name}" for name in ROLES}
    if may_create:
        # Roles belong to the whole cluster, the lock above to this database: another database may be faster.
        for role in sorted(wanted - existing):
            connection.execute(
                text(f"""DO $$ BEGIN CREATE ROLE {role} NOLOGIN;
                EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$""")
            )
        # Whoever made the role decides who may be it; being refused here is found out below.
        connection.execute(
            text("""DO $$ BEGIN GRANT scheduler_owner TO CURRENT_USER;
            EXCEPTION WHEN insufficient_privilege THEN NULL; END $$""")
        )
    roles = (
        wanted <= existing | (wanted if may_create else set())
        and connection.execute(text("SELECT pg_has_role(current_user, 'scheduler_owner', 'MEMBER')")).scalar_one()
    )
    owner = connection.execute(
        text("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'scheduler'")
    ).scalar()
    if owner is None:
        owner = "scheduler_owner" if roles else "CURRENT_USER"
        connection.execute(text(f"CREATE SCHEMA scheduler AUTHORIZATION {owner}"))
    if owner != "CURRENT_USER":
        connection.execute(text(f"SET LOCAL ROLE {owner}"))
    return owner == "scheduler_owner"


def install(connection: Connection, *, roles: bool) -> None:
    """Create the functions and views of scheduler/sql whose text differs from what the database has."""
    connection.execute(text("SET LOCAL check_function_bodies = off"))
    installed = dict(
        connection.execute(
            text("""
        SELECT p.proname, obj_description(p.oid, 'pg_proc') FROM pg_proc p WHERE p.pronamespace = 'scheduler'::regnamespace
        UNION ALL
        SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c
        WHERE c.relnamespace = 'scheduler'::regnamespace AND c.relkind = 'v'""")
        ).all()
    )
    # Views last: they read functions, and no function reads a view.
    for path in sorted(
        files("scheduler").joinpath("sql").iterdir(), key=lambda p: ("CREATE VIEW" in p.read_text(), p.name)
    ):
        name, body = path.name.removesuffix(".sql"), path.read_text()
        mark = f"[{hashlib.sha256(body.encode()).hexdigest()[:16]}]"
        if mark not in (installed.get(name) or ""):
            create(connection, name, body, mark, roles=roles)


def create(connection: Connection, name: str, body: str, mark: str, *, roles: bool) -> None:
    callers = re.findall(r"\w+", re.search(r"^-- callers: (.*)$", body, re.MULTILINE)[1])  # type: ignore[index]  # each file has it
    promise = re.match(r"-- (.*)", body)[1]  # type: ignore[index]  # each file opens with it
    grantees = ", ".join(f"scheduler_{caller}" for caller in callers if caller != "none")
    if "CREATE VIEW" in body:
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS scheduler.{name}")
        script(connection, body)
        connection.exec_driver_sql(f"COMMENT ON VIEW scheduler.{name} IS {quoted(f'{promise} {mark}')}")
        if roles:
            connection.exec_driver_sql(f"GRANT SELECT ON scheduler.{name} TO {grantees}")
        return
    script(connection, body)
    granted = set(re.findall(r"^-- (\w+)\(", body, re.MULTILINE)) | {name}
    for function in dict.fromkeys(re.findall(r"FUNCTION scheduler\.(\w+)\(", body)):
        connection.exec_driver_sql(f"REVOKE ALL ON FUNCTION scheduler.{function} FROM PUBLIC")
        if roles and grantees and function in granted:
            connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION scheduler.{function} TO {grantees}")
    connection.exec_driver_sql(f"COMMENT ON FUNCTION scheduler.{name} IS {quoted(f'{promise} {mark}')}")


def script(connection: Connection, body: str) -> None:
    """Run several statements at once, in the transaction that is open: only the driver's own call can."""
    connection.connection.run_async(lambda driver: driver.execute(body))  # type: ignore[attr-defined]  # AdaptedConnection


def quoted(words: str) -> str:
    return "'" + words.replace("'", "''") + "'"


def migrate(connection: Connection) -> None:
    with connection.begin():
        roles = prepare(connection)
        context.configure(
            connection=connection,
            version_table_schema="scheduler",
            transaction_per_migration=False,
            roles=roles,
            script=partial(script, connection),
        )
        context.run_migrations()
        # A downgrade leaves the functions to what it has dropped them with.
        if connection.execute(text("SELECT to_regclass('scheduler.jobs') IS NOT NULL")).scalar_one():
            install(connection, roles=roles)
        context.config.attributes["report"] = {"roles": roles}


async def run(creator: object) -> None:
    engine = create_async_engine("postgresql+asyncpg://", async_creator=creator, poolclass=NullPool)
    for tried in range(1, TRIES + 1):
        async with engine.connect() as connection:
            try:
                return await connection.run_sync(migrate)
            except (DBAPIError, asyncpg.PostgresError) as error:  # the latter from script()
                state = getattr(getattr(error, "orig", error), "sqlstate", None)
                if state != LOCK_NOT_AVAILABLE or tried == TRIES:
                    raise
        await asyncio.sleep(0.2)
    return None


asyncio.run(run(context.config.attributes["connect"]))
