"""Callers' connections: a verb called on a connection of the caller's, in the caller's transaction.

A driver is known by the class of the connection and never imported: who has a connection of it has imported it. Values
are bound as text and cast in the call, so that neither a driver's guess at a type nor a codec that the caller has set
for JSON changes them; rows are read as tuples, whatever shape the caller has chosen.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from scheduler.errors import InvalidJob
from scheduler.submission import Json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import asyncpg
    from asyncpg.pool import PoolConnectionProxy
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    class PsycopgConnection(Protocol):
        """psycopg.Connection and psycopg.AsyncConnection."""

        @property
        def pgconn(self) -> Any: ...  # noqa: ANN401

    class DjangoConnection(Protocol):
        """What django.db.connections holds."""

        vendor: Any
        alias: Any

    class DjangoProxy(Protocol):
        """django.db.connection: whatever is asked of it, it asks the thread's connection."""

        def __getattr__(self, item: str, /) -> Any: ...  # noqa: ANN401

    BlockingConnection: TypeAlias = (
        Connection | Session | scoped_session[Any] | PsycopgConnection | DjangoConnection | DjangoProxy
    )
    AnyConnection: TypeAlias = (
        BlockingConnection | asyncpg.Connection[Any] | PoolConnectionProxy[Any] | AsyncConnection | AsyncSession
        | async_scoped_session[Any]
    )  # fmt: skip

ACCEPTED = (
    "an open connection to PostgreSQL: of asyncpg, psycopg or Django, or SQLAlchemy's Connection, Session,"
    " AsyncConnection or AsyncSession"
)


class Borrowed:
    """A caller's connection. One that is `blocking` is used in place: its coroutines end without ever waiting."""

    blocking = True

    def __init__(self, connection: Any) -> None:  # noqa: ANN401
        self._connection = connection

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002, ASYNC109
        return (await self.fetch(query, *args))[0][0]

    async def fetch(self, query: str, *args: Any) -> list[Any]:  # noqa: ANN401
        with self._connection.cursor() as cursor:  # Django's
            cursor.execute(_cast(query, args, "%s"), tuple(map(str, args)))
            return list(cursor.fetchall())


class _Psycopg(Borrowed):
    async def fetch(self, query: str, *args: Any) -> list[Any]:  # noqa: ANN401
        with sys.modules["psycopg"].Cursor(self._connection, row_factory=_tuples) as cursor:
            cursor.execute(_cast(query, args, "%s"), tuple(map(str, args)))
            return list(cursor.fetchall())


class _AsyncPsycopg(Borrowed):
    blocking = False

    async def fetch(self, query: str, *args: Any) -> list[Any]:  # noqa: ANN401
        async with sys.modules["psycopg"].AsyncCursor(self._connection, row_factory=_tuples) as cursor:
            await cursor.execute(_cast(query, args, "%s"), tuple(map(str, args)))
            return list(await cursor.fetchall())


class _Asyncpg(Borrowed):
    blocking = False

    async def fetch(self, query: str, *args: Any) -> list[Any]:  # noqa: ANN401
        return list(await self._connection.fetch(_cast(query, args, "${}"), *args))


class _SqlAlchemy(Borrowed):
    async def fetch(self, query: str, *args: Any) -> list[Any]:  # noqa: ANN401
        connection = self._connection
        connection = _of_postgresql(connection.connection() if hasattr(connection, "get_bind") else connection)
        return list(connection.execute(*_text(query, args)).fetchall())


class _AsyncSqlAlchemy(Borrowed):
    blocking = False

    async def fetch(self, query: str, *args: Any) -> list[Any]:  # noqa: ANN401
        connection = self._connection
        connection = _of_postgresql(await connection.connection() if hasattr(connection, "get_bind") else connection)
        return list((await connection.execute(*_text(query, args))).fetchall())


_KNOWN: list[tuple[str, str, Callable[[Any], Borrowed]]] = [
    ("asyncpg", "Connection", _Asyncpg),
    ("asyncpg.pool", "PoolConnectionProxy", _Asyncpg),
    ("psycopg", "Connection", _Psycopg),
    ("psycopg", "AsyncConnection", _AsyncPsycopg),
    ("sqlalchemy.orm", "Session", _SqlAlchemy),
    ("sqlalchemy.orm", "scoped_session", _SqlAlchemy),
    ("sqlalchemy", "Connection", _SqlAlchemy),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _AsyncSqlAlchemy),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _AsyncSqlAlchemy),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", _AsyncSqlAlchemy),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", lambda given: Borrowed(_of_postgresql(given))),
    ("django.utils.connection", "ConnectionProxy", lambda given: Borrowed(_of_postgresql(given))),
]


def borrowed(connection: AnyConnection) -> Borrowed:
    """Return what calls verbs on a caller's connection; raises InvalidJob naming what was given, what is accepted."""
    for module, name, adapter in _KNOWN:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and isinstance(connection, known):
            return adapter(connection)
    raise _refused(connection, "take a connection from a pool or an engine, and begin a transaction on it")


def _of_postgresql(connection: Any) -> Any:  # noqa: ANN401
    vendor = connection.dialect.name if hasattr(connection, "dialect") else getattr(connection, "vendor", "no database")
    if vendor != "postgresql":
        raise _refused(connection, f"this one is of {vendor}; without connection= the job has a transaction of its own")
    return connection


def _refused(given: Any, way_out: str) -> InvalidJob:  # noqa: ANN401
    return InvalidJob("connection", f"must be {ACCEPTED}; not {_name(given)}: {way_out}")


def _name(given: Any) -> str:  # noqa: ANN401
    return f"{type(given).__module__}.{type(given).__qualname__}"


def _cast(query: str, args: Iterable[Any], mark: str) -> str:
    """Return the call with the marks of a driver for $1, $2, each cast to what it stands for."""
    for number, arg in enumerate(args, 1):
        text = f"CAST({mark.format(number)} AS text)"
        query = query.replace(f"${number}", f"CAST({text} AS jsonb)" if isinstance(arg, Json) else text)
    return query


def _text(query: str, args: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    named = {f"p{number}": str(arg) for number, arg in enumerate(args, 1)}
    return sys.modules["sqlalchemy"].text(_cast(query, args, ":p{}")), named


def _tuples(_: Any) -> type[tuple[Any, ...]]:  # noqa: ANN401 - psycopg's row factory of a cursor
    return tuple
