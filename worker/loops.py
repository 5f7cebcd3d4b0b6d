"""The one loop skeleton: all that a worker does again and again is a pass, run by a Loop; it stops step by step."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

from scheduler.error_text import describe_exception
from scheduler.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger("scheduler.worker")

FOREVER = 3600.0  # seconds; a pass that waits to be poked
STEP = 1.2  # seconds for each step that may hang, so that all together take less than 5 after the grace


def jittered(seconds: float) -> float:
    """Return about `seconds`, so that workers started together do not work in step."""
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event, `seconds` at most (None: for ever); return whether it came."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Loop:
    """One pass, repeated: `poke` makes it run now, `stop` ends it after the pass that runs."""

    def __init__(self, name: str, one_pass: Callable[[], Awaitable[float]]) -> None:
        self.name = name
        self._pass = one_pass
        self._poked = asyncio.Event()
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0  # kept here: what uvloop returns for a moment so near as this does not know it
        self._stopped = False

    def poke(self) -> None:
        self._poked.set()

    def poke_in(self, seconds: float) -> None:
        """Run within so many seconds; the earliest of several such calls counts."""
        clock = asyncio.get_running_loop()
        at = clock.time() + max(seconds, 0.0)
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm, self._alarm_at = clock.call_later(at - clock.time(), self._ring), at

    def _ring(self) -> None:
        self._alarm = None
        self.poke()

    def stop(self) -> None:
        self._stopped = True
        self._poked.set()

    async def run(self) -> None:
        """Repeat the pass; it returns in how many seconds it wants to run again.

        A pass that raises is repeated after a growing, jittered pause: nothing that fails once ends a duty.
        """
        failures = 0
        while not self._stopped:
            self._poked.clear()  # before the pass: a poke during it counts
            try:
                pause = await self._pass()
                failures = 0
            except Exception as error:  # noqa: BLE001 - see above
                failures += 1
                pause = min(0.1 * 2**failures, 3.0) * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
                self._report(error, failures)
            if pause > 0 and not self._stopped:
                await happens(self._poked, pause)

    def _report(self, error: Exception, failures: int) -> None:
        known = isinstance(error, DatabaseUnavailable | OSError)
        if failures in {1, 10} or failures % 100 == 0:
            _, words, trace = describe_exception(error)  # without the values that a database may quote
            log.warning(
                "%s: %s (failure %d, trying again)%s",
                self.name, words or "no answer in time", failures, "" if known else f"\n{trace}",
            )  # fmt: skip


class Steps:
    """Takes the steps of stopping, none of which may keep the process: a database that does not answer is left behind.

    `silent`: the database has not answered during one; the next are not waited for.
    """

    def __init__(self) -> None:
        self.silent = False

    async def take(self, step: Awaitable[Any]) -> None:
        """Take one step, or leave it: it is not awaited after its time, as the driver would wait for an answer then."""
        task = asyncio.ensure_future(step)
        if self.silent:
            task.cancel()
        done, _ = await asyncio.wait([task], timeout=STEP)
        self.silent = self.silent or not done
        if not done:
            task.cancel()
            log.warning("the database does not answer; stopping goes on without it")
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning("stopping goes on: %s", error)
