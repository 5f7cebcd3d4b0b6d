"""The listener: one connection of its own that turns notices into pokes. Only a hint: the poll is the guarantee."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any

from scheduler.errors import DatabaseUnavailable
from scheduler.store import Store, open_connection

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("scheduler.worker")

WATCH = 15.0  # seconds between questions to a silent connection whether it is still there
LONGEST_PAUSE = 10.0  # seconds between attempts to connect


class Listener:
    """Listens on `channel` until cancelled. `noticed` gets the payload of each notice; after a gap it gets ''."""

    def __init__(self, dsn: str, channel: str, noticed: Callable[[str], None]) -> None:
        self._dsn = dsn
        self._channel = channel
        self._noticed = noticed

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
                failures = 0
            except (DatabaseUnavailable, OSError, TimeoutError) as error:
                failures += 1
                if failures == 1:
                    log.warning("notices are off, polling goes on: %s", error)
            pause = min(0.2 * 2**failures, LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        connection = await open_connection(self._dsn, name="scheduler-worker listener")
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            await connection.add_listener(self._channel, self._heard)
            self._noticed("")
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCH):
                        await ended.wait()
                        break
                async with asyncio.timeout(5):
                    await Store(connection).check_schema()  # any answer will do
        finally:
            connection.terminate()

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:  # noqa: ANN401 - asyncpg's
        self._noticed(str(payload))
