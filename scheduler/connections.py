"""Connections to PostgreSQL, direct or through a pooler.

Nothing here or in the verbs needs a session, so a pooler in transaction mode (PgBouncer) may stand in between. Two
things do not pass it: notices, and statements that stay prepared. Whether there is one is found out, not configured.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from scheduler import embedded
from scheduler.calls import CALL_TIMEOUT
from scheduler.errors import DatabaseUnavailable
from scheduler.store import Store
from scheduler.translation import translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

STATEMENTS = 100  # kept prepared in each connection of a pool
ANSWER = 3.0  # seconds that a connection has to acknowledge the end of a call that took too long
PAUSE = 1.0  # seconds, the longest between two attempts to connect while the server is away


async def reach(dsn: str) -> embedded.Held:
    """Return what has the address of the server; until it is closed, an embedded one runs."""
    return await asyncio.to_thread(embedded.hold, dsn) if embedded.is_embedded(dsn) else embedded.Held(dsn)


async def _no_reset(_: asyncpg.Connection[Any]) -> None:
    """Leave a returned connection as it is: nothing here keeps state in a session, and a reset is a round trip."""


class Knocking:
    """Connects, and while the server is away asks it one at a time, with a growing, jittered pause in between.

    Whoever wants a connection in the pause is told what the last one was.
    """

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._refusal = DatabaseUnavailable()
        self._pause = self._again_at = 0.0

    async def connect(self, *arguments: Any, **options: Any) -> asyncpg.Connection[Any]:  # noqa: ANN401 - asyncpg's
        async with self._one_at_a_time:
            if time.monotonic() < self._again_at:
                raise self._refusal.with_traceback(None)
            try:
                with translated():
                    connection: asyncpg.Connection[Any] = await asyncpg.connect(*arguments, **options)
            except DatabaseUnavailable as refusal:
                self._refusal, self._pause = refusal, min(2 * self._pause or 0.1, PAUSE)
                self._again_at = time.monotonic() + self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
                raise
            self._pause = 0.0
            return connection


class Pool:
    """Connections over which verbs are called.

    One that has gone silent is replaced: asyncpg alone waits as long again as the call took until the server has
    acknowledged that the call is over.
    """

    def __init__(self, pool: asyncpg.Pool[Any]) -> None:
        self._pool = pool
        self.close, self.terminate = pool.close, pool.terminate

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = await self._pool.acquire()
        try:
            yield connection
        finally:
            with suppress(OSError):  # it did not; asyncpg has broken the connection
                await self._pool.release(connection, timeout=ANSWER)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:  # noqa: ANN401
        async with self._connection() as connection:
            return await connection.fetch(query, *args)  # type: ignore[no-any-return]

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:  # noqa: ANN401, ASYNC109
        async with self._connection() as connection:
            return await connection.fetchval(query, *args, timeout=timeout)


async def open_pool(dsn: str, *, size: int, name: str) -> Pool:
    """Open a pool of at most `size` connections, none of them yet; `name` shows in pg_stat_activity.

    Statements stay prepared, which halves the round trips; not behind a pooler, where the next call may reach another
    process of the server, which does not know the statement's name or, worse, knows another client's statement by it.
    Raises DatabaseUnavailable, SchemaMismatch.
    """
    probe = await open_connection(dsn, name=name)
    try:
        statements = 0 if await is_pooled(probe) else STATEMENTS
    finally:
        probe.terminate()
    pool = await asyncpg.create_pool(
        dsn, min_size=0, max_size=size, connect=Knocking().connect, reset=_no_reset, statement_cache_size=statements,
        **_options(name),
    )  # fmt: skip
    return Pool(pool)


async def open_connection(dsn: str, *, name: str) -> asyncpg.Connection[Any]:
    """Open one connection, for few calls. Raises DatabaseUnavailable."""
    with translated():
        connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn, statement_cache_size=0, **_options(name))
    return connection


def _options(name: str) -> dict[str, Any]:
    return {"command_timeout": CALL_TIMEOUT, "timeout": 10, "server_settings": {"application_name": name}}


async def is_pooled(connection: asyncpg.Connection[Any]) -> bool:
    """Tell whether a pooler stands in between: then another process answers than the one announced at connect."""
    return await Store(connection).backend_pid() != connection.get_server_pid()


async def hear(connection: asyncpg.Connection[Any], channel: str, heard: Callable[..., None]) -> None:
    """Hear what is notified on `channel` for as long as the connection lasts. Raises DatabaseUnavailable."""
    with translated():
        await connection.add_listener(channel, heard)
