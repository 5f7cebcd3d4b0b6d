"""The listener: one connection of its own that turns notices into pokes. Only a hint: the poll is the guarantee.

Behind a pooler it listens to nothing, for nothing would arrive: it says so once, and the worker polls.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from scheduler.connections import is_pooled, listen, open_connection
from scheduler.settings import dsn_from
from worker.loops import FOREVER, happens

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("scheduler.worker")

WATCH = 15.0  # seconds between questions to a silent connection whether it is still there
RECONNECT = 0.2  # seconds


class Listener:
    """Listens on `channel`. `noticed` gets the payload of each notice; after a gap it gets ''."""

    def __init__(self, dsn: str, channel: str, noticed: Callable[[str], None]) -> None:
        self._dsn = dsn_from(dsn)
        self._channel = channel
        self._noticed = noticed
        self._told = False

    async def listen(self) -> float:
        """Listen until the connection ends; return in how many seconds to connect again."""
        connection = await open_connection(self._dsn, name="scheduler-worker listener")
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            if await is_pooled(connection):
                self._tell()
                return FOREVER
            await listen(connection, self._channel, self._heard)
            self._noticed("")  # what was said before nobody heard
            while not await happens(ended, WATCH):
                async with asyncio.timeout(5):
                    await is_pooled(connection)  # any answer will do
        finally:
            connection.terminate()
        return RECONNECT

    def _tell(self) -> None:
        if not self._told:
            log.warning(
                "notices do not pass a pooler: new jobs are found by polling, and a running job hears of its"
                " cancellation when its lease is renewed; SCHEDULER_LISTEN_DSN, an address without a pooler, is faster"
            )
        self._told = True

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:  # noqa: ANN401 - asyncpg's
        self._noticed(str(payload))
