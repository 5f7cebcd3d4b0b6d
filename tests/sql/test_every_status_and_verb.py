"""Every (status, verb) pair moves a job as the one table of states says, and nowhere else."""

import contextlib
from datetime import timedelta
from typing import NamedTuple

import asyncpg
import pytest

from scheduler.states import TRANSITIONS, Status

from . import steps
from .steps import cancel, claim, declare, end, insert, promote, reap, resolve, resolve_all, status

KINDS = ("job", "parent")


class Case(NamedTuple):
    """Circumstances in which a verb meets a job; one for each way the verb can decide."""

    columns: tuple = ()
    parent: str = "completed"
    delayed: bool = False
    cancelled: bool = False
    parent_again: bool = False


PLAIN, CANCELLED = Case(), Case(cancelled=True)
CASES = {
    "resolve": [PLAIN, Case(delayed=True), Case(parent="failed")],
    "settle_failed": [PLAIN, Case((("max_attempts", 1),)), CANCELLED],
    "settle_timed_out": [PLAIN, Case((("max_attempts", 1),)), CANCELLED],
    "settle_snoozed": [PLAIN, CANCELLED],
    "settle_completed": [PLAIN, CANCELLED],
    "release": [PLAIN, CANCELLED],
    "retry": [PLAIN, Case(delayed=True), Case(parent="failed", parent_again=True)],
    "reap": [PLAIN, Case((("max_crashes", 0),)), CANCELLED],
    "close_batch": [PLAIN, Case(delayed=True)],
    "replace": [Case((("unique_key", "one"),)), Case((("unique_key", "one"), ("metadata", '{"later": true}')))],
}


@pytest.mark.parametrize("verb", TRANSITIONS)
async def test_a_verb_moves_a_job_of_any_status_as_the_table_says(db, clock, verb):
    await declare(db, *KINDS)

    reached = {
        before: {await meet(db, clock, verb, before, case) for case in CASES.get(verb, [PLAIN])} for before in Status
    }

    gone = {None}
    assert reached == {before: TRANSITIONS[verb].get(before, {before}) or gone for before in Status}


async def meet(db, clock, verb, before, case):
    """Return the status that the verb leaves a job of this status in, alone in the database."""
    await db.execute("TRUNCATE scheduler.jobs, scheduler.dependencies")
    job = await job_in(db, clock, before, case)
    assert await status(db, job["id"]) == before
    await apply(db, clock, verb, job)
    return await status(db, job["id"])


async def job_in(db, clock, before, case):
    """Bring a job, and its parent, by verbs to where the verb under test meets it."""
    delayed = case.delayed or before is Status.DELAYED
    run_at = await clock.now() + timedelta(hours=1) if delayed else None
    parent = await insert(db, "parent", queue="default", max_attempts=1)
    job_id = await insert(db, "job", queue="default", depends_on=[parent], run_at=run_at, **dict(case.columns))
    parents = (await end(db, (await claim(db, kinds=["parent"]))[0], case.parent))["parents"]
    job = {"id": job_id, "fence": 0, "parent": parent, "again": [parent] if case.parent_again else []}
    if before is not Status.BLOCKED:
        await db.execute("UPDATE scheduler.jobs_active SET on_parent_failure = 'run' WHERE id = $1", job_id)
        await resolve_all(db, parents)
        job |= await advance(db, clock, job_id, before, delayed=delayed)
        if case.cancelled and before is Status.RUNNING:
            await cancel(db, job_id)
    return job


async def advance(db, clock, job_id, before, *, delayed):
    if before is Status.CANCELLED:
        await cancel(db, job_id)
    if before in {Status.CANCELLED, Status.DELAYED, Status.PENDING} and not (delayed and before is Status.PENDING):
        return {}
    if delayed:
        await clock.advance(3600)
        await promote(db)
    if before is Status.PENDING:
        return {}
    (job,) = await claim(db, kinds=["job"])
    if before is not Status.RUNNING:
        await end(db, job, before.lower(), retryable=False)
    return {"fence": job["fence"]}


async def apply(db, clock, verb, job):
    if verb.startswith("settle_"):
        await end(db, job, verb.removeprefix("settle_"), delay=5)
    elif verb == "claim":
        await claim(db, 10, KINDS)
    elif verb == "complete":
        with contextlib.suppress(asyncpg.PostgresError):
            await steps.complete(db, job)
    elif verb in {"renew", "release"}:
        await getattr(steps, verb)(db, [job])
    elif verb in {"cancel", "retry", "prune"}:
        await steps.verb(db, verb, [job["id"], *(job["again"] if verb == "retry" else ())])
    elif verb == "close_batch":
        await make_it_a_batch(db, job)
        await db.execute("SELECT scheduler.close_batch($1)", job["id"])
    elif verb == "replace":
        later = await db.fetchval("SELECT metadata <> '{}' FROM scheduler.jobs WHERE id = $1", job["id"])
        delay = "1 hour" if later else "0"
        await steps.submit(db, "job", unique_key="one", on_taken="replace", delay=delay)
    elif verb == "promote":
        await clock.advance(7200)
        await promote(db)
    elif verb == "reap":
        await clock.advance(31)
        await reap(db)
    else:
        await forget_that_the_edge_was_applied(db, job)
        await resolve(db, [job["parent"]])
        await resolve(db)


async def make_it_a_batch(db, job):
    """Let a job that waits for its parent wait for itself instead."""
    edge = "UPDATE scheduler.dependencies SET parent = child, ended = $2, applied = $2 WHERE child = $1"
    await db.execute(edge, job["id"], await status(db, job["id"]) != Status.BLOCKED)


async def forget_that_the_edge_was_applied(db, job):
    """Resolve meets a job that is not BLOCKED only when an edge was left over."""
    await db.execute("UPDATE scheduler.dependencies SET applied = false WHERE parent = $1", job["parent"])
