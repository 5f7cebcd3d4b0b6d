"""Connections to PostgreSQL, direct or through a pooler.

Nothing here or in the verbs needs a session, so a pooler in transaction mode (PgBouncer) may stand in between. Two
things do not pass it: notices, and statements that stay prepared. Whether there is one is found out, not configured.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg

from scheduler import embedded
from scheduler.store import CALL_TIMEOUT, Store
from scheduler.translation import translated

if TYPE_CHECKING:
    from collections.abc import Callable

STATEMENTS = 100  # kept prepared in each connection of a pool


async def reach(dsn: str) -> embedded.Held:
    """Return what has the address of the server; until it is closed, an embedded one runs."""
    return await asyncio.to_thread(embedded.hold, dsn) if embedded.is_embedded(dsn) else embedded.Held(dsn)


async def _no_reset(_: asyncpg.Connection[Any]) -> None:
    """Leave a returned connection as it is: nothing here keeps state in a session, and a reset is a round trip."""


async def open_pool(dsn: str, *, size: int, name: str) -> asyncpg.Pool[Any]:
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
    return await asyncpg.create_pool(
        dsn, min_size=0, max_size=size, reset=_no_reset, statement_cache_size=statements, **_options(name)
    )


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


async def listen(connection: asyncpg.Connection[Any], channel: str, heard: Callable[..., None]) -> None:
    """Hear what is notified on `channel` for as long as the connection lasts. Raises DatabaseUnavailable."""
    with translated():
        await connection.add_listener(channel, heard)
