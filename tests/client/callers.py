"""Connections of callers: each of them opened, used in a transaction, and closed as its users do it.

All are driven in the same way from an asynchronous test; those that block live in a thread of their own, where the
synchronous client is called too.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool


class Caller:
    """One connection within a transaction, and what a program may do with it."""

    def __init__(self, connection, scheduler):
        self.connection = connection
        self._scheduler = scheduler

    async def submit(self, job, **options):
        return await self._scheduler.submit(job, connection=self.connection, **options)

    async def submit_many(self, jobs, **options):
        return await self._scheduler.submit_many(jobs, connection=self.connection, **options)

    async def submit_graph(self, nodes, **options):
        return await self._scheduler.submit_graph(nodes, connection=self.connection, **options)

    async def close_batch(self, batch):
        return await self._scheduler.close_batch(batch, connection=self.connection)

    async def do(self, step):
        """Do one step of a program that owns the connection."""
        return await step()


class Blocking(Caller):
    def __init__(self, connection, scheduler, thread):
        super().__init__(connection, scheduler)
        self._thread = thread

    async def do(self, step):
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    async def submit(self, job, **options):
        return await self.do(lambda: self._scheduler.submit(job, connection=self.connection, **options))

    async def submit_graph(self, nodes, **options):
        return await self.do(lambda: self._scheduler.submit_graph(nodes, connection=self.connection, **options))

    async def close_batch(self, batch):
        return await self.do(lambda: self._scheduler.close_batch(batch, connection=self.connection))

    async def submit_many(self, jobs, **options):
        return await self.do(lambda: self._scheduler.submit_many(jobs, connection=self.connection, **options))


def sqlalchemy_url(dsn, driver):
    return urlsplit(dsn)._replace(scheme=f"postgresql+{driver}").geturl()


@asynccontextmanager
async def asyncpg_connection(dsn, scheduler, _):
    connection = await asyncpg.connect(dsn)
    caller = Caller(connection, scheduler)
    transaction = connection.transaction()
    await transaction.start()
    caller.commit, caller.rollback, caller.savepoint = transaction.commit, transaction.rollback, connection.transaction
    yield caller
    await connection.close()


@asynccontextmanager
async def asyncpg_from_pool(dsn, scheduler, _):
    async with asyncpg.create_pool(dsn, min_size=0) as pool, pool.acquire() as connection:
        caller = Caller(connection, scheduler)
        transaction = connection.transaction()
        await transaction.start()
        caller.commit, caller.rollback = transaction.commit, transaction.rollback
        caller.savepoint = connection.transaction
        yield caller


@asynccontextmanager
async def psycopg_async(dsn, scheduler, _):
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        caller = Caller(connection, scheduler)
        caller.commit, caller.rollback, caller.savepoint = (
            connection.commit,
            connection.rollback,
            connection.transaction,
        )
        yield caller


def sqlalchemy_async(driver, kind):
    @asynccontextmanager
    async def opened(dsn, scheduler, _):
        engine = create_async_engine(sqlalchemy_url(dsn, driver), poolclass=NullPool)
        if kind == "scoped_session":
            made = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)  # one scope
        else:
            made = AsyncSession(engine) if kind == "session" else await engine.connect()
        caller = Caller(made, scheduler)
        caller.commit, caller.rollback, caller.savepoint = made.commit, made.rollback, made.begin_nested
        yield caller
        await made.close()
        await engine.dispose()

    return opened


def blocking(opened):
    """Open a connection in a thread of its own; what is made of it runs there."""

    @asynccontextmanager
    async def in_thread(dsn, _, scheduler):
        with ThreadPoolExecutor(1) as thread:
            loop = asyncio.get_running_loop()
            connection, commit, rollback, savepoint, close = await loop.run_in_executor(thread, opened, dsn)
            caller = Blocking(connection, scheduler, thread)

            @asynccontextmanager
            async def nested():
                block = await caller.do(savepoint)
                await caller.do(block.__enter__)
                try:
                    yield
                except Exception as error:
                    await caller.do(lambda error=error: block.__exit__(type(error), error, error.__traceback__))
                    raise
                await caller.do(lambda: block.__exit__(None, None, None))

            caller.commit, caller.rollback = lambda: caller.do(commit), lambda: caller.do(rollback)
            caller.savepoint = nested
            try:
                yield caller
            finally:
                await caller.do(close)

    return in_thread


def psycopg_connection(dsn):
    connection = psycopg.connect(dsn, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.RawCursor)
    return connection, connection.commit, connection.rollback, connection.transaction, connection.close


def sqlalchemy_blocking(driver, kind):
    def opened(dsn):
        engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, driver), poolclass=NullPool)
        made = {
            "connection": engine.connect,
            "session": lambda: orm.Session(engine),
            "scoped_session": orm.scoped_session(orm.sessionmaker(engine)),
        }[kind]()
        return made, made.commit, made.rollback, made.begin_nested, made.close

    return opened


def django_connection(dsn):
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True)
        django.setup()
    from django.db import connection, transaction

    address = urlsplit(dsn)
    connection.settings_dict.update(
        NAME=address.path[1:],
        USER=address.username,
        PASSWORD=address.password or "",
        HOST=address.hostname or "",
        PORT=address.port or "",
    )
    atomic = transaction.atomic()
    atomic.__enter__()

    def rollback():
        transaction.set_rollback(True)
        atomic.__exit__(None, None, None)

    return connection, lambda: atomic.__exit__(None, None, None), rollback, transaction.atomic, connection.close


ASYNC = {
    "asyncpg": asyncpg_connection,
    "asyncpg from a pool": asyncpg_from_pool,
    "psycopg AsyncConnection": psycopg_async,
    "SQLAlchemy AsyncConnection, asyncpg": sqlalchemy_async("asyncpg", "connection"),
    "SQLAlchemy AsyncSession, asyncpg": sqlalchemy_async("asyncpg", "session"),
    "SQLAlchemy AsyncSession, psycopg": sqlalchemy_async("psycopg", "session"),
    "SQLAlchemy async_scoped_session": sqlalchemy_async("asyncpg", "scoped_session"),
}
BLOCKING = {
    "psycopg Connection": blocking(psycopg_connection),
    "SQLAlchemy Connection, psycopg": blocking(sqlalchemy_blocking("psycopg", "connection")),
    "SQLAlchemy Connection, psycopg2": blocking(sqlalchemy_blocking("psycopg2", "connection")),
    "SQLAlchemy Session, psycopg": blocking(sqlalchemy_blocking("psycopg", "session")),
    "SQLAlchemy Session, psycopg2": blocking(sqlalchemy_blocking("psycopg2", "session")),
    "SQLAlchemy scoped_session": blocking(sqlalchemy_blocking("psycopg", "scoped_session")),
    "Django": blocking(django_connection),
}
