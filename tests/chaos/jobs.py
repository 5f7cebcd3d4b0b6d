"""The jobs of a campaign. Each notes in a file that it began and finished, and returns or raises its fence."""

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

import asyncpg

from scheduler import (
    AsyncJob,
    BlockingJob,
    Context,
    CpuBoundJob,
    NonRetryableError,
    Retry,
    Scheduler,
    Snooze,
    Submission,
)

LEDGER = "CHAOS_LEDGER"  # the environment variable that names the file

# Faults must not end a job: it ends as its handler says. Only Fragile gives up after a second lost worker.
OFTEN = Retry(max_attempts=5, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_crashes=1000)
TWICE = Retry(max_attempts=2, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_crashes=1000)
STUBBORN = Retry(max_attempts=1000, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_crashes=1000)
FRAGILE = Retry(max_attempts=5, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_crashes=1)

# What `does` may say, and how such a job ends.
ENDS = {"succeed": "COMPLETED", "fail twice": "COMPLETED", "snooze": "COMPLETED", "give up": "FAILED"}
FAILURES = 2  # of "fail twice"


def note(what: str, ctx: Context) -> None:
    """Append one line; the kernel keeps the lines of several processes apart."""
    file = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{what} {time.time():.6f} {ctx.job_id} {ctx.fence}\n".encode())
    finally:
        os.close(file)


def outcome(does: str, ctx: Context) -> dict[str, Any]:
    if does == "give up":
        raise NonRetryableError(f"on purpose, fence={ctx.fence}")
    if does == "fail twice" and ctx.failures < FAILURES:
        raise RuntimeError(f"on purpose, fence={ctx.fence}")
    if does == "snooze" and ctx.attempt == 1:
        raise Snooze(timedelta(milliseconds=200))
    note("finished", ctx)
    return {"fence": ctx.fence}


class Waits(AsyncJob, retry=OFTEN):
    token: int
    does: str
    seconds: float

    async def run(self, ctx: Context) -> dict[str, Any]:
        note("began", ctx)
        await asyncio.sleep(self.seconds)
        return outcome(self.does, ctx)


class Blocks(BlockingJob, retry=OFTEN):
    token: int
    does: str
    seconds: float

    def run(self, ctx: Context) -> dict[str, Any]:
        note("began", ctx)
        ctx.cancelled.wait(self.seconds)
        return outcome(self.does, ctx)


class Computes(CpuBoundJob, retry=OFTEN):
    token: int
    does: str
    seconds: float

    def run(self, ctx: Context) -> dict[str, Any]:
        note("began", ctx)
        time.sleep(self.seconds)
        return outcome(self.does, ctx)


class Fragile(Waits, retry=FRAGILE):
    """Ends after its second lost worker."""


class Transfers(AsyncJob, retry=STUBBORN):
    """Completes in the transaction in which it writes, so that it writes exactly once.

    What it returns must not count: should a promotion lose the transaction, the claim may still stand on the new
    primary, and a settlement would complete the job there, without what it wrote.
    """

    token: int
    seconds: float

    async def run(self, ctx: Context) -> None:
        note("began", ctx)
        connection = await asyncpg.connect(os.environ["SCHEDULER_DSN"], timeout=5, command_timeout=5)
        try:
            async with ctx.transaction(connection):
                await connection.execute("INSERT INTO chaos.effects VALUES ($1, $2)", ctx.job_id, ctx.fence)
                await asyncio.sleep(self.seconds)
                note("finished", ctx)
                await ctx.complete(connection, {"fence": ctx.fence})
        finally:
            connection.terminate()


class Grows(AsyncJob, retry=STUBBORN):
    """A member that adds others to its batch, which may be closed by then: on each attempt the same, by their keys."""

    token: int
    batch: int
    adds: list[int]

    async def run(self, ctx: Context) -> dict[str, Any]:
        note("began", ctx)
        dsn = os.environ["SCHEDULER_DSN"]
        added = [
            Submission(Waits(token=token, does="succeed", seconds=0.1), idempotency_key=f"member-{token}")
            for token in self.adds
        ]
        connection = await asyncpg.connect(dsn, timeout=5, command_timeout=5)
        try:
            await Scheduler(dsn).submit_many(added, member_of=self.batch, connection=connection)
        finally:
            connection.terminate()
        note("finished", ctx)
        return {"fence": ctx.fence}


class Overruns(AsyncJob, retry=TWICE, timeout=timedelta(milliseconds=300)):
    """Never ends by itself."""

    token: int

    async def run(self, ctx: Context) -> None:
        note("began", ctx)
        await asyncio.Event().wait()


class Breaks(CpuBoundJob, retry=TWICE):
    """Ends the process it runs in."""

    token: int

    def run(self, ctx: Context) -> None:
        note("began", ctx)
        os._exit(7)
