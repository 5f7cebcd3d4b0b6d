"""The job classes that these tests run: in the process of a test, and in real workers by `--app jobs`."""

import asyncio
import contextlib
import contextvars
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from scheduler import AsyncJob, BlockingJob, Context, CpuBoundJob, NonRetryableError, Queue, Retry, RetryAfter, Snooze

# Return what they are given.


class Echo(AsyncJob):
    value: Any = None

    async def run(self, ctx: Context):
        return self.value


class EchoInThread(BlockingJob):
    value: Any = None

    def run(self, ctx: Context):
        return self.value


class EchoInProcess(CpuBoundJob):
    value: Any = None

    def run(self, ctx: Context):
        return self.value


class Typed(AsyncJob):
    number: int
    text: str = ""

    async def run(self, ctx: Context):
        return self.number


class TypedInProcess(CpuBoundJob):
    number: int

    def run(self, ctx: Context):
        return self.number


class Short(AsyncJob):
    async def run(self, ctx: Context):
        await asyncio.sleep(0.05)


Queue("by_rank", ordering="aging")
Queue("by_time", ordering="fifo")
Queue("by_level", ordering="strict")

# Do one thing that a handler should not do.


class UnreadableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.lock = threading.Lock()


class EmptySnooze(Snooze):
    def __init__(self):
        Exception.__init__(self, "made without a delay")


class EmptyRetryAfter(RetryAfter):
    def __init__(self):
        Exception.__init__(self, "made without a delay")


def throw(error):
    raise error


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def circle():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def recurse():
    return recurse()


def overflow_the_stack():
    sys.setrecursionlimit(2**31 - 1)

    def deeper(_):
        return sorted([0], key=deeper)  # by way of C

    return deeper(0)


def exit_in_a_task():
    asyncio.get_running_loop().create_task(wait_and(sys.exit))
    return "and goes on"


async def wait_and(act):
    act()


def hidden_gigabyte():
    try:
        return len(b"x" * 2**30)
    except MemoryError as error:
        raise ValueError("the report is too large") from error


ACTIONS = {
    "sys_exit": lambda: sys.exit("enough"),
    "keyboard_interrupt": lambda: throw(KeyboardInterrupt()),
    "generator_exit": lambda: throw(GeneratorExit()),
    "cancelled_error": lambda: throw(asyncio.CancelledError()),
    "unreadable": lambda: throw(UnreadableError()),
    "unpicklable": lambda: throw(UnpicklableError("one", "two")),
    "huge_message": lambda: throw(ValueError("x" * 50_000_000)),
    "nul": lambda: throw(ValueError("a\0b")),
    "surrogate": lambda: throw(ValueError("a\ud800b")),
    "circle": circle,
    "recursion": recurse,
    "memory": lambda: throw(MemoryError()),
    "empty_snooze": lambda: throw(EmptySnooze()),
    "empty_retry_after": lambda: throw(EmptyRetryAfter()),
    # only a child with a limit of memory may do these
    "gigabyte": lambda: len(b"x" * 2**30),
    "ten_gigabytes": lambda: len(b"x" * (10 * 2**30)),
    "hidden_gigabyte": hidden_gigabyte,
    "exit_in_a_task": exit_in_a_task,  # only on an event loop
    "plain": lambda: throw(ValueError("plainly wrong")),
    # these end the process, so only a child may do them
    "os_exit": lambda: os._exit(7),
    "segfault": lambda: ctypes.string_at(0),
    "overflow": overflow_the_stack,
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # these return what cannot be stored
    "nan": lambda: float("nan"),
    "infinity": lambda: {"a": [float("-inf")]},
    "nul_result": lambda: "a\0b",
    "surrogate_result": lambda: "a\ud800b",
    "object": object,
    "naive_datetime": lambda: datetime(2026, 1, 1),  # noqa: DTZ001 - that is the point
    "enormous": lambda: "x" * 300_000_000,
    "too_large": lambda: "x" * 70_000,
    "too_deep": lambda: deep(100),
    "far_too_deep": lambda: deep(100_000),
    "huge_integer": lambda: 10**5000,
    "huge_number": lambda: msgspec.Raw(b"1e999999"),
    "long_numbers": lambda: [1e300] * 300,  # short until the database writes them out
}


