"""Callers' connections: a verb called on a connection of the caller's, in the caller's transaction.

A driver is known by the class of the connection and never imported: who has a connection of it has imported it. Values
are bound as text and cast in the call, so that neither a driver's guess at a type nor a codec that the caller has set
for JSON changes them; rows are read as tuples, whatever shape the caller has chosen.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from scheduler.errors import InvalidJob
from scheduler.submission import Json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ACCEPTED = (
    "an open connection to PostgreSQL: of asyncpg, psycopg or Django, or SQLAlchemy's Connection, Session,"
    " AsyncConnection or AsyncSession"
)


class _Number(str):
    __slots__ = ()


class Borrowed:
    """A caller's connection. One that is `blocking` is used in place: its coroutines end without ever waiting."""

    def __init__(self, connection: object) -> None:
        """Raise InvalidJob that names what was given and what is accepted, when this is no connection."""
        self._connection = connection
        for module, name, self.blocking, self._fetch in _KNOWN:
            known = getattr(sys.modules.get(module), name, None)
            if known is not None and isinstance(connection, known):
                return
        raise _refused(connection, "take a connection from a pool or an engine, and begin a transaction on it")

    async def fetch(self, query: str, *args: str | int) -> list[Any]:
        bound = tuple(arg if isinstance(arg, str) else _Number(arg) for arg in args)
        return list(await self._fetch(self._connection, query, bound))

    async def fetchval(self, query: str, *args: str | int, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002, ASYNC109
        return (await self.fetch(query, *args))[0][0]


async def _asyncpg(connection: Any, query: str, args: tuple[str, ...]) -> Any:  # noqa: ANN401 - of any driver, as below
    return await connection.fetch(_cast(query, args, "${}"), *args)


async def _psycopg(connection: Any, query: str, args: tuple[str, ...]) -> Any:  # noqa: ANN401
    return _on_cursor(sys.modules["psycopg"].Cursor(connection, row_factory=lambda _: tuple), query, args)


async def _django(connection: Any, query: str, args: tuple[str, ...]) -> Any:  # noqa: ANN401
    return _on_cursor(_of_postgresql(connection).cursor(), query, args)


def _on_cursor(opened: Any, query: str, args: tuple[str, ...]) -> Any:  # noqa: ANN401
    with opened as cursor:
        cursor.execute(_cast(query, args, "%s"), tuple(map(str, args)))
        return cursor.fetchall()


async def _psycopg_async(connection: Any, query: str, args: tuple[str, ...]) -> Any:  # noqa: ANN401
    async with sys.modules["psycopg"].AsyncCursor(connection, row_factory=lambda _: tuple) as cursor:
        await cursor.execute(_cast(query, args, "%s"), tuple(map(str, args)))
        return await cursor.fetchall()


async def _sqlalchemy(given: Any, query: str, args: tuple[str, ...]) -> Any:  # noqa: ANN401
    connection = _of_postgresql(given.connection() if hasattr(given, "get_bind") else given)
    return connection.execute(*_text(query, args)).fetchall()


async def _sqlalchemy_async(given: Any, query: str, args: tuple[str, ...]) -> Any:  # noqa: ANN401
    connection = _of_postgresql(await given.connection() if hasattr(given, "get_bind") else given)
    return (await connection.execute(*_text(query, args))).fetchall()


def _text(query: str, args: tuple[str, ...]) -> tuple[Any, dict[str, str]]:
    named = {f"p{number}": str(arg) for number, arg in enumerate(args, 1)}
    return sys.modules["sqlalchemy"].text(_cast(query, args, ":p{}")), named


def _cast(query: str, args: tuple[str, ...], mark: str) -> str:
    """Return the call with the marks of a driver for $1, $2, each cast to what it stands for."""
    for number, arg in enumerate(args, 1):
        text = f"CAST({mark.format(number)} AS text)"
        other = "jsonb" if isinstance(arg, Json) else "bigint" if isinstance(arg, _Number) else None
        query = query.replace(f"${number}", f"CAST({text} AS {other})" if other else text)
    return query


def _of_postgresql(connection: Any) -> Any:  # noqa: ANN401
    vendor = connection.dialect.name if hasattr(connection, "dialect") else getattr(connection, "vendor", "no database")
    if vendor != "postgresql":
        raise _refused(connection, f"this one is of {vendor}; without connection= the job has a transaction of its own")
    return connection


def _refused(given: object, way_out: str) -> InvalidJob:
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    return InvalidJob("connection", f"must be {ACCEPTED}; not {name}: {way_out}")


_KNOWN: list[tuple[str, str, bool, Callable[[Any, str, tuple[str, ...]], Awaitable[Any]]]] = [
    ("asyncpg", "Connection", False, _asyncpg),
    ("asyncpg.pool", "PoolConnectionProxy", False, _asyncpg),
    ("psycopg", "Connection", True, _psycopg),
    ("psycopg", "AsyncConnection", False, _psycopg_async),
    ("sqlalchemy", "Connection", True, _sqlalchemy),
    ("sqlalchemy.orm", "Session", True, _sqlalchemy),
    ("sqlalchemy.orm", "scoped_session", True, _sqlalchemy),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", False, _sqlalchemy_async),
    ("sqlalchemy.ext.asyncio", "AsyncSession", False, _sqlalchemy_async),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", False, _sqlalchemy_async),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", True, _django),
    ("django.utils.connection", "ConnectionProxy", True, _django),
]
