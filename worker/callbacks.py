"""Callbacks: functions of the user's that are told of transitions, in a thread of their own.

One that raises is logged, and told of the next; one that is slow, or blocks for ever, costs what the queue cannot hold.
None keeps a claim, a renewal or the end of the process waiting; but all share the interpreter.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from scheduler.errors import ConfigurationError
from scheduler.store import Store
from worker.attempt import now
from worker.transitions import Callback, TellingStore, Transition

if TYPE_CHECKING:
    from uuid import UUID

    from scheduler.calls import Caller
    from worker.attempt import Leases

log = logging.getLogger("scheduler.worker")

CAPACITY = 10_000  # transitions that wait to be told
PATIENCE = 1.0  # seconds that a stopping worker waits until they have been
QUIET = 10.0  # seconds between two lines of the log


class Callbacks:
    """Tells callbacks of transitions, in the order in which the verbs were answered. `dropped` counts those not told.

    All but the telling is owned by the event loop of the worker. Raises ConfigurationError for what cannot be called in
    a thread.
    """

    def __init__(self, given: object) -> None:
        several = given if isinstance(given, Iterable) and not callable(given) else [given]
        self._callbacks = [_checked(callback) for callback in several]
        self._queue: SimpleQueue[Transition | None] = SimpleQueue()
        self._failures = self.dropped = 0
        self._closed = False
        self._quiet_until: dict[str, float] = {}
        self._thread = threading.Thread(target=self._serve, name="scheduler-transitions", daemon=True)

    def store(self, caller: Caller, worker: UUID, leases: Leases) -> Store:
        """Return a store whose verbs are told if there is somebody to tell."""
        return TellingStore(caller, worker, leases, self.tell) if self._callbacks else Store(caller)

    def start(self) -> None:
        if self._callbacks:
            self._thread.start()

    def tell(self, transitions: list[Transition]) -> None:
        room = max(CAPACITY - self._queue.qsize(), 0)
        for transition in transitions[:room]:
            self._queue.put(transition)
        self._drop(len(transitions[room:]))

    def _drop(self, number: int) -> None:
        self.dropped += number
        if number:
            self._warn("%d transitions were dropped: the callbacks are too slow", self.dropped)

    def _serve(self) -> None:
        while (transition := self._queue.get()) is not None:
            for callback in self._callbacks:
                if self._closed:
                    return
                try:
                    callback(transition)
                except BaseException as error:  # noqa: BLE001 - SystemExit, too, is the callback's own affair
                    self._failures += 1
                    self._warn("a callback of transitions raised (time %d)", self._failures, error)

    def _warn(self, words: str, count: int, error: BaseException | None = None) -> None:
        """Log it, unless the same was logged a moment ago."""
        if now() >= self._quiet_until.get(words, 0.0):
            self._quiet_until[words] = now() + QUIET
            log.warning(words, count, exc_info=error)

    async def close(self) -> None:
        """Let what waits be told, for a moment; after that nothing is."""
        if self._thread.is_alive():
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join, PATIENCE)
            self._closed = True
            self._drop(self._queue.qsize())  # the None in it stands for the transition that is being told


def _checked(callback: object) -> Callback:
    if not callable(callback) or any(map(inspect.iscoroutinefunction, (callback, type(callback).__call__))):
        raise ConfigurationError(
            f"on_transition takes plain functions of one argument, not {callback!r}: they are called in a thread of"
            " their own, from which asyncio.run_coroutine_threadsafe reaches your event loop"
        )
    return callback
