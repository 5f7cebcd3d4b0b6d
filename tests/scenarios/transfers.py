"""Jobs that write into the table `effects` and complete in the same transaction; the first attempt in its own way."""

import asyncio
import contextlib
import os
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import psycopg

from scheduler import AsyncJob, BlockingJob, Context, CpuBoundJob, Retry

RETRY = Retry(max_attempts=3, base=timedelta(milliseconds=20), jitter=False)
INSERT = "INSERT INTO effects VALUES ({}, {})"


class Swallowed(Exception):  # noqa: N818 - reads as what happened
    """Raised within a transaction, and caught outside it."""


def note(path, what, ctx):
    with Path(f"{path}.{what}").open("a") as file:
        file.write(f"{ctx.attempt} {os.getpid()}\n")


def may_go(path):
    return Path(f"{path}.go").exists()


def within(how):
    """What happens in the transaction after complete()."""
    if how == "swallow":
        raise Swallowed
    if how == "raise within":
        raise ValueError("within")
    if how == "die within":
        os._exit(7)


def after(how):
    """What happens once it has committed."""
    if how == "raise after":
        raise ValueError("after")
    if how == "die after":
        os._exit(7)


class Transfer(AsyncJob, retry=RETRY):
    dsn: str
    how: str = "commit"
    path: str = ""

    async def run(self, ctx: Context):
        how = self.how if ctx.attempt == 1 else "commit"
        if how == "stay first":
            await self.stay(ctx)
        connection = await asyncpg.connect(self.dsn)
        try:
            with contextlib.suppress(Swallowed):
                async with ctx.transaction(connection):
                    await self.write(ctx, connection, how)
            after(how)
            if how == "stay after":
                await self.stay(ctx)
        finally:
            connection.terminate()
        return "does not count"

    async def write(self, ctx, connection, how):
        await connection.execute(INSERT.format("$1", "$2"), ctx.job_id, ctx.fence)
        if how == "stay before":
            await self.stay(ctx)
        if how == "not awaited":
            ctx.complete(connection).close()
            return
        await ctx.complete(connection, {"attempt": ctx.attempt})
        if how == "twice":
            await ctx.complete(connection)
        if how == "stay within":
            await self.stay(ctx)
        within(how)

    async def stay(self, ctx):
        note(self.path, "began", ctx)
        while not may_go(self.path):
            await asyncio.sleep(0.005)


def transfer(job, ctx):
    how = job.how if ctx.attempt == 1 else "commit"
    with psycopg.connect(job.dsn) as connection:
        with contextlib.suppress(Swallowed), ctx.transaction(connection):
            connection.execute(INSERT.format("%s", "%s"), (ctx.job_id, ctx.fence))
            ctx.complete(connection, {"attempt": ctx.attempt})
            if how == "twice":
                ctx.complete(connection)
            if how == "stay within":
                stay(job, ctx)
            within(how)
        after(how)
    return "does not count"


def stay(job, ctx):
    note(job.path, "began", ctx)
    while not may_go(job.path):
        if ctx.cancelled.is_set():
            raise RuntimeError("told to stop")
        time.sleep(0.005)


class TransferInThread(BlockingJob, retry=RETRY):
    dsn: str
    how: str = "commit"
    path: str = ""

    def run(self, ctx: Context):
        return transfer(self, ctx)


class TransferInProcess(CpuBoundJob, retry=RETRY):
    dsn: str
    how: str = "commit"
    path: str = ""

    def run(self, ctx: Context):
        return transfer(self, ctx)
