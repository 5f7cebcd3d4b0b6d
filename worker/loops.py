"""The one loop skeleton: all that a worker does again and again is a pass, run by a Loop; it stops step by step."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import TYPE_CHECKING, Any

from scheduler.error_text import describe_exception
from scheduler.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger("scheduler.worker")

FOREVER = 3600.0  # seconds; a pass that waits to be poked
BUSY = 0.02  # seconds until what was locked by somebody is tried again; twice as long each time
LONGEST = 1.0
STEP = 1.2  # seconds for each step that may hang, so that all together take less than 5 after the grace


def jittered(seconds: float) -> float:
    """Return about `seconds`, so that workers started together do not work in step."""
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret


def longer(pause: float, first: float = BUSY, longest: float = LONGEST) -> float:
    """Return the pause, in seconds, that follows this one."""
    return min(max(2 * pause, first), longest)


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event, `seconds` at most (None: for ever); return whether it came."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Loop:
    """One pass, repeated: `poke` makes it run now, `stop` ends it after the pass that runs.

    After a pass that raised it pauses for `longest` seconds at most.
    """

    def __init__(self, name: str, one_pass: Callable[[], Awaitable[float]], longest: float = 2.5) -> None:
        self.name = name
        self._pass = one_pass
        self._longest = longest
        self._poked = asyncio.Event()
        self._alarm_at = math.inf
        self._stopped = False

    def poke(self) -> None:
        self._poked.set()

    def poke_in(self, seconds: float) -> None:
        """Run within so many seconds; the earliest of several such calls counts, and a later one may run it in vain."""
        clock = asyncio.get_running_loop()
        at = clock.time() + max(seconds, 0.0)
        if at < self._alarm_at:
            self._alarm_at = at
            clock.call_later(at - clock.time(), self._ring)

    def _ring(self) -> None:
        self._alarm_at = math.inf
        self.poke()

    def stop(self) -> None:
        self._stopped = True
        self._poked.set()

    async def run(self) -> None:
        """Repeat the pass; it returns in how many seconds it wants to run again.

        A pass that raises is repeated after a growing, jittered pause: nothing that fails once ends a duty.
        """
        failures, wait = 0, 0.0
        while not self._stopped:
            self._poked.clear()  # before the pass: a poke during it counts
            try:
                pause = await self._pass()
                failures, wait = 0, 0.0
            except Exception as error:  # noqa: BLE001 - see above
                failures += 1
                wait = longer(wait, 0.15, self._longest)
                pause = jittered(wait)
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
