"""Plans: no verb reads a table from end to end, or more than a few rows per job, however many there are.

Nothing is analysed, and the plans of a session are made, and kept, while the tables are empty: the worst that happens.
"""

import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from .steps import (
    LEASE,
    WORKER,
    cancel,
    claim,
    claim_all,
    declare,
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

N = 100  # jobs in each call
SIZES = [0, 1_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
TABLES = ("jobs_active", "jobs_finished", "dependencies", "attempts")
READ = """
SELECT sum(seq_scan)::int AS scans, sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int AS rows
FROM pg_stat_xact_user_tables WHERE schemaname = 'scheduler' AND relname = ANY ($1)"""

# A backlog beside which the verbs work: a tenth runs, and its leases hold; a tenth waits for parents; the kinds, but
# not the queue, are others than those of the test.
BACKLOG = """
INSERT INTO scheduler.jobs_active (id, kind, queue, priority, max_attempts, max_crashes, timeout, retry_base, retry_cap,
  retry_jitter, status, unmet, worker_id, lease_expires_at, started_at, attempt, fence, run_at, rank_at, submitted_at)
OVERRIDING SYSTEM VALUE
SELECT 1e12 + n, 'backlog' || n % 7, 'default', 1, 5, 3, '1 h', '1 s', '1 h', true, s,
  CASE s WHEN 'BLOCKED' THEN 1 ELSE 0 END,
  CASE s WHEN 'RUNNING' THEN gen_random_uuid() END, CASE s WHEN 'RUNNING' THEN at + interval '1 day' END,
  CASE s WHEN 'RUNNING' THEN at END, 1, 1, CASE s WHEN 'DELAYED' THEN at + interval '1 day' ELSE at END, at, at
FROM (SELECT n, scheduler.clock() - interval '1 h' AS at, CASE n % 10 WHEN 0 THEN 'RUNNING' WHEN 1 THEN 'BLOCKED'
  WHEN 2 THEN 'DELAYED' ELSE 'PENDING' END::scheduler.job_status AS s FROM generate_series(1, $1::int / 2) AS n) AS b"""
HISTORY = """
INSERT INTO scheduler.jobs_finished (id, kind, queue, status, run_at, rank_at, submitted_at, finished_at)
OVERRIDING SYSTEM VALUE
SELECT 2e12 + n, 'backlog', 'default', 'COMPLETED', at, at, at, at
FROM generate_series(1, $1::int / 2) AS n, (SELECT scheduler.clock() AS at) AS c"""
EDGES = """
INSERT INTO scheduler.dependencies (parent, child, ended, applied)
SELECT 2e12 + n, 1e12 + n, n % 2 = 0, n % 2 = 0 FROM generate_series(1, $1::int / 2) AS n"""
LOG = """
INSERT INTO scheduler.attempts (job_id, attempt, ended_at, outcome)
SELECT 2e12 + n, 1, scheduler.clock(), 'failed' FROM generate_series(1, $1::int / 2) AS n"""


class Meter:
    """Count what each verb reads, in a transaction of its own, in one session."""

    def __init__(self, session):
        self.session = session
        self.scans = {}
        self.rows = {}

    async def __call__(self, name, call):
        async with self.session.transaction():
            before = await self.session.fetchrow(READ, TABLES)
            answer = await call
            after = await self.session.fetchrow(READ, TABLES)
        self.scans[name] = after["scans"] - before["scans"]
        self.rows[name] = after["rows"] - before["rows"]
        return answer


@pytest.mark.parametrize("size", SIZES)
async def test_no_verb_scans_a_table_or_reads_more_rows_than_its_jobs_need(db, connect, clock, size):
    used, fresh = await connect(), await connect()
    await keep_statistics_away(db)
    for _ in range(7):  # after five calls a plan is kept
        await work(used, clock)
    await fill(db, size)

    meters = [await work(used, clock), await work(fresh, clock)]

    running = size // 20
    limits = {
        "resolve": 30 * N,
        "reap": 12 * N + running,
        "claimed_by": 12 * N + running,
    }  # look at all edges, all running
    for meter in meters:
        assert {verb: n for verb, n in meter.scans.items() if n} == {}
        assert {verb: n for verb, n in meter.rows.items() if n > limits.get(verb, 12 * N)} == {}


async def keep_statistics_away(db):
    for table in TABLES:
        await db.execute(f"ALTER TABLE scheduler.{table} SET (autovacuum_enabled = false)")


async def fill(db, size):
    if size:
        for statement in (BACKLOG, HISTORY, EDGES, LOG):
            await db.execute(statement, size)


async def work(session, clock):
    """Do everything that can be done to jobs, N at a time."""
    meter = Meter(session)
    await submitting(session, meter, clock)
    await ending(session, meter, clock)
    await returning(session, meter, clock)
    await cancelling(session, meter)
    await drain(session)
    await operating(session, meter, clock)
    await drain(session)
    return meter


async def submitting(session, meter, clock):
    kinds = [f"fresh{uuid4().hex}" for _ in range(5)]
    await meter("insert", insert_many(session, N))
    await meter("insert undeclared", insert_many(session, N, kinds[0]))
    await meter("declare", declare(session, *kinds))
    await meter("insert with a key", submit(session, idempotency_key=kinds[0]))
    await meter("insert with the key again", submit(session, idempotency_key=kinds[0]))
    await meter("insert delayed", insert_many(session, N, run_at=await clock.now() + timedelta(seconds=9)))
    for kind in kinds[1:]:
        await insert_many(session, N // 5, kind)
    await meter("claim several kinds", claim(session, N, [*kinds, "k"]))
    await meter("claim in vain", claim_all(session, N, ["none", "such"]))
    await clock.advance(10)
    await meter("promote", promote(session))


async def ending(session, meter, clock):
    request = uuid4()
    jobs = await meter("claim", claim(session, N, request=request))
    ids = [job["id"] for job in jobs]
    assert len(jobs) == N
    await meter("insert children", insert_many(session, 10, depends_on=ids[:10]))
    await meter("insert children of one", insert_many(session, N, depends_on=ids[:1]))
    await meter("renew", renew(session, jobs))
    await meter("claimed_by", session.fetch("SELECT * FROM scheduler.claimed_by($1, $2)", WORKER, request))
    outcomes = [outcome(job, "failed" if n % 2 else "completed", retryable=n % 4 == 1) for n, job in enumerate(jobs)]
    answer = await meter("settle", settle(session, *outcomes))
    await meter("settle again", settle(session, *outcomes))
    await meter("renew what is lost", renew(session, jobs))
    await meter("resolve", resolve(session, answer["parents"]))
    await meter("resolve what is left", resolve(session, None))
    await meter("outcomes", session.fetch("SELECT * FROM scheduler.outcomes($1)", ids))
    await meter("job", verb(session, "job", ids[1]))
    await meter("insert children of the ended", insert_many(session, N, depends_on=ids[:2], on_parent_failure="run"))


async def returning(session, meter, clock):
    await insert_many(session, 2 * N)
    jobs = await claim(session, N)
    await meter("release", release(session, jobs))
    jobs = await claim(session, N)
    await meter("snooze", settle(session, *(outcome(job, "snoozed", delay=1) for job in jobs)))
    await claim(session, N, worker=UUID(int=9))
    await clock.advance(LEASE.total_seconds() + 1)
    await meter("reap", reap(session))


async def cancelling(session, meter):
    waiting = await insert_many(session, N // 2)
    running = [job["id"] for job in await claim(session, N // 4)]
    ended = [job["id"] for job in await claim(session, N // 4)]
    await cancel(session, *ended)
    await meter("cancel", cancel(session, *waiting, *running, *ended, 1))


async def operating(session, meter, clock):
    parent = await insert(session)
    children = await insert_many(session, N, depends_on=[parent])
    (job,) = await claim(session)
    await resolve(session, (await settle(session, outcome(job, "failed", retryable=False)))["parents"])
    answer = await meter("retry a parent", verb(session, "retry", [parent]))
    assert sorted(answer["children"]) == children
    await meter("retry", verb(session, "retry", children))
    await cancel(session, parent, *children)
    await resolve(session)
    await meter("prune in vain", verb(session, "prune", [parent]))
    assert len((await meter("prune", verb(session, "prune", [parent, *children])))["pruned"]) == N + 1
    await insert_many(session, N)
    await drain(session)
    await clock.advance(8 * 24 * 3600)
    await meter("retain", verb(session, "retain", N))
    await clock.advance(-8 * 24 * 3600)


async def drain(session):
    """Leave nothing of our own that waits."""
    while jobs := await claim(session, 1000):
        await settle(session, *map(outcome, jobs))


@pytest.mark.parametrize("size", SIZES)
async def test_the_pages_a_claim_touches_do_not_grow_with_the_backlog(db, connect, clock, size):
    await keep_statistics_away(db)
    await fill(db, size)
    await insert_many(db, 400)
    await declare(db, "other", "third")
    await insert_many(db, 400, "other")

    one = await pages(db, "claim", WORKER, uuid4(), ["default"], ["k"], 100, LEASE)
    three = await pages(db, "claim", WORKER, uuid4(), ["default"], ["k", "other", "third"], 100, LEASE)
    single = await pages(db, "claim", WORKER, uuid4(), ["default"], ["k"], 1, LEASE)

    assert (one < 4000, three < 5000, single < 400) == (True, True, True), (one, three, single)


async def pages(db, name, *arguments):
    marks = ", ".join(f"${n}" for n, _ in enumerate(arguments, 1))
    query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM scheduler.{name}({marks})"
    plan = json.loads(await db.fetchval(query, *arguments))[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def test_renewals_touch_no_index(db):
    """lease_expires_at is in no index and a page keeps room, so a renewal is a HOT update."""
    await insert(db)
    jobs = await claim(db)
    hot = "SELECT n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'jobs_active'"

    async with db.transaction():
        before = await db.fetchval(hot)
        for _ in range(20):
            await renew(db, jobs)
        assert await db.fetchval(hot) - before == 20
