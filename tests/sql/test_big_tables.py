"""A million jobs that are not due, and plans made while the tables were empty and analysed as such."""

import json
from uuid import uuid4

import pytest

from .steps import LEASE, WORKER, claim, insert_many, promote, reap

pytestmark = pytest.mark.slow

MILLION = """
INSERT INTO scheduler.jobs_active (id, kind, queue, priority, max_attempts, max_crashes, timeout, retry_base, retry_cap,
  retry_jitter, status, run_at, rank_at, submitted_at)
OVERRIDING SYSTEM VALUE SELECT 1e12 + n, 'k', 'default', 1, 5, 3, '1 h', '1 s', '1 h', true, 'DELAYED',
  at + interval '1 day' + n * interval '1 ms', at, at
FROM (SELECT n, scheduler.clock() AS at FROM generate_series(1, 1000000) AS n) AS b"""
PROMOTE = "SELECT scheduler.promote(1000)"
CLAIM = "SELECT * FROM scheduler.claim($1, $2, '{default}', '{k}', $3, $4)"


async def pages(session, call, *arguments):
    plan = json.loads(await session.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}", *arguments))[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def test_f44_f45_b64_a_million_jobs_ahead_cost_a_claim_nothing_whatever_the_statistics_say(db, connect, clock):
    used = await connect()
    await db.execute("ALTER TABLE scheduler.jobs_active SET (autovacuum_enabled = false)")
    await db.execute("ANALYZE scheduler.jobs_active, scheduler.jobs_finished")
    for _ in range(7):  # after five calls a plan is kept
        assert await claim(used, 10) == []
        await promote(used)
        await reap(used)

    await db.execute(MILLION)
    await insert_many(db, 200)

    seen = {}
    for name, session in {"used": used, "fresh": await connect()}.items():
        await promote(session)  # what a session reads of the catalogs, once
        await claim(session, 1)
        seen[name, "promote"] = await pages(session, PROMOTE)
        seen[name, "one"] = await pages(session, CLAIM, WORKER, uuid4(), 1, LEASE)
        seen[name, "a hundred"] = await pages(session, CLAIM, WORKER, uuid4(), 98, LEASE)
    limits = {"promote": 200, "one": 200, "a hundred": 4000}
    assert {what: count for what, count in seen.items() if count >= limits[what[1]]} == {}
    assert await claim(db, 10) == []