class Act(AsyncJob):
    action: str

    async def run(self, ctx: Context):
        return ACTIONS[self.action]()


class ActInThread(BlockingJob):
    action: str

    def run(self, ctx: Context):
        return ACTIONS[self.action]()


class ActInProcess(CpuBoundJob):
    action: str

    def run(self, ctx: Context):
        return ACTIONS[self.action]()


class Noisy(CpuBoundJob):
    """Writes to every descriptor it finds, its channel to the worker among them."""

    def run(self, ctx: Context):
        for entry in list(Path("/proc/self/fd").iterdir()):
            if int(entry.name) > 2:
                with contextlib.suppress(OSError):
                    os.write(int(entry.name), b"\xff" * 64)


# Steer what happens next.


class Steer(AsyncJob, retry=Retry(max_attempts=3, base=timedelta(milliseconds=20), jitter=False)):
    """Raises what it is told to until the given attempt, which returns its number."""

    how: str
    until: int = 2
    seconds: float = 0.0

    async def run(self, ctx: Context):
        if ctx.attempt >= self.until:
            return {"attempt": ctx.attempt, "failures": ctx.failures}
        if self.how == "snooze":
            raise Snooze(timedelta(seconds=self.seconds))
        if self.how == "retry_after":
            raise RetryAfter(timedelta(seconds=self.seconds), "the far side is busy")
        if self.how == "non_retryable":
            raise NonRetryableError("never")
        raise ValueError(f"failure of attempt {ctx.attempt}")


# Wait for the test; see witness.Gate.


def note(path, what, ctx):
    with Path(f"{path}.{what}").open("a") as file:
        file.write(f"{ctx.attempt} {os.getpid()}\n")


def may_go(path):
    return Path(f"{path}.go").exists()


class Wait(AsyncJob):
    path: str

    async def run(self, ctx: Context):
        note(self.path, "began", ctx)
        try:
            while not may_go(self.path):
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            note(self.path, "stopped", ctx)
            raise
        return ctx.attempt


class WaitInThread(BlockingJob):
    path: str

    def run(self, ctx: Context):
        note(self.path, "began", ctx)
        while not may_go(self.path):
            if ctx.cancelled.wait(0.005):
                note(self.path, "stopped", ctx)
                raise RuntimeError("told to stop")
        return ctx.attempt


class WaitInProcess(CpuBoundJob):
    path: str

    def run(self, ctx: Context):
        note(self.path, "began", ctx)
        while not may_go(self.path):
            time.sleep(0.005)
        return ctx.attempt


class Stubborn(AsyncJob):
    """Swallows its cancellation."""

    path: str

    async def run(self, ctx: Context):
        note(self.path, "began", ctx)
        while not may_go(self.path):
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                note(self.path, "swallowed", ctx)
        note(self.path, "returned", ctx)
        return "too late"


class StubbornInThread(BlockingJob):
    path: str

    def run(self, ctx: Context):
        note(self.path, "began", ctx)
        while not may_go(self.path):
            time.sleep(0.005)
        note(self.path, "returned", ctx)
        return "too late"


class Polite(AsyncJob):
    """Returns a value when it is cancelled."""

    path: str

    async def run(self, ctx: Context):
        note(self.path, "began", ctx)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"


class FirstOnly(AsyncJob):
    """Waits in its first attempt only."""

    path: str

    async def run(self, ctx: Context):
        note(self.path, "began", ctx)
        while ctx.attempt == 1 and not may_go(self.path):
            await asyncio.sleep(0.005)
        return ctx.attempt


class EachItsGate(AsyncJob):
    """Waits in each attempt for a gate of its own: `path`, a hyphen, the number of the attempt."""

    path: str

    async def run(self, ctx: Context):
        path = f"{self.path}-{ctx.attempt}"
        note(path, "began", ctx)
        while not may_go(path):
            await asyncio.sleep(0.005)
        return ctx.attempt


class BlockTheLoop(AsyncJob):
    """Reads a pipe on the event loop, until the test closes the other end."""

    path: str

    async def run(self, ctx: Context):
        note(self.path, "began", ctx)
        return Path(f"{self.path}.pipe").read_text()  # noqa: ASYNC240 - that is the point


