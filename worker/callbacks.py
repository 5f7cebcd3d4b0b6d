"""Callbacks: functions of the user's that are told of transitions, in a thread of their own.

One that raises is logged, and told of the next; one that is slow, or blocks for ever, costs what the queue cannot hold.
None keeps a claim, a renewal or the end of the process waiting; but all share the interpreter.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from collections.abc import Iterable
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

from scheduler.errors import ConfigurationError
from scheduler.store import Store
from worker.attempt import now
from worker.transitions import VERBS, Callback, TellingStore, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from scheduler.calls import Caller
    from worker.attempt import Leases

log = logging.getLogger("scheduler.worker")

CAPACITY = 10_000  # transitions that wait to be told
PATIENCE = 1.0  # seconds that a stopping worker waits until they have been
QUIET = 10.0  # seconds between two lines of the log


class Callbacks:
    """Tells callbacks of transitions, each job's in the order in which they happened. `dropped` counts those not told.

    Answers over several connections may cross: a job promoted over one can be claimed over another whose answer is here
    first. So what a call did is held until the calls that were under way at its answer are answered too. All but the
    telling is owned by the event loop of the worker. Raises ConfigurationError for what cannot be called in a thread.
    """

    def __init__(self, given: object) -> None:
        several = given if isinstance(given, Iterable) and not callable(given) else [given]
        self._callbacks = [_checked(callback) for callback in several]
        self._calls = 0
        self._under_way: set[int] = set()
        self._held: dict[int, list[tuple[int, Transition]]] = {}  # by job; each with the newest call at its answer
        self._queue: SimpleQueue[list[Transition] | None] = SimpleQueue()
        self._queued = self._told = self._failures = self.dropped = 0
        self._closed = False
        self._quiet_until = {"drops": 0.0, "failures": 0.0}
        self._thread = threading.Thread(target=self._serve, name="scheduler-transitions", daemon=True)

    def store(self, caller: Caller, worker: UUID, leases: Leases) -> Store:
        """Return a store whose verbs are told if there is somebody to tell."""
        return TellingStore(caller, worker, leases, self) if self._callbacks else Store(caller)

    def start(self) -> None:
        if self._callbacks:
            self._thread.start()

    @contextmanager
    def call(self) -> Iterator[list[Transition]]:
        """Enclose the call of a verb; what it did is put into the list."""
        self._calls += 1
        number, did = self._calls, list[Transition]()
        self._under_way.add(number)
        try:
            yield did
        finally:
            self._under_way.remove(number)
            for transition in did:
                waiting = self._held.setdefault(transition.job_id, [])
                waiting.append((self._calls, transition))
                waiting.sort(key=lambda held: (held[1].attempt, VERBS[held[1].verb][1]))
            oldest = min(self._under_way, default=math.inf) if len(self._held) < CAPACITY else math.inf
            if number < oldest:  # else an older call keeps everything waiting still
                self._hand_on(oldest)

    def _hand_on(self, oldest: float) -> None:
        """Queue what was answered before the oldest call under way began, and what its jobs did before that."""
        due: list[Transition] = []
        for job_id, waiting in list(self._held.items()):
            ready = max((n for n, (call, _) in enumerate(waiting, 1) if call < oldest), default=0)
            due += [transition for _, transition in waiting[:ready]]
            self._held[job_id] = waiting[ready:]
            if not waiting[ready:]:
                del self._held[job_id]
        if not due:
            return
        room = CAPACITY - (self._queued - self._told)
        self._queued += len(due[:room])
        self._queue.put(due[:room])
        self._drop(len(due[room:]))

    def _drop(self, number: int) -> None:
        self.dropped += number
        if number and self._speaks("drops"):
            log.warning("%d transitions were dropped: the callbacks are too slow", self.dropped)

    def _serve(self) -> None:
        while (transitions := self._queue.get()) is not None:
            for transition in transitions:
                for callback in self._callbacks:
                    if self._closed:
                        return
                    try:
                        callback(transition)
                    except BaseException as error:  # SystemExit, too, is the callback's own affair
                        self._failures += 1
                        if self._speaks("failures"):
                            log.warning("a callback of transitions raised (time %d)", self._failures, exc_info=error)
                self._told += 1  # by this thread alone

    def _speaks(self, what: str) -> bool:
        """Tell whether a line of the log about this is due."""
        due = now() >= self._quiet_until[what]
        if due:
            self._quiet_until[what] = now() + QUIET
        return due

    async def close(self) -> None:
        """Let what waits be told, for a moment; after that nothing is."""
        if self._thread.is_alive():
            self._hand_on(math.inf)
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join, PATIENCE)
            self._closed = True
            self._drop(self._queued - self._told)


def _checked(callback: object) -> Callback:
    if not callable(callback) or any(map(inspect.iscoroutinefunction, (callback, type(callback).__call__))):
        raise ConfigurationError(
            f"on_transition takes plain functions of one argument, not {callback!r}: they are called in a thread of"
            " their own, from which asyncio.run_coroutine_threadsafe reaches your event loop"
        )
    return callback
