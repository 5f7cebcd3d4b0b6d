"""Some jobs lived through by hand, verb by verb: what a campaign does by chance is forced here, in a moment.

Two workers, A and B: A is the unlucky one. What the verbs answer is not looked at; the checker looks at what is left.
"""

import asyncio
import contextlib
import json
import time
from uuid import UUID

import asyncpg
import msgspec
from sql import steps

from . import recorder
from .fires import schedules
from .history import EXACTLY_ONCE, Effect, History, Promotion, Submission

WORKERS = {"A": UUID(int=10), "B": UUID(int=11)}
KINDS = ("k", EXACTLY_ONCE)
OPTIONS = {"retry_base": 0.001, "retry_cap": 0.001, "max_attempts": 3}


async def live(db) -> History:
    """Return the history of jobs that met everything a worker can do to them."""
    await steps.declare(db, *({"kind": kind, **OPTIONS} for kind in KINDS))
    await recorder.install(db)
    life = Life(db)
    await a_standby_without_the_newest_claim(life)
    await a_worker_that_lost_its_lease(life)
    await a_worker_that_gave_back(life)
    await a_handler_that_completes_its_job(life)
    await families(life)
    await keys(life)
    await schedules(life)
    await batches(life)
    history = await recorder.read(db)
    return msgspec.structs.replace(
        history, submissions=life.submissions, effects=life.effects, promotions=life.promotions
    )


async def a_standby_without_the_newest_claim(life: "Life") -> None:
    job = await life.submit()
    await life.claim("A")
    await life.forget_claim(job)
    await life.work("B")


async def a_worker_that_lost_its_lease(life: "Life") -> None:
    await life.submit()
    claimed = await life.claim("A")
    await life.reap("B")  # its lease holds
    await life.lapse()
    await life.reap("B")
    again = await life.claim("B")
    for job in claimed:  # too late
        await life.settle("A", job)
    for job in again:
        await life.settle("B", job)
    await life.work("B")


async def a_worker_that_gave_back(life: "Life") -> None:
    await life.submit()
    claimed = await life.claim("A")
    await life.release("A", claimed)
    again = await life.claim("B")
    await life.release("A", claimed)  # once more, as when its reply was lost
    for job in again:
        await life.settle("B", job)
    await life.work("B")


async def a_handler_that_completes_its_job(life: "Life") -> None:
    await life.submit(kind=EXACTLY_ONCE)
    claimed = await life.claim("A")
    await life.lapse()
    await life.reap("B")
    again = await life.claim("B")
    for actor, jobs in (("A", claimed), ("B", again)):
        for job in jobs:
            await life.write_and_complete(actor, job)
    await life.work("B")


async def families(life: "Life") -> None:
    good, bad = await life.submit("fail once"), await life.submit("give up", ends="FAILED")
    await life.submit(depends_on=[good])
    await life.submit(depends_on=[good, bad], on_parent_failure="run")
    doomed = await life.submit(depends_on=[good, bad])
    await life.submit(depends_on=[doomed])
    await life.work("B")


async def keys(life: "Life") -> None:
    await life.submit(unique_key="only one", on_taken="raise")
    await life.submit(unique_key="only one", on_taken="raise")
    await life.submit(idempotency_key="once")
    life.repeats()
    await life.submit(idempotency_key="once")
    await life.work("B")


async def batches(life: "Life") -> None:
    """One loses a member; another gains some while earlier ones run, and have run."""
    doomed = await life.submit(batch=True)
    await life.submit("give up", ends="FAILED", member_of=doomed)
    await life.close(doomed)
    await life.work("B")
    batch = await life.submit(batch=True)
    await life.submit(member_of=batch)
    await life.work("B")
    await life.submit(member_of=batch)
    claimed = await life.claim("A")
    await life.submit(member_of=batch)
    await life.close(batch)
    claimed += await life.claim("A")  # its members, and nothing else
    for job in claimed:
        await life.settle("A", job)
    await life.work("B")


