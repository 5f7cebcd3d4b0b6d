"""Every verb on the same 200 jobs at once: nobody deadlocks, and what the triggers saw contradicts nothing."""

import asyncio
import contextlib
import json
from random import Random
from uuid import UUID

import asyncpg
import pytest
from chaos import recorder
from chaos.checker import violations

from .steps import cancel, claim, declare, insert, outcome, promote, release, renew, resolve_all, settle

JOBS, ROUNDS = 200, 40
FAMILY = """INSERT INTO scheduler.jobs (kind, payload, depends_on, on_parent_failure)
SELECT 'k', jsonb_build_object('token', n), CASE WHEN n % 4 = 0 THEN ARRAY[$1::bigint + n % 7] ELSE '{}' END, 'run'
FROM generate_series(1, $2::int) AS n RETURNING id"""
LAPSE = """UPDATE scheduler.jobs_active SET lease_expires_at = clock_timestamp() - interval '1 s'
WHERE worker_id IS NOT NULL AND id % 3 = 0"""


@pytest.mark.slow
async def test_f49_every_verb_on_the_same_200_jobs_at_once_never_deadlocks(db, connect):
    await declare(db, {"kind": "k", "retry_base": 0.001, "retry_cap": 0.001, "max_attempts": 50, "max_crashes": 1000})
    await recorder.install(db)
    first, *_ = [await insert(db, payload='{"token": 0}') for _ in range(8)]
    ids = [row["id"] for row in await db.fetch(FAMILY, first, JOBS)]
    done = asyncio.Event()

    async def worker(number):
        session, rng = await named(connect, f"worker-{number}"), Random(number)
        for _ in range(ROUNDS):
            await run(session, rng, UUID(int=number))
        done.set()

    async def beside(name, deed):
        session, rng = await named(connect, name), Random(name)
        while not done.is_set():
            await deed(session, rng)

    async with asyncio.TaskGroup() as group:
        for number in (1, 2, 3):
            group.create_task(worker(number))
        for name, deed in {"reaper": reaper, "submitter": submitter, "operator": operator}.items():
            group.create_task(beside(name, deed))

    history = await recorder.read(db)
    found = violations(history)
    assert {name: found[name][:5] for name in found.keys() & {"I2", "I3", "I4"}} == {}
    assert [words for words in found.get("I5", ()) if "attempts" in words] == []  # a retry sets the other counts to 0
    assert await db.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert len({row.id for row in history.rows} & set(ids)) == JOBS
    assert {end.outcome for end in history.ended} >= {"failed", "lost", "released", "snoozed"}


async def named(connect, actor):
    session = await connect()
    await session.execute("SELECT set_config('chaos.actor', $1, false)", actor)
    return session


async def run(session, rng, worker):
    """Claim some, renew them, and let each end in a way of its own; what is busy is sent again."""
    jobs = await claim(session, 20, worker=worker)
    await renew(session, jobs, worker)
    back = [job for job in jobs if rng.random() < 0.1]
    await release(session, back, worker)
    ends = [ending(rng, job) for job in jobs if job not in back]
    while ends:
        told = await settle(session, *ends, worker=worker)
        await resolve_all(session, told["parents"])
        ends = [end for end in ends if end["id"] in told["busy"]]
    await promote(session)


def ending(rng, job):
    how = rng.choice(["completed", "completed", "failed", "snoozed"])
    facts = (
        {"result": {"fence": job["fence"]}} if how == "completed" else {"error": f"fence={job['fence']}", "delay": 0}
    )
    return outcome(job, how, **facts)


async def reaper(session, rng):
    await session.execute(LAPSE)
    told = json.loads(await session.fetchval("SELECT scheduler.reap('0 s', 50)"))
    await resolve_all(session, told["parents"])


async def submitter(session, rng):
    newest = await session.fetchval("SELECT max(id) FROM scheduler.jobs_active")
    if newest is not None:
        with contextlib.suppress(asyncpg.CheckViolationError):
            await insert(session, payload='{"token": 1}', depends_on=[newest], on_parent_failure="run")


async def operator(session, rng):
    ids = [row["id"] for row in await session.fetch("SELECT id FROM scheduler.jobs ORDER BY random() LIMIT 5")]
    told = await cancel(session, *ids)
    await resolve_all(session, told["parents"])
    await session.fetchval("SELECT scheduler.retry($1)", ids)
