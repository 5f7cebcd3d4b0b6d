"""Two of the three ways to run a handler: on the event loop, and in a thread. Processes: see processes.

An executor calls `ended` on the event loop when the handler has stopped, and before that when it gives the handler up;
the first call counts. A slot comes back with the handler or, for a bounded number of threads, without it. It never
touches the store.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar

from scheduler.graph import JOB
from worker.attempt import Attempt, Settlement, decided, raised, returned
from worker.loops import happens

if TYPE_CHECKING:
    from collections.abc import Callable

    Ended = Callable[[Attempt, Settlement], None]

log = logging.getLogger("scheduler.worker")

STOP_PATIENCE = 1.0  # seconds between telling a handler to stop and telling it again
STOP_TRIES = 3


class Slots:
    """Counts attempts. Owned by the event loop: no await lies between a check and its act."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self.peak = 0
        self._change = asyncio.Event()

    @property
    def free(self) -> int:
        return self.total - self.taken

    def take(self) -> None:
        self.taken += 1
        self.peak = max(self.peak, self.taken)

    def give(self) -> None:
        self.taken -= 1
        self._change.set()

    def stir(self) -> None:
        """Make whoever waits for room look again: the worker is stopping."""
        self._change.set()

    async def room(self, wanted: int, patience: float) -> int:
        """Return the free slots once there are `wanted`, or at least one after `patience` seconds; 0 when stirred."""
        while self.free < wanted:
            self._change.clear()
            if not await happens(self._change, patience if self.free else None) or not self.free:
                break
        return self.free


class Executor:
    """What all executors have: slots, and `abandoned`, the attempts that go on although they have ended."""

    name: ClassVar[str]

    def __init__(self, total: int, ended: Ended) -> None:
        self.slots = Slots(total)
        self.abandoned: set[Attempt] = set()
        self._ended = ended
        self._loop = asyncio.get_running_loop()

    def start(self, attempt: Attempt) -> None:
        """Run the attempt; a slot was free."""
        raise NotImplementedError

    def halt(self, attempt: Attempt) -> None:
        """Stop the attempt as far as it can be done from any thread, while the event loop is blocked."""
        attempt.context.cancel()

    def stop(self, attempt: Attempt) -> None:
        """Do the rest, in the event loop; its verdict is set."""

    async def close(self) -> None:
        """Free what the executor holds; no attempt is open any more."""


class AsyncExecutor(Executor):
    """Runs AsyncJobs as tasks of the event loop, each in an empty context of its own."""

    name = "async"

    def start(self, attempt: Attempt) -> None:
        self.slots.take()
        attempt.handle = self._loop.create_task(self._run(attempt), context=contextvars.Context())

    async def _run(self, attempt: Attempt) -> None:
        attempt.begun = True
        JOB.set(attempt.id)
        try:
            settlement = returned(attempt, await attempt.job.run(attempt.context))  # type: ignore[attr-defined] # AsyncJob
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler ends the handler, not the worker
            settlement = raised(attempt, error)
        self.abandoned.discard(attempt)
        self.slots.give()
        self._ended(attempt, settlement)

    def stop(self, attempt: Attempt) -> None:
        if not attempt.begun:  # cancelled now, its coroutine would never run, and nobody would give the slot back
            attempt.handle.cancel()
            self.slots.give()
            self._ended(attempt, decided(attempt))
            return
        self._cancel(attempt, STOP_TRIES)

    def _cancel(self, attempt: Attempt, tries: int) -> None:
        if not attempt.open or attempt.handle.done():
            return
        if tries:
            attempt.handle.cancel()
            self._loop.call_later(STOP_PATIENCE, self._cancel, attempt, tries - 1)
        else:  # its slot stays taken for as long as it goes on
            self.abandoned.add(attempt)
            words = "job %s (%s) swallows its cancellation and goes on in its slot; %d AsyncJobs do"
            log.warning(words, attempt.id, attempt.context.kind, len(self.abandoned))
            self._ended(attempt, decided(attempt))


class ThreadExecutor(Executor):
    """Runs BlockingJobs in daemon threads of its own, which never keep the process alive.

    A thread cannot be killed. One that does not stop when told is abandoned: its attempt ends and another thread takes
    its place. At most as many threads as there are slots are abandoned at a time; beyond that a slot stays taken. An
    abandoned thread that returns after all serves again.
    """

    name = "thread"

    def __init__(self, total: int, ended: Ended) -> None:
        super().__init__(total, ended)
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads = 0

    def start(self, attempt: Attempt) -> None:
        if self._threads - min(len(self.abandoned), self.slots.total) <= self.slots.taken:
            threading.Thread(target=self._serve, name=f"scheduler-job-{self._threads}", daemon=True).start()
            self._threads += 1
        self.slots.take()
        self._inbox.put(attempt)

    def _serve(self) -> None:
        while (attempt := self._inbox.get()) is not None:
            try:
                own = contextvars.Context()
                own.run(JOB.set, attempt.id)
                value = own.run(attempt.job.run, attempt.context)  # type: ignore[attr-defined] # BlockingJob
                settlement = returned(attempt, value)
            except BaseException as error:  # noqa: BLE001 - see AsyncExecutor
                settlement = raised(attempt, error)
            try:
                self._loop.call_soon_threadsafe(self._finished, attempt, settlement)
            except RuntimeError:  # the loop is closed: an abandoned thread has outlived the worker
                return

    def _finished(self, attempt: Attempt, settlement: Settlement) -> None:
        if attempt not in self.abandoned or len(self.abandoned) > self.slots.total:
            self.slots.give()
        self.abandoned.discard(attempt)
        self._ended(attempt, settlement)

    def stop(self, attempt: Attempt) -> None:
        self._loop.call_later(STOP_PATIENCE, self._abandon, attempt)

    def _abandon(self, attempt: Attempt) -> None:
        if not attempt.open:
            return
        self.abandoned.add(attempt)
        words = "job %s (%s) does not stop; its thread is left to itself, as are %d of at most %d"
        log.warning(words, attempt.id, attempt.context.kind, len(self.abandoned), 2 * self.slots.total)
        if len(self.abandoned) <= self.slots.total:
            self.slots.give()
        self._ended(attempt, decided(attempt))

    async def close(self) -> None:
        """Send the threads home; one that is busy goes when its handler returns, or with the process."""
        for _ in range(self._threads):
            self._inbox.put(None)
