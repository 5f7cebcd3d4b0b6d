"""The listener: one connection of its own that turns notices into pokes. Only a hint: the poll is the guarantee."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from scheduler.store import Store, listen, open_connection
from worker.loops import happens

if TYPE_CHECKING:
    from collections.abc import Callable

WATCH = 15.0  # seconds between questions to a silent connection whether it is still there
RECONNECT = 0.2  # seconds


class Listener:
    """Listens on `channel`. `noticed` gets the payload of each notice; after a gap it gets ''."""

    def __init__(self, dsn: str, channel: str, noticed: Callable[[str], None]) -> None:
        self._dsn = dsn
        self._channel = channel
        self._noticed = noticed

    async def listen(self) -> float:
        """Listen until the connection ends; return in how many seconds to connect again."""
        connection = await open_connection(self._dsn, name="scheduler-worker listener")
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            await listen(connection, self._channel, self._heard)
            self._noticed("")  # what was said before nobody heard
            while not await happens(ended, WATCH):
                async with asyncio.timeout(5):
                    await Store(connection).check_schema()  # any answer will do
        finally:
            connection.terminate()
        return RECONNECT

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:  # noqa: ANN401 - asyncpg's
        self._noticed(str(payload))
