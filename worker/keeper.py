"""The keeper: renews the leases of everything that runs, from a thread with its own loop and its own connection.

So a handler that blocks the event loop does not lose its lease, and a full connection pool does not either. The keeper
also watches: the event loop (how long it has been blocked, and by which line), and the worker's own clock. A lease
counts from the instant its claim or renewal was sent; past it, less a margin, the attempt is stopped without asking,
because somebody else may be running the job by now. It never runs user code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduler.connections import open_connection
from scheduler.store import Store
from worker.attempt import Attempt, now
from worker.loops import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from uuid import UUID

    import asyncpg

log = logging.getLogger("scheduler.worker")

TICK = 0.25  # seconds between looks at the clocks
BLOCKED_AFTER = 1.0  # seconds without a turn of the event loop
AGAIN = 0.5  # seconds until a renewal that failed, or found a row locked, is tried again
MARGIN = 0.1  # share of the lease that the worker's own clock gives away
BEAT = 10.0  # seconds; the longest pause between two signs of life in the list of workers


@dataclass(eq=False)
class Keeper:
    """Keeps `leases` alive. `lost` and `cancel` are called on the worker's event loop with attempts to stop."""

    dsn: str
    worker: UUID
    lease: timedelta
    heartbeat: timedelta
    leases: Mapping[int, Attempt]
    lost: Callable[[list[Attempt]], None]
    cancel: Callable[[list[Attempt]], None]

    def __post_init__(self) -> None:
        self._every = self.heartbeat.total_seconds()
        self._home = asyncio.get_running_loop()
        self._home_thread = threading.get_ident()
        self._turn = now()  # when the worker's event loop last had its turn
        self._reported_block = False
        self._connection: asyncpg.Connection[Any] | None = None
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._renewing = Loop("renew", self._renew, min(AGAIN, self._every))
        self._everything = False  # the next renewal is of all that runs
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="scheduler-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._tick_home()

    def poke(self) -> None:
        """Renew now, and everything: a cancellation was requested."""
        self._everything = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._renewing.poke)

    async def stop(self) -> None:
        """End the thread; the last thing a worker stops."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, 1.0)

    def _tick_home(self) -> None:
        self._turn = now()
        if not self._stopping.is_set():
            self._home.call_later(TICK, self._tick_home)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        renewing = asyncio.create_task(self._renewing.run())
        while not self._stopping.is_set():  # beside the renewals: while one hangs, leases run out all the same
            self._watch_loop()
            soonest = self._watch_leases()
            await asyncio.sleep(min(TICK, max(soonest, 0.01)))
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        if self._connection is not None:
            self._connection.terminate()

    async def _renew(self) -> float:
        """Renew what is old enough, or everything; return in how many seconds to renew again."""
        everything, self._everything = self._everything, False
        sent = now()
        due = [a for a in list(self.leases.values()) if (everything or sent - a.leased_at >= self._every / 2)]
        due = [a for a in due if a.verdict != "lost" and (sent < a.deadline + self._every or not a.open)]
        patience = self._every  # less than a lease: a connection that has gone silent is replaced in time
        if self._connection is None or self._connection.is_closed():
            self._connection = await open_connection(self.dsn, name="scheduler-worker keeper")
            patience = self.lease.total_seconds()  # it has just answered; its first call plans, which may be slow
        try:
            async with asyncio.timeout(patience):
                missed = await Store(self._connection).renew(
                    self.worker, [a.id for a in due], [a.fence for a in due], self.lease
                )
        except BaseException:
            self._connection.terminate()
            raise
        by_id = {a.id: a for a in due}
        for attempt in due:
            if attempt.id not in missed.lost and attempt.id not in missed.busy:
                attempt.leased_at = sent
        self._stop([by_id[i] for i in missed.lost])
        self._tell(self.cancel, [by_id[i] for i in missed.cancel])
        return AGAIN if missed.busy else min(self._every, BEAT)

    def _tell(self, whom: Callable[[list[Attempt]], None], attempts: list[Attempt]) -> None:
        if attempts:
            self._home.call_soon_threadsafe(whom, attempts)

    def _stop(self, attempts: list[Attempt]) -> None:
        """Tell that leases are lost; and do what can be done should the event loop be blocked, and not listen."""
        self._tell(self.lost, attempts)
        for attempt in attempts:
            attempt.executor.halt(attempt)

    def _watch_leases(self) -> float:
        """Stop what has outlived its lease by our own clock; return in how many seconds the next one would."""
        last = now() - self.lease.total_seconds() * (1 - MARGIN)
        held = [a for a in list(self.leases.values()) if a.open and a.verdict != "lost"]
        self._stop([a for a in held if a.leased_at <= last])
        return min((a.leased_at - last for a in held if a.leased_at > last), default=TICK)

    def _watch_loop(self) -> None:
        blocked = now() - self._turn
        if blocked < BLOCKED_AFTER:
            self._reported_block = False
        elif not self._reported_block:
            self._reported_block = True
            frame = sys._current_frames().get(self._home_thread)  # noqa: SLF001 - the documented way to another thread's stack
            stack = "".join(traceback.format_stack(frame)) if frame is not None else "(unknown)\n"
            log.warning(
                "the event loop has been blocked for %.1f s; leases are kept, but no AsyncJob can go on."
                " Blocking code belongs in a BlockingJob or CpuBoundJob. It stands at:\n%s", blocked, stack,
            )  # fmt: skip