class Life:
    def __init__(self, db) -> None:
        self.db = db
        self.token = 0
        self.submissions: list[Submission] = []
        self.effects: list[Effect] = []
        self.promotions: list[Promotion] = []

    def repeats(self) -> None:
        """Let the next submission be the last one, sent again."""
        self.token -= 1
        self.submissions.pop()

    async def submit(self, does="succeed", ends="COMPLETED", kind="k", **options):
        self.token += 1
        submission = Submission(
            token=self.token, answer="refused", ends=(ends,), timeline=len(self.promotions) + 1, written=1
        )
        try:
            job = await steps.submit(self.db, kind, {"token": self.token, "does": does}, **options)
            submission = msgspec.structs.replace(submission, answer="acknowledged", job=job)
        except asyncpg.PostgresError:
            job = None
        self.submissions.append(submission)
        return job

    async def claim(self, actor, slots=10):
        await self._as(actor)
        claimed = await steps.claim(self.db, slots, KINDS, worker=WORKERS[actor])
        for job in claimed:
            self._note("began", job)
        return claimed

    async def settle(self, actor, job) -> None:
        """End an attempt as its payload says; a zombie's handler comes to its end, too."""
        await self._as(actor)
        does = json.loads(job["payload"])["does"]
        fence = job["fence"]
        if does == "give up" or (does == "fail once" and not job["failures"]):
            facts = {"ending": "failed", "error": f"on purpose, fence={fence}", "retryable": does != "give up"}
        else:
            self._note("finished", job)
            facts = {"ending": "completed", "result": {"fence": fence}}
        told = await steps.settle(self.db, steps.outcome(job, **facts), worker=WORKERS[actor])
        await steps.resolve(self.db, told["parents"])

    async def write_and_complete(self, actor, job) -> None:
        """Write, and end the attempt in the same transaction; a stale one loses both."""
        await self._as(actor)
        self._note("finished", job)
        fence = job["fence"]
        with contextlib.suppress(asyncpg.PostgresError):
            async with self.db.transaction():
                await self.db.execute("INSERT INTO chaos.effects VALUES ($1, $2)", job["id"], fence)
                result = json.dumps({"fence": fence})
                await self.db.execute("SELECT scheduler.complete($1, $2, $3)", job["id"], fence, result)

    async def close(self, batch) -> None:
        with contextlib.suppress(asyncpg.PostgresError):
            await self.db.execute("SELECT scheduler.close_batch($1)", batch)

    async def release(self, actor, jobs) -> None:
        await self._as(actor)
        await steps.release(self.db, jobs, worker=WORKERS[actor])

    async def lapse(self) -> None:
        await self.db.execute(
            """UPDATE scheduler.jobs_active SET lease_expires_at = clock_timestamp() - interval '1 s'
            WHERE worker_id IS NOT NULL"""
        )

    async def reap(self, actor) -> None:
        await self._as(actor)
        await self.db.execute("SELECT scheduler.reap('0 s')")

    async def forget_claim(self, job) -> None:
        """Go on as a standby that was promoted before it heard of the claim."""
        await self.db.execute("DELETE FROM chaos.events WHERE job = $1 AND now = 'RUNNING'", job)
        await self.db.execute(
            """ALTER TABLE scheduler.jobs_active DISABLE TRIGGER chaos_changed;
            UPDATE scheduler.jobs_active SET status = 'PENDING', attempt = 0, fence = NULL, request = NULL,
              worker_id = NULL, lease_expires_at = NULL;
            UPDATE scheduler.epoch SET timeline = '00000000';
            ALTER TABLE scheduler.jobs_active ENABLE TRIGGER chaos_changed"""
        )
        self.promotions.append(Promotion(at=time.time(), kept=2))

    async def work(self, actor) -> None:
        """Run what there is to run; what is still waiting after that is stuck."""
        for _ in range(20):
            for job in await self.claim(actor):
                await self.settle(actor, job)
            await steps.resolve(self.db)
            await asyncio.sleep(0.002)  # the backoff is 1 ms
            await steps.promote(self.db)
            if not await self.db.fetchval("SELECT EXISTS (SELECT FROM scheduler.jobs_active)"):
                return

    async def _as(self, actor) -> None:
        await self.db.execute("SELECT set_config('chaos.actor', $1, false)", actor)

    def _note(self, what, job) -> None:
        self.effects.append(Effect(what=what, at=time.time(), job=job["id"], fence=job["fence"]))
