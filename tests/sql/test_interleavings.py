"""Random interleavings of submit, claim, settle, cancel, retry and resolve, in transactions that overlap.

Three connections take turns, step by step, as a fixed seed says; a call that would wait for another's lock gives up and
rolls its transaction back. Whatever order comes of it, no job starts before its parents and none is left behind.
"""

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .steps import cancel, claim, end, resolve, submit, verb

STEPS = ("begin", "begin", "commit", "commit", "rollback", "submit", "submit", "claim", "claim", "complete", "complete",
         "fail", "cancel", "retry", "resolve")  # fmt: skip
PLAN = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(STEPS), st.integers(0, 9)), min_size=40, max_size=80)

WATCH = """
CREATE TABLE IF NOT EXISTS public.retried (id bigint);
CREATE OR REPLACE FUNCTION public.watch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF EXISTS (SELECT FROM scheduler.dependencies d JOIN scheduler.jobs_active p ON p.id = d.parent
             WHERE d.child = NEW.id AND p.id NOT IN (SELECT id FROM public.retried)) THEN
    RAISE 'job % starts before its parents', NEW.id;
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER watch BEFORE UPDATE ON scheduler.jobs_active FOR EACH ROW
  WHEN (NEW.status = 'RUNNING' AND OLD.status <> 'RUNNING') EXECUTE FUNCTION public.watch();
TRUNCATE scheduler.jobs, scheduler.dependencies, scheduler.attempts, public.retried"""

# A child that was never retried, of a parent that was never retried and did not complete.
RAN_IN_SPITE = """
SELECT c.id FROM scheduler.jobs c
JOIN scheduler.dependencies d ON d.child = c.id JOIN scheduler.jobs p ON p.id = d.parent
WHERE c.status = 'COMPLETED' AND c.on_parent_failure = 'cancel' AND p.status <> 'COMPLETED'
  AND NOT EXISTS (SELECT FROM public.retried r WHERE r.id IN (c.id, p.id))"""


class Seat:
    """One connection, and what it has done in a transaction that is still open."""

    def __init__(self, db):
        self.db, self.open, self.claimed = db, None, []

    async def begin(self):
        if self.open is None:
            self.open = self.db.transaction()
            await self.open.start()

    async def finish(self, *, keep):
        if self.open is not None:
            transaction, self.open = self.open, None
            await (transaction.commit() if keep else transaction.rollback())


async def step(seat, what, number, ids):
    known = ids[number % len(ids)] if ids else None
    if what == "submit":
        policy = "run" if number % 3 == 0 else "cancel"
        ids.append(await submit(seat.db, depends_on=sorted({known} - {None}), on_parent_failure=policy))
    elif what == "claim":
        seat.claimed += await claim(seat.db, 2)
    elif what in {"complete", "fail"} and seat.claimed:
        await end(seat.db, seat.claimed.pop(0), "completed" if what == "complete" else "failed", retryable=False)
    elif what == "cancel" and known:
        await cancel(seat.db, known)
    elif what == "retry" and known:
        await seat.db.execute("INSERT INTO public.retried VALUES ($1)", known)
        for child in (await verb(seat.db, "retry", [known]))["children"]:
            await seat.db.execute("INSERT INTO public.retried VALUES ($1)", child)
            await verb(seat.db, "retry", [child])
    elif what == "resolve":
        await resolve(seat.db)


async def play(db, seats, plan):
    await db.execute(WATCH)
    ids = []
    for number, what, choice in plan:
        seat = seats[number]
        try:
            if what == "begin":
                await seat.begin()
            elif what in {"commit", "rollback"}:
                await seat.finish(keep=what == "commit")
            else:
                await step(seat, what, choice, ids)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.CheckViolationError):
            await seat.finish(keep=False)
    for seat in seats:
        await seat.finish(keep=True)
        seat.claimed.clear()
    await settle_all(db)


async def settle_all(db):
    """End all that runs, and all that can still run: nothing may be left."""
    await db.execute(
        "UPDATE scheduler.jobs_active SET lease_expires_at = now() - interval '1 h' WHERE status = 'RUNNING'"
    )
    for _ in range(200):
        await db.execute("SELECT scheduler.reap('1 ms')")
        while (answer := await resolve(db))["jobs"] or answer["more"]:
            pass
        if not (jobs := await claim(db, 100)):
            break
        for job in jobs:
            await end(db, job)
    left = await db.fetch("SELECT id, status::text FROM scheduler.jobs_active")
    assert [tuple(row) for row in left] == [], "stuck"
    assert await db.fetch(RAN_IN_SPITE) == []


def drawn(number):
    plans = []
    quiet = [HealthCheck.too_slow]

    @settings(
        max_examples=number, deadline=None, derandomize=True, suppress_health_check=quiet, phases=[Phase.generate]
    )
    @given(PLAN)
    def draw(plan):
        plans.append(plan)

    draw()
    return plans


@pytest.mark.parametrize("number", [20, pytest.param(100, marks=pytest.mark.slow)])
async def test_in_any_interleaving_no_job_starts_before_its_parents_and_none_is_left_behind(db, connect, number):
    impatient = {"lock_timeout": "50ms", "deadlock_timeout": "20s"}
    for plan in drawn(number):
        seats = [Seat(await connect(server_settings=impatient)) for _ in range(3)]

        await play(db, seats, plan)

        for seat in seats:
            await seat.db.close()
