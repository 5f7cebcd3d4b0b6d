"""Submitters: they ask for all kinds of jobs, note what they were told, and cannot trust a connection.

A submission without an idempotency key is sent once; when its reply is lost there may be a job or not. One with a key
is sent until it is answered, and sometimes twice for no reason. Every fifth call submits several jobs, all or none;
only two while as many are under way as the workers can be expected to run in good time. Now and then there is a batch:
its members are submitted while earlier ones run, and may add others. All have keys; it is closed until that is heard.
"""

import asyncio
import contextlib
import time
from random import Random
from typing import Any

import asyncpg
import msgspec

from scheduler import Scheduler
from scheduler.errors import DatabaseUnavailable, InvalidJob

from .history import History, Promotion, Submission
from .jobs import ENDS, Blocks, Breaks, Computes, Fragile, Grows, Overruns, Transfers, Waits
from .lives import is_documented_loss

WHERE = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
WRITTEN = "SELECT pg_current_wal_insert_lsn() - '0/0'"
UNDER_WAY = "SELECT count(*) FROM scheduler.jobs WHERE status IN ('BLOCKED', 'DELAYED', 'PENDING', 'RUNNING')"
OPEN = "SELECT child FROM scheduler.dependencies WHERE parent = child AND NOT ended"
ENOUGH = 1500  # jobs under way
MOST = 12  # jobs of one call
REMEMBERED = 50  # ids of the newest jobs, from which parents are chosen
LOST = (DatabaseUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class Load:
    """All submitters of a campaign: `rate` jobs a second in all, through one address."""

    def __init__(self, dsn: str, seed: int, rate: float, submitters: int = 16) -> None:
        self.dsn = dsn
        self.rate = rate / submitters
        self.submissions: list[Submission] = []
        self.closed: list[Submission] = []  # batches of which that was heard
        self.stopped = False
        self.recent: list[int] = []
        self.under_way = 0
        self._next_token = 0
        self._submitters = [Submitter(self, Random(f"{seed} submitter {n}")) for n in range(submitters)]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for submitter in self._submitters:
                group.create_task(submitter.run())

    async def close_the_rest(self, connection: "asyncpg.Connection[Any]", promotions: list[Promotion]) -> None:
        """Close batches, as authors that come again would, but not those that must be closed: they are to be found."""
        history = History(promotions=promotions)
        heard = {told.job for told in self.closed if not is_documented_loss(history, told)}
        for (batch,) in await connection.fetch(OPEN):
            if batch not in heard:
                await connection.execute("SELECT scheduler.close_batch($1)", batch)

    def token(self) -> int:
        self._next_token += 1
        return self._next_token


class Submitter:
    def __init__(self, load: Load, rng: Random) -> None:
        self._load = load
        self._rng = rng
        self._connection: asyncpg.Connection[Any] | None = None
        self._timeline: int | None = None
        self._scheduler = Scheduler(load.dsn)  # not opened: submissions go over our own connection

    async def run(self) -> None:
        started, sent = time.monotonic(), 0
        while not self._load.stopped:
            if self._load.under_way >= 2 * ENOUGH:  # else what is left in the end takes longer than anybody waits
                await asyncio.sleep(1)
            chance = self._rng.random()
            if chance < 0.2:
                sent += await self._submit_many()
            elif chance < 0.23:
                sent += await self._submit_batch()
            else:
                sent += 1
                await self._submit()
            await asyncio.sleep(max(0.0, started + sent / self._load.rate - time.monotonic()))
        self._forget()

    async def _submit(self) -> None:
        job, ends = self._job()
        options, cancel_after = self._options(), self._rng.uniform(0, 1) if self._rng.random() < 0.05 else None
        ends = (*ends, "CANCELLED") if cancel_after is not None else ends
        again = "idempotency_key" in options
        told = await self._told(job, options, ends, again=again)
        if told.job is not None:
            self._load.recent = [*self._load.recent[-REMEMBERED:], told.job]
            if again and self._rng.random() < 0.3:
                await self._ask(job, options, ends)
            if cancel_after is not None:
                await self._cancel(told, cancel_after)

    async def _told(self, job: Any, options: dict[str, Any], ends: tuple[str, ...], *, again: bool) -> Submission:
        """Submit a job, `again` until there is an answer."""
        told = first = await self._ask(job, options, ends)
        while again and told.answer == "unknown" and not self._load.stopped:
            await asyncio.sleep(0.1)
            told = await self._ask(job, options, ends)
        if told.answer == "refused":  # now; what we sent first may have arrived all the same
            told = first
        self._load.submissions.append(told)
        return told

    async def _submit_batch(self) -> int:
        """Submit a batch, member by member; return how many jobs it has."""
        rng, policy = self._rng, self._rng.choice(["cancel", "run"])
        token = self._load.token()
        options = {"batch": True, "on_parent_failure": policy, "idempotency_key": f"batch-{token}"}
        callback = Waits(token=token, does="fail twice", seconds=0.05)
        batch = (await self._told(callback, options, ("COMPLETED",), again=True)).job
        if batch is None:
            return 1
        members = [self._job() for _ in range(rng.randint(0, 4))]
        if policy == "run":  # else it may end before all members have, and refuse what they add
            adds = [self._load.token() for _ in range(rng.randint(1, 3))]
            self._load.submissions += [Submission(token=one, answer="unknown", ends=("COMPLETED",)) for one in adds]
            members.append((Grows(token=self._load.token(), batch=batch, adds=adds), ("COMPLETED",)))
        for job, ends in members:
            await self._told(job, {"member_of": batch, "idempotency_key": f"member-{job.token}"}, ends, again=True)
            await asyncio.sleep(rng.choice([0, 0.3]))
        await self._close(batch)
        return 1 + len(members)

    async def _close(self, batch: int) -> None:
        while not self._load.stopped:
            try:
                connection = await self._connected()
                await self._scheduler.close_batch(batch, connection=connection)
                told = self._acknowledged(Submission(token=0, answer="unknown", ends=()), batch)
                written = int(await connection.fetchval(WRITTEN))
                self._load.closed.append(msgspec.structs.replace(told, written=written))
            except InvalidJob:  # a promotion has lost it
                return
            except LOST:
                self._forget()
                await asyncio.sleep(0.1)
            else:
                return

    async def _submit_many(self) -> int:
        """Submit several jobs in one call; return how many."""
        size = self._rng.randint(2, MOST) if self._load.under_way < ENOUGH else 2
        given = [self._job() for _ in range(size)]
        call, family = given[0][0].token, self._family()
        told = [Submission(token=job.token, answer="unknown", ends=ends, call=call) for job, ends in given]
        try:
            connection = await self._connected()
            handles = await self._scheduler.submit_many((job for job, _ in given), connection=connection, **family)
            told = [self._acknowledged(one, handle.id) for one, handle in zip(told, handles, strict=True)]
            self._load.recent = [*self._load.recent[-REMEMBERED:], *(handle.id for handle in handles[-3:])]
            written = int(await connection.fetchval(WRITTEN))
            told = [msgspec.structs.replace(one, written=written) for one in told]
            self._load.under_way = await connection.fetchval(UNDER_WAY)
        except InvalidJob:
            told = [msgspec.structs.replace(one, answer="refused") for one in told]
        except LOST:
            self._forget()
        self._load.submissions += told
        return size

    def _acknowledged(self, told: Submission, job: int) -> Submission:
        return msgspec.structs.replace(told, answer="acknowledged", job=job, timeline=self._timeline)

    def _job(self) -> tuple[Any, tuple[str, ...]]:
        token, rng = self._load.token(), self._rng
        kind = rng.choices(
            [Waits, Blocks, Computes, Fragile, Transfers, Overruns, Breaks], [67, 12, 4, 8, 6, 2.7, 0.3]
        )[0]
        if kind is Overruns:
            return Overruns(token=token), ("TIMED_OUT",)
        if kind is Breaks:
            return Breaks(token=token), ("FAILED",)
        if kind is Transfers:
            return Transfers(token=token, seconds=round(rng.uniform(0, 0.5), 3)), ("COMPLETED",)
        does = rng.choices(list(ENDS), [80, 8, 8, 4])[0]
        seconds = min(rng.expovariate(3), 1.5) if kind is not Computes else rng.uniform(0, 0.2)
        return kind(token=token, does=does, seconds=round(seconds, 3)), (ENDS[does],)

    def _options(self) -> dict[str, Any]:
        rng, options = self._rng, self._family()
        if rng.random() < 0.15:
            options["idempotency_key"] = f"key-{rng.getrandbits(64):x}"
        if rng.random() < 0.05:
            options |= {"unique_key": f"only-{rng.randrange(20)}", "on_taken": "raise"}
        if rng.random() < 0.2:
            options["priority"] = rng.randrange(4)
        return options

    def _family(self) -> dict[str, Any]:
        rng = self._rng
        if len(self._load.recent) <= 2 or rng.random() >= 0.25:
            return {}
        parents = rng.sample(self._load.recent, k=rng.choice([1, 1, 2, 3]))
        return {"depends_on": parents, "on_parent_failure": rng.choice(["cancel", "cancel", "run"])}

    async def _ask(self, job: Any, options: dict[str, Any], ends: tuple[str, ...]) -> Submission:
        """Send a submission; return what we were told, with how far the WAL had come by then."""
        told = Submission(token=job.token, answer="unknown", ends=ends)
        try:
            connection = await self._connected()
            handle = await self._scheduler.submit(job, **options, connection=connection)
            told = self._acknowledged(told, handle.id)
            return msgspec.structs.replace(told, written=int(await connection.fetchval(WRITTEN)))
        except InvalidJob:
            return msgspec.structs.replace(told, answer="refused")
        except LOST:
            self._forget()
            return told

    async def _connected(self) -> "asyncpg.Connection[Any]":
        """Return a connection to the primary of the moment; what is not sent is not in doubt."""
        while self._connection is None or self._connection.is_closed():
            try:
                self._connection = await asyncpg.connect(self._load.dsn, timeout=5, command_timeout=5)
                self._timeline = await self._connection.fetchval(WHERE)
            except LOST:
                self._forget()
                await asyncio.sleep(0.2)
        return self._connection

    async def _cancel(self, told: Submission, after: float) -> None:
        """Cancel a job where it was submitted: after a promotion its id may be that of another."""
        await asyncio.sleep(after)
        with contextlib.suppress(*LOST):
            if self._connection is not None and self._timeline == told.timeline:
                await self._connection.execute("SELECT scheduler.cancel($1)", [told.job])

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