class BlockTheLoopFirst(AsyncJob):
    """Does so in its first attempt only."""

    path: str

    async def run(self, ctx: Context):
        note(self.path, "began", ctx)
        if ctx.attempt == 1:
            Path(f"{self.path}.pipe").read_text()  # noqa: ASYNC240 - that is the point
        return ctx.attempt


class WaitInItsOwnThread(AsyncJob):
    """An AsyncJob that hands its work to a thread, which looks whether to stop."""

    path: str

    async def run(self, ctx: Context):
        return await asyncio.to_thread(WaitInThread(path=self.path).run, ctx)


class RunAProgram(CpuBoundJob):
    """Waits for a program that it starts, whose process id it notes, too."""

    path: str

    def run(self, ctx: Context):
        program = subprocess.Popen(["sleep", "600"])
        Path(f"{self.path}.program").write_text(f"{ctx.attempt} {program.pid}\n")
        note(self.path, "began", ctx)
        return program.wait()


class Collide(AsyncJob):
    """Breaks a constraint of its own; PostgreSQL names the value."""

    address: str
    secret: str

    async def run(self, ctx: Context):
        connection = await asyncpg.connect(self.address)
        try:
            await connection.execute("CREATE TEMP TABLE people (mail text UNIQUE)")
            for _ in range(2):
                await connection.execute("INSERT INTO people VALUES ($1)", self.secret)
        finally:
            await connection.close()


# Compute for ever.


class Hog(CpuBoundJob):
    path: str

    def run(self, ctx: Context):
        note(self.path, "began", ctx)
        while True:
            pass


class HogInC(CpuBoundJob):
    """Stays in one call of C, which never lets another thread of its process run."""

    path: str

    def run(self, ctx: Context):
        note(self.path, "began", ctx)
        return re.match(r"(a+)+$", "a" * 64 + "b")


# Tell what they see.

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN")


class Peek(AsyncJob):
    async def run(self, ctx: Context):
        found = SEEN.get(None)
        SEEN.set(f"left by job {ctx.job_id}")
        return found


class PeekInThread(BlockingJob):
    def run(self, ctx: Context):
        found = SEEN.get(None)
        SEEN.set(f"left by job {ctx.job_id}")
        return found


class Count:
    """How many handlers run at once in this process, and the most there have been."""

    def __init__(self):
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


COUNTS = {"async": Count(), "thread": Count()}


class Overlap(AsyncJob):
    async def run(self, ctx: Context):
        with COUNTS["async"]:
            await asyncio.sleep(0.005)


class OverlapInThread(BlockingJob):
    def run(self, ctx: Context):
        with COUNTS["thread"]:
            time.sleep(0.005)


class Facts(AsyncJob):
    async def run(self, ctx: Context):
        return {"key": ctx.idempotency_key, "metadata": ctx.metadata, "tenant": ctx.tenant, "queue": ctx.queue}


class Where(CpuBoundJob):
    """Tells where a child finds modules, and who its parent is."""

    def run(self, ctx: Context):
        import colorsys

        import scheduler
        import worker

        return {
            "worker": worker.__file__, "scheduler": scheduler.__file__, "colorsys": colorsys.__file__,
            "pid": os.getpid(), "parent": os.getppid(),
        }  # fmt: skip


class Environment(CpuBoundJob):
    def run(self, ctx: Context):
        return sorted(os.environ)


class Note(AsyncJob):
    path: str

    async def run(self, ctx: Context):
        note(self.path, "began", ctx)


class ForkTwice(CpuBoundJob):
    """Forks as libraries do: a fork opens files and forks again; another is ended by SIGTERM."""

    path: str

    def run(self, ctx: Context):
        ended = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        ended.start()
        ended.terminate()
        forked = multiprocessing.get_context("fork").Process(target=self.fork_again)
        forked.start()
        forked.join()
        ended.join()
        return {"exit code": ended.exitcode, "missing": Path(self.path).read_text()}

    def fork_again(self):
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        if os.fork() == 0:
            missing = [number for number in files if not Path(f"/proc/self/fd/{number}").exists()]
            Path(self.path).write_text(str(missing))
        else:
            os.wait()


class MoveAway(CpuBoundJob):
    """Leaves the process group that is killed."""

    path: str

    def run(self, ctx: Context):
        os.setpgid(0, os.getpgid(os.getppid()))
        note(self.path, "began", ctx)
        time.sleep(600)
