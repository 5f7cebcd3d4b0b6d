"""The listener: one connection of its own that turns notices into pokes. Only a hint: the poll is the guarantee.

Behind a pooler it listens to nothing, for nothing would arrive: it says so, and the worker polls.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from scheduler.connections import hear, is_pooled, open_connection
from worker.loops import FOREVER, happens

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("scheduler.worker")

WATCH = 15.0  # seconds between questions to a silent connection whether it is still there
RECONNECT = 0.2  # seconds
DEAF = (
    "notices do not pass a pooler: new jobs are found by polling, and a running job hears of its"
    " cancellation when its lease is renewed; SCHEDULER_LISTEN_DSN, an address without a pooler, is faster"
)


async def listen(dsn: str, channel: str, noticed: Callable[[str], None]) -> float:
    """Give the payload of each notice to `noticed`, and '' after a gap; return in how many seconds to connect again."""
    connection = await open_connection(dsn, name="scheduler-worker listener")
    ended = asyncio.Event()
    connection.add_termination_listener(lambda _: ended.set())
    try:
        if await is_pooled(connection):
            log.warning(DEAF)
            return FOREVER
        await hear(connection, channel, lambda _connection, _pid, _channel, payload: noticed(payload))
        noticed("")  # what was said before nobody heard
        while not await happens(ended, WATCH):
            async with asyncio.timeout(5):
                await is_pooled(connection)  # any answer will do
    finally:
        connection.terminate()
    return RECONNECT
