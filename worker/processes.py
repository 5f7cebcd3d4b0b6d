"""The third way to run a handler: CpuBoundJobs in child processes, one job at a time each.

A child is spawned, never forked; it can be killed; and a child that dies costs one attempt of one job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from worker.attempt import Attempt, Settlement, decided, failure, now
from worker.child import LENGTH, Hello, Order
from worker.executors import Executor
from worker.loops import STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.executors import Ended

log = logging.getLogger("scheduler.worker")

START_TIME = 60.0  # seconds that a child may take to start and to import its modules
_LARGEST_REPLY = 4 * 1024 * 1024  # bytes; results end at 64 kB, error texts at 16
_BOOT = "import sys; sys.path[:0] = {ours!r}; from worker.child import main; sys.path[:] = {theirs!r}; main()"


class Child:
    """One child process, which imports `modules` and may have so many MB, and the stream to it: first await `ready`."""

    def __init__(self, modules: Sequence[str], memory: int = 0) -> None:
        self._killed = False
        self.jobs = 0  # given to it
        self.retired = False  # its successor is there
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter | None = None  # until it is ready
        self._socket, theirs = socket.socketpair()
        reading, self._lifeline = os.pipe()
        arguments = [str(theirs.fileno()), str(reading), str(os.getpid()), str(memory), *modules]
        self.process = subprocess.Popen(  # noqa: S603 - a few ms, and the kernel ties the child to this thread
            [sys.executable, "-P", "-c", _boot(), *arguments],
            pass_fds=(theirs.fileno(), reading),
            stdin=subprocess.DEVNULL,
            process_group=0,  # the programs that a handler starts end with the child
        )
        theirs.close()
        os.close(reading)

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
        self.jobs += 1
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
            hint = " (as Linux does when memory runs out)" if -code == signal.SIGKILL else ""
            return f"was ended by {signal.Signals(-code).name}{hint}"
        return f"was ended by signal {-code}"

    @property
    def alive(self) -> bool:
        return not self._killed and self.process.poll() is None

    def kill(self) -> None:
        self._killed = True  # it may live on for a moment, and must not get another job
        if self.process.returncode is None:  # not waited for yet, so the number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # a handler may have moved it to another group

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


class ProcessExecutor(Executor):
    """Keeps idle children for the next job; starts them when they are first needed.

    A child that ran out of memory is replaced at once. One that has run `most_jobs` serves until its successor has
    started, so that no job waits for a start, nor fails with it.
    """

    name = "process"

    def __init__(self, total: int, ended: Ended, modules: Sequence[str], memory: int = 0, most_jobs: int = 0) -> None:
        super().__init__(total, ended)
        self._modules = modules
        self._memory = memory
        self._most_jobs = most_jobs
        self._succession: asyncio.Task[None] | None = None  # one at a time
        self._idle: list[Child] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handing = threading.Lock()  # so that halt never kills a child that has gone on to another attempt

    def start(self, attempt: Attempt) -> None:
        self.slots.take()
        attempt.deadline += START_TIME  # until it has begun, so that a slow import is not the job's time
        task = self._loop.create_task(self._run(attempt))
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _run(self, attempt: Attempt) -> None:
        child = await self._idle_child()
        try:
            if attempt.verdict:
                settlement = decided(attempt)
            else:
                child = attempt.handle = child or await self._new_child(attempt)
                attempt.deadline = now() + attempt.context.timeout
                settlement = await child.run(attempt)
        except Exception as error:  # noqa: BLE001 - no child, or what a handler wrote into our pipe: its job fails, no other
            settlement = failure(attempt, "ChildNotUsable", f"the child process cannot be used: {error}")
            if child is not None:
                child.kill()
        with self._handing:
            attempt.handle = None
        if child is not None:
            if "MemoryError" in (settlement.traceback or ""):  # of any class, or as a cause; nobody knows its state
                child.kill()
            await self._put_back(child)
        self.slots.give()
        self._ended(attempt, settlement)

    async def _new_child(self, attempt: Attempt | None = None) -> Child:
        """Start a child; with an attempt it can be stopped from here on, also while it still imports."""
        child = Child(self._modules, self._memory)
        if attempt is not None:
            attempt.handle = child
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

    async def _put_back(self, child: Child) -> None:
        if not child.alive or child.retired or len(self._idle) >= self.slots.total:
            await child.close()
            return
        self._idle.append(child)
        if 0 < self._most_jobs <= child.jobs and (self._succession is None or self._succession.done()):
            self._succession = self._loop.create_task(self._succeed(child))

    async def _succeed(self, child: Child) -> None:
        """Replace a child that has run its jobs; when that fails it runs as many again."""
        try:
            async with asyncio.timeout(START_TIME):
                successor = await self._new_child()
        except Exception as error:  # noqa: BLE001 - no process to be had, a module that is gone: no job needs to know
            log.warning("a child process goes on after %d jobs, as its successor cannot start: %s", child.jobs, error)
            child.jobs = 0
            return
        child.retired = True
        self._idle.append(successor)
        if child in self._idle:
            self._idle.remove(child)
            await child.close()

    def halt(self, attempt: Attempt) -> None:
        with self._handing:
            if attempt.handle is not None:
                attempt.handle.kill()

    async def close(self) -> None:
        if self._succession is not None:
            self._succession.cancel()
            await asyncio.wait([self._succession], timeout=STEP)
        for child in self._idle:
            await child.close()
        self._idle.clear()
