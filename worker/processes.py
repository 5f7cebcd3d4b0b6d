"""The third way to run a handler: CpuBoundJobs in child processes, one job at a time each.

A child is spawned, never forked; it can be killed; and a child that dies costs one attempt of one job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from worker.attempt import Attempt, Settlement, decided, failure
from worker.child import LENGTH, Hello, Order
from worker.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Ended = Callable[[Attempt, Settlement], None]

_LARGEST_REPLY = 4 * 1024 * 1024  # bytes; results end at 64 kB, error texts at 16
_BOOT = "import sys; sys.path[:0] = {ours!r}; from worker.child import main; sys.path[:] = {theirs!r}; main()"
IMPORT_TIME = 60.0  # seconds


class Child:
    """One child process and the stream to it. Made by `spawn`."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self.process = process
        self._lifeline = lifeline
        self._killed = False
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    @classmethod
    async def spawn(cls, modules: Sequence[str]) -> Child:
        """Start a child that has imported `modules`. Raises ChildProcessError with the reason when it could not."""
        ours, theirs = socket.socketpair()
        reading, lifeline = os.pipe()
        arguments = [str(theirs.fileno()), str(reading), str(os.getpid()), *modules]
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - a few ms, and the kernel ties the child to this thread
            [sys.executable, "-P", "-c", _boot(), *arguments],
            pass_fds=(theirs.fileno(), reading),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        os.close(reading)
        child = cls(process, lifeline)
        child.reader, child.writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(IMPORT_TIME):
                hello = await child._receive()
            error = "it ended at once" if hello is None else msgspec.json.decode(hello, type=Hello).error
        except TimeoutError:
            error = f"its modules were not imported within {IMPORT_TIME:g} s"
        if error is not None:
            await child.close()
            raise ChildProcessError(error)
        return child

    async def run(self, attempt: Attempt) -> Settlement:
        """Run one attempt in the child; when the child dies of it, say how. The child must be idle."""
        order = Order(attempt.context.to_wire(), attempt.handle)
        message = msgspec.json.encode(order)
        with contextlib.suppress(ConnectionError):
            self.writer.write(len(message).to_bytes(LENGTH, "big") + message)
            await self.writer.drain()
        answer = await self._receive()
        if answer is None:
            return failure(attempt, "ChildDied", f"the process that ran the job {await self._end()}")
        return msgspec.json.decode(answer, type=Settlement)

    async def _receive(self) -> bytes | None:
        try:
            size = int.from_bytes(await self.reader.readexactly(LENGTH), "big")
            return await self.reader.readexactly(size) if size <= _LARGEST_REPLY else None
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _end(self) -> str:
        self.kill()
        code = await asyncio.to_thread(self.process.wait)
        if code >= 0:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"

    @property
    def alive(self) -> bool:
        return not self._killed and self.process.poll() is None

    def kill(self) -> None:
        self._killed = True  # it may live on for a moment, and must not get another job
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def close(self) -> None:
        """Kill the child and free what belongs to it."""
        self.kill()
        await asyncio.to_thread(self.process.wait)
        os.close(self._lifeline)
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def _boot() -> str:
    """Return the child's program: our packages before the user's folders, so that a worker.py of theirs is no trap."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100 - a plain string
    return _BOOT.format(ours=[ours], theirs=sys.path)


class ProcessExecutor:
    """Keeps idle children for the next job; starts them when they are first needed."""

    name = "process"

    def __init__(self, total: int, ended: Ended, modules: Sequence[str]) -> None:
        self.slots = Slots(total)
        self._ended = ended
        self._modules = modules
        self._idle: list[Child] = []
        self._running: dict[int, tuple[asyncio.Task[None], Child | None]] = {}

    def start(self, attempt: Attempt) -> None:
        self.slots.take()
        task = asyncio.get_running_loop().create_task(self._run(attempt))
        self._running[id(attempt)] = task, None

    async def _run(self, attempt: Attempt) -> None:
        child: Child | None = None
        try:
            child = await self._child()
            self._running[id(attempt)] = self._running[id(attempt)][0], child
            attempt.begun = True
            settlement = decided(attempt) if attempt.verdict else await child.run(attempt)
        except ChildProcessError as error:
            settlement = failure(attempt, "ChildNotStarted", f"the child process cannot start: {error}")
        except Exception as error:  # noqa: BLE001 - what a handler wrote into our pipe, say: its job fails, no other
            settlement = failure(attempt, "ChildFailed", f"the child process cannot be understood: {error}")
            if child is not None:
                child.kill()
        finally:
            del self._running[id(attempt)]
            self.slots.give()
        if child is not None and child.alive:
            self._idle.append(child)
        elif child is not None:
            await child.close()
        self._ended(attempt, settlement)

    async def _child(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            await child.close()
        return await Child.spawn(self._modules)

    def stop(self, attempt: Attempt) -> None:
        entry = self._running.get(id(attempt))
        if entry is not None and entry[1] is not None:
            entry[1].kill()

    async def close(self) -> None:
        for child in self._idle:
            await child.close()
        self._idle.clear()
