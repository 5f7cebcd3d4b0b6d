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

from scheduler.apps import IMPORTING
from scheduler.errors import ConfigurationError
from worker.attempt import Attempt, Settlement, decided, failure, now
from worker.child import LENGTH, Hello, Order
from worker.executors import Slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scheduler.job import Job
    from worker.executors import Ended

START_TIME = 60.0  # seconds that a child may take to start and to import its modules
_LARGEST_REPLY = 4 * 1024 * 1024  # bytes; results end at 64 kB, error texts at 16
_BOOT = "import sys; sys.path[:0] = {ours!r}; from worker.child import main; sys.path[:] = {theirs!r}; main()"


def child_modules(kinds: Iterable[type[Job]], processes: int) -> list[str]:
    """Return the modules that a child must import. Raises ConfigurationError when it could not, or should not."""
    if IMPORTING:
        raise ConfigurationError(
            f"a Worker is started while {IMPORTING[-1]} is imported for its job classes:"
            ' put what starts it under `if __name__ == "__main__":`'
        )
    in_children = [kind for kind in kinds if kind.options.executor == "process"] if processes else []
    unreachable = ", ".join(kind.__name__ for kind in in_children if kind.__module__ == "__main__")
    if unreachable:
        raise ConfigurationError(
            f"{unreachable}: a CpuBoundJob is defined in the script that is run: move it to a module,"
            " so that a child process can import it, or run the script as --app of scheduler-worker"
            ' with what it starts under `if __name__ == "__main__":`'
        )
    return sorted({kind.__module__ for kind in in_children})


class Child:
    """One child process and the stream to it. Made by `spawn`."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, ours: socket.socket) -> None:
        self.process = process
        self._lifeline = lifeline
        self._socket = ours
        self._killed = False
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter | None = None  # until it is ready

    @classmethod
    def spawn(cls, modules: Sequence[str]) -> Child:
        """Start a child that imports `modules`; await `ready` before giving it a job."""
        ours, theirs = socket.socketpair()
        reading, lifeline = os.pipe()
        arguments = [str(theirs.fileno()), str(reading), str(os.getpid()), *modules]
        process = subprocess.Popen(  # noqa: S603 - a few ms, and the kernel ties the child to this thread
            [sys.executable, "-P", "-c", _boot(), *arguments],
            pass_fds=(theirs.fileno(), reading),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        os.close(reading)
        return cls(process, lifeline, ours)

    async def ready(self) -> None:
        """Wait until the child has imported its modules. Raises ChildProcessError with the reason when it cannot."""
        self.reader, self.writer = await asyncio.open_connection(sock=self._socket)
        hello = await self._receive()
        error = "it ended at once" if hello is None else msgspec.json.decode(hello, type=Hello).error
        if error is not None:
            raise ChildProcessError(error)

    async def run(self, attempt: Attempt) -> Settlement:
        """Run one attempt in the child; when the child dies of it, say how. The child must be idle."""
        order = Order(attempt.context.to_wire(), attempt.payload)
        message = msgspec.json.encode(order)
        assert self.writer is not None
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
        if self.writer is None:
            self._socket.close()
            return
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
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, attempt: Attempt) -> None:
        self.slots.take()
        attempt.deadline += START_TIME  # until it has begun, so that a slow import is not the job's time
        task = asyncio.get_running_loop().create_task(self._run(attempt))
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _run(self, attempt: Attempt) -> None:
        child = await self._idle_child()
        try:
            if attempt.verdict:
                settlement = decided(attempt)
            else:
                child = await self._ready_child(attempt, child)
                attempt.deadline = now() + attempt.context.timeout
                settlement = await child.run(attempt)
        except Exception as error:  # noqa: BLE001 - no child, or what a handler wrote into our pipe: its job fails, no other
            settlement = failure(attempt, "ChildNotUsable", f"the child process cannot be used: {error}")
            if child is not None:
                child.kill()
        attempt.handle = None
        if child is not None and child.alive:
            self._idle.append(child)
        elif child is not None:
            await child.close()
        self.slots.give()
        self._ended(attempt, settlement)

    async def _ready_child(self, attempt: Attempt, child: Child | None) -> Child:
        """Return a child that can be stopped with the attempt from here on, also while a new one still imports."""
        if child is not None:
            attempt.handle = child
            return child
        child = attempt.handle = Child.spawn(self._modules)
        try:
            await child.ready()
        except BaseException:
            await child.close()
            raise
        return child

    async def _idle_child(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            await child.close()
        return None

    def stop(self, attempt: Attempt) -> None:
        if attempt.handle is not None:
            attempt.handle.kill()

    async def close(self) -> None:
        for child in self._idle:
            await child.close()
        self._idle.clear()
