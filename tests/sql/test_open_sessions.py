"""Sessions that somebody leaves open: a dashboard's transaction, a snapshot that keeps what is dead."""

import json
from uuid import uuid4

import pytest

from .steps import (
    LEASE,
    WORKER,
    cancel,
    claim,
    end,
    insert,
    insert_many,
    outcome,
    promote,
    reap,
    release,
    renew,
    resolve,
    settle,
    submit,
    verb,
)

PEEK = """EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT * FROM scheduler.claim($1, $2, '{default}', '{k}', 1, $3)"""


async def test_f68_a_dashboard_that_leaves_its_transaction_open_holds_up_no_verb(db, connect, login):
    viewer, other = await login("scheduler_viewer"), await connect(server_settings={"lock_timeout": "100ms"})
    await insert_many(db, 3)
    await viewer.execute("BEGIN")
    await viewer.fetch("SELECT id, status FROM scheduler.jobs")
    await viewer.fetch("SELECT * FROM scheduler.queue_depth")
    await viewer.fetch("SELECT * FROM scheduler.list_queues()")

    done, released, cancelled = await claim(other, 3)
    await renew(other, [done, released])
    await release(other, [released])
    await cancel(other, cancelled["id"])
    child = await insert(other, depends_on=[done["id"]])
    await submit(other, idempotency_key="one")
    await resolve(other, (await end(other, done))["parents"])
    await promote(other)
    await reap(other)
    await verb(other, "retain", 100)

    assert child in {job["id"] for job in await claim(other, 9)}
    assert await viewer.fetchval("SELECT 1") == 1


async def test_f43_a_snapshot_that_is_held_makes_claims_dearer_and_never_wrong_and_that_ends_with_it(db, connect):
    """This version sets no bound: what a claim walks past grows with the jobs done since, until vacuum may come."""
    holder = await connect()
    await db.execute("ALTER TABLE scheduler.jobs_active SET (autovacuum_enabled = false)")
    await work(db, 200)
    before = await pages(db)

    async with holder.transaction(isolation="repeatable_read"):
        await holder.fetchval("SELECT count(*) FROM scheduler.jobs")
        ids = await work(db, 2000)
        await db.execute("VACUUM scheduler.jobs_active")
        held = await pages(db)
    await db.execute("VACUUM scheduler.jobs_active")
    after = await pages(db)

    assert held > before
    assert after <= before * 3  # its indexes have grown by a level meanwhile
    assert (
        await db.fetchval("SELECT count(*) FROM scheduler.jobs_finished WHERE attempt = 1 AND id = ANY ($1)", ids)
        == 2000
    )


async def work(db, jobs):
    """Insert and run jobs, ten at a time; return their ids."""
    ids = await insert_many(db, jobs)
    while found := await claim(db, 10):
        await settle(db, *map(outcome, found))
    return ids


async def pages(db):
    """Return how many pages one claim of one job touches."""
    await insert(db)
    plan = json.loads(await db.fetchval(PEEK, WORKER, uuid4(), LEASE))[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize("verb_name", ["renew", "settle"])
async def test_f43_a_held_snapshot_keeps_no_worker_from_its_own_jobs(db, connect, verb_name):
    holder = await connect()
    await insert(db)
    (job,) = await claim(db)

    async with holder.transaction(isolation="repeatable_read"):
        await holder.fetchval("SELECT count(*) FROM scheduler.jobs")
        answer = await (renew(db, [job]) if verb_name == "renew" else end(db, job))

    assert (answer["lost"], answer["busy"]) == ([], [])
