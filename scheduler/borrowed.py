"""Callers' connections: a verb called on a connection of the caller's, in the caller's transaction.

A driver is known by the class of the connection and never imported: who has a connection of it has imported it. Values
are bound as text and cast in the call, so that neither a driver's guess at a type nor a codec that the caller has set
for JSON changes them; rows are read as tuples, whatever shape the caller has chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.errors import InvalidJob
from scheduler.submission import Json

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

ACCEPTED = (
    "an open connection to PostgreSQL: of asyncpg, psycopg or Django, or SQLAlchemy's Connection, Session,"
    " AsyncConnection or AsyncSession"
)


class Borrowed:
    """A caller's connection. One that is `blocking` is used in place: its coroutines end without ever waiting."""

    def __init__(self, connection: object) -> None:
        """Raise InvalidJob that names what was given and what is accepted, when this is no connection."""
        self._connection = connection
        for module, name, self.blocking, self._fetch, self._begin in _KNOWN:
            known = getattr(sys.modules.get(module), name, None)
            if known is not None and isinstance(connection, known):
                return
        raise _refused(connection, "take a connection from a pool or an engine, and begin a transaction on it")

    async def fetch(self, query: str, *args: str | int) -> list[Any]:
        return list(await self._fetch(self._connection, query, args))

    def transaction(self) -> tuple[bool, Callable[[], Any]]:
        """Tell whether a transaction is open, and how its driver begins one, or within it a savepoint."""
        return self._begin(self._connection)

    async def commits_by_itself(self) -> bool:
        """Tell whether SQLAlchemy leaves each statement its own transaction (AUTOCOMMIT), whatever block was begun."""
        if self._fetch is not _sqlalchemy:
            return False
        connection = await _connection(self._connection)
        dbapi = getattr(connection, "sync_connection", connection).connection.dbapi_connection
        return bool(getattr(dbapi, "autocommit", False))

    async def fetchval(self, query: str, *args: str | int, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002, ASYNC109
        return (await self.fetch(query, *args))[0][0]


async def _asyncpg(connection: Any, query: str, args: tuple[str | int, ...]) -> Any:  # noqa: ANN401 - of any driver, as below
    return await connection.fetch(_cast(query, args, "${}"), *map(str, args))


async def _psycopg(connection: Any, query: str, args: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    return _on_cursor(sys.modules["psycopg"].Cursor(connection, row_factory=lambda _: tuple), query, args)


async def _django(connection: Any, query: str, args: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    return _on_cursor(_of_postgresql(connection).cursor(), query, args)


def _on_cursor(opened: Any, query: str, args: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    with opened as cursor:
        cursor.execute(_cast(query, args, "%s"), tuple(map(str, args)))
        return cursor.fetchall()


async def _psycopg_async(connection: Any, query: str, args: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    async with sys.modules["psycopg"].AsyncCursor(connection, row_factory=lambda _: tuple) as cursor:
        await cursor.execute(_cast(query, args, "%s"), tuple(map(str, args)))
        return await cursor.fetchall()


async def _sqlalchemy(given: Any, query: str, args: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    connection = _of_postgresql(await _connection(given))
    return (await _now(connection.execute(*_text(query, args)))).fetchall()


async def _connection(given: Any) -> Any:  # noqa: ANN401
    return await _now(given.connection()) if hasattr(given, "get_bind") else given


async def _now(given: Any) -> Any:  # noqa: ANN401
    return await given if isawaitable(given) else given


def _text(query: str, args: tuple[str | int, ...]) -> tuple[Any, dict[str, str]]:
    named = {f"p{number}": str(arg) for number, arg in enumerate(args, 1)}
    return sys.modules["sqlalchemy"].text(_cast(query, args, ":p{}")), named


def _cast(query: str, args: tuple[str | int, ...], mark: str) -> str:
    """Return the call with the marks of a driver for $1, $2, each cast to what it stands for."""
    for number, arg in enumerate(args, 1):
        text = f"CAST({mark.format(number)} AS text)"
        kind = "jsonb" if isinstance(arg, Json) else "bigint" if isinstance(arg, int) else ""
        query = query.replace(f"${number}", f"CAST({text} AS {kind})" if kind else text)
    return query


def _asyncpg_begins(connection: Any) -> tuple[bool, Callable[[], Any]]:  # noqa: ANN401
    return connection.is_in_transaction(), connection.transaction


def _psycopg_begins(connection: Any) -> tuple[bool, Callable[[], Any]]:  # noqa: ANN401
    return connection.info.transaction_status != 0, connection.transaction  # 0: idle


def _sqlalchemy_begins(given: Any) -> tuple[bool, Callable[[], Any]]:  # noqa: ANN401
    session = given if hasattr(given, "in_transaction") else given()  # an async_scoped_session tells only when called
    return (True, session.begin_nested) if session.in_transaction() else (False, session.begin)


def _django_begins(connection: Any) -> tuple[bool, Callable[[], Any]]:  # noqa: ANN401
    if connection != sys.modules["django.db"].connections[connection.alias]:  # atomic() would begin on that one
        raise _refused(connection, "this one is a copy: use django.db.connection, or connections[alias]")
    return connection.in_atomic_block, partial(sys.modules["django.db.transaction"].atomic, connection.alias)


def in_place(work: Coroutine[Any, Any, T]) -> T:
    """Run what never waits, as its connection blocks instead."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the result of the coroutine
    raise AssertionError("a connection that blocks has waited")


def _of_postgresql(connection: Any) -> Any:  # noqa: ANN401
    vendor = connection.dialect.name if hasattr(connection, "dialect") else getattr(connection, "vendor", "no database")
    if vendor != "postgresql":
        raise _refused(connection, f"this one is of {vendor}; without connection= the job has a transaction of its own")
    return connection


def _refused(given: object, way_out: str) -> InvalidJob:
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    return InvalidJob("connection", f"must be {ACCEPTED}; not {name}: {way_out}")


_Fetch = Callable[[Any, str, tuple[str | int, ...]], Awaitable[Any]]
_KNOWN: list[tuple[str, str, bool, _Fetch, Callable[[Any], tuple[bool, Callable[[], Any]]]]] = [
    ("asyncpg", "Connection", False, _asyncpg, _asyncpg_begins),
    ("asyncpg.pool", "PoolConnectionProxy", False, _asyncpg, _asyncpg_begins),
    ("psycopg", "Connection", True, _psycopg, _psycopg_begins),
    ("psycopg", "AsyncConnection", False, _psycopg_async, _psycopg_begins),
    ("sqlalchemy", "Connection", True, _sqlalchemy, _sqlalchemy_begins),
    ("sqlalchemy.orm", "Session", True, _sqlalchemy, _sqlalchemy_begins),
    ("sqlalchemy.orm", "scoped_session", True, _sqlalchemy, _sqlalchemy_begins),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", False, _sqlalchemy, _sqlalchemy_begins),
    ("sqlalchemy.ext.asyncio", "AsyncSession", False, _sqlalchemy, _sqlalchemy_begins),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", False, _sqlalchemy, _sqlalchemy_begins),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", True, _django, _django_begins),
    ("django.utils.connection", "ConnectionProxy", True, _django, _django_begins),
]
