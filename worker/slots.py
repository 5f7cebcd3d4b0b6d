"""Slots: how many attempts an executor may run at once, and waiting for room."""

import asyncio

from worker.loops import happens


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
