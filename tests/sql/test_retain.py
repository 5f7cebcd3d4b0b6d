"""Retention: what was kept long enough goes, in small batches that keep nobody waiting; the rest is not read again."""

import asyncio
import contextlib
from datetime import timedelta

import asyncpg
import pytest

from .steps import (
    cancel,
    claim,
    declare,
    end,
    insert,
    insert_many,
    resolve,
    resolve_all,
    settle,
    submit,
    until_waiting,
    verb,
)
from .test_prune import ended

DAY = 24 * 3600
HISTORY = """
INSERT INTO scheduler.jobs_finished (id, kind, queue, status, run_at, rank_at, submitted_at, finished_at, attempt)
OVERRIDING SYSTEM VALUE
SELECT $2::bigint + n, 'k', $3, $4::scheduler.job_status, at, at, at, at + n * interval '1 ms', 1
FROM generate_series(1, $1::int) AS n, (SELECT scheduler.clock() - make_interval(secs => $5) AS at) AS c"""


async def retain(db, limit=500):
    return await verb(db, "retain", limit)


async def retain_all(db, limit=500):
    """Retain as a worker does, until there is no more; return how many went."""
    pruned, more = 0, True
    while more:
        answer = await retain(db, limit)
        pruned, more = pruned + answer["pruned"], answer["more"]
    return pruned


async def history(db, n, age, *, first=10**12, queue="default", status="COMPLETED"):
    await db.execute(HISTORY, n, first, queue, status, age)


async def ids(db):
    return [row["id"] for row in await db.fetch("SELECT id FROM scheduler.jobs ORDER BY id")]


async def test_completed_jobs_are_kept_for_a_week_and_all_others_for_a_month(db, clock):
    good = await ended(db)
    bad = [await ended(db, ending) for ending in ("failed", "timed_out", "cancelled")]
    await clock.advance(7 * DAY - 1)
    assert await retain_all(db) == 0
    await clock.advance(1)

    assert await retain_all(db) == 1
    assert await ids(db) == bad
    assert good not in await ids(db)

    await clock.advance(23 * DAY)
    assert await retain_all(db) == 3
    assert await ids(db) == []


async def test_a_queue_says_how_long_its_jobs_are_kept(db, clock):
    await declare(db, queues=[{"queue": "brief", "keep_completed": 60, "keep_failed": 120}])
    brief, failed = await ended(db, queue="brief"), await ended(db, "failed", queue="brief")
    other, unknown = await ended(db), await ended(db, queue="nobody_declared_it")
    await clock.advance(60)
    assert (await retain_all(db), await ids(db)) == (1, [failed, other, unknown])
    await clock.advance(60)
    assert (await retain_all(db), await ids(db)) == (1, [other, unknown])
    await clock.advance(7 * DAY)

    assert await retain_all(db) == 2
    assert brief not in await ids(db)


async def test_a_shorter_period_is_heeded_for_the_jobs_there_are(db, clock):
    await history(db, 30, 8 * DAY, status="FAILED")
    assert await retain_all(db, 10) == 0

    await declare(db, queues=[{"queue": "default", "keep_failed": 7 * DAY}])

    assert await retain_all(db, 10) == 30


async def test_a_period_that_is_one_queues_already_is_heeded_for_another(db, clock):
    await declare(db, queues=[{"queue": "long", "keep_completed": 30 * DAY}])
    await history(db, 30, 8 * DAY, queue="long")
    assert await retain_all(db, 10) == 0

    await declare(db, queues=[{"queue": "long"}])

    assert await retain_all(db, 10) == 30


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"keep_completed": 0}, "keep_completed must be over 0"), ({"keep_failed": 1e10}, "keep_failed must be over 0")],
)
async def test_a_wrong_period_is_refused(db, wrong, words):
    with pytest.raises(asyncpg.CheckViolationError, match=words):
        await declare(db, queues=[{"queue": "q", **wrong}])


async def test_a_call_looks_at_no_more_than_its_limit_and_says_that_there_is_more(db, clock):
    await history(db, 25, 8 * DAY)

    assert [await retain(db, 10) for _ in range(4)] == [
        {"pruned": 10, "more": True},
        {"pruned": 10, "more": True},
        {"pruned": 5, "more": False},
        {"pruned": 0, "more": False},
    ]


async def test_a_parent_of_an_unfinished_child_stays_and_goes_once_the_child_has_ended(db, clock):
    parent = await ended(db)
    child = await insert(db, depends_on=[parent])
    await clock.advance(8 * DAY)
    assert await retain_all(db) == 0
    (job,) = await claim(db)
    await end(db, job)
    await clock.advance(3600)

    assert await retain_all(db) == 1

    assert await ids(db) == [child]
    assert await db.fetchval("SELECT count(*) FROM scheduler.kept") == 0


async def test_a_kept_job_that_was_retried_is_not_removed_before_its_time(db, clock):
    parent = await ended(db, "failed")
    await insert(db, depends_on=[parent], on_parent_failure="run", run_at=await clock.now() + timedelta(days=300))
    await clock.advance(31 * DAY)
    assert await retain_all(db) == 0
    await verb(db, "retry", [parent])
    (job,) = await claim(db)
    await end(db, job, "failed", retryable=False)
    await clock.advance(2 * 3600)

    assert await retain_all(db) == 0

    await cancel(db, *await ids(db))
    await clock.advance(31 * DAY)
    assert await retain_all(db) == 2


async def test_a_thousand_kept_parents_hide_nothing_and_are_read_once_an_hour(db, clock):
    """B03: a full page of what has to stay, and behind it what has to go."""
    await history(db, 1000, 9 * DAY)
    await db.execute(
        """INSERT INTO scheduler.dependencies (parent, child, ended)
        SELECT f.id, $1, true FROM scheduler.jobs_finished f""",
        await insert(db),
    )
    await history(db, 10, 8 * DAY, first=2 * 10**12)

    assert await retain_all(db, 100) == 10

    before = await rows_read(db)
    assert await retain(db, 100) == {"pruned": 0, "more": False}
    assert await rows_read(db) - before < 20


async def rows_read(db):
    """Count the finished jobs that were ever read in this database."""
    if db.get_server_version().major < 15:
        pytest.skip("PostgreSQL 14 publishes its counts when it likes")
    await db.execute("SELECT pg_stat_force_next_flush()")
    await db.execute("SELECT pg_stat_clear_snapshot()")
    return await db.fetchval(
        "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'jobs_finished'"
    )


async def test_jobs_that_are_kept_longer_are_read_once_and_never_again(db, clock):
    await declare(db, queues=[{"queue": "long", "keep_completed": 365 * DAY}])
    await history(db, 1000, 9 * DAY, queue="long")
    assert await retain_all(db, 100) == 0
    before = await rows_read(db)

    for _ in range(5):
        await clock.advance(DAY)
        assert await retain_all(db, 100) == 0

    assert await rows_read(db) - before < 50


# Keys.


async def test_a_key_whose_window_has_ended_goes_before_its_job(db, clock):
    job_id = await ended(db, idempotency_key="one")
    await clock.advance(DAY - 1)
    await retain_all(db)
    assert await submit(db, idempotency_key="one") == job_id
    await clock.advance(1)

    await retain_all(db)

    assert await db.fetchval("SELECT count(*) FROM scheduler.idempotency_keys") == 0
    assert await ids(db) == [job_id]


async def test_a_key_of_an_unfinished_job_stays_and_hides_none_behind_it(db, clock):
    waiting = await submit(db, idempotency_key="waiting", delay="100 days")
    for n in range(5):
        await ended(db, idempotency_key=f"{n}")
    await clock.advance(2 * DAY)

    await retain_all(db, 1)

    assert [r["key"] for r in await db.fetch("SELECT key FROM scheduler.idempotency_keys")] == ["waiting"]
    assert await submit(db, idempotency_key="waiting") == waiting
    await cancel(db, waiting)
    await clock.advance(31 * DAY)
    await retain_all(db)
    assert await db.fetchval("SELECT count(*) FROM scheduler.idempotency_keys") == 0


async def test_a_key_whose_job_was_never_inserted_goes_too(db, clock):
    await insert(db, unique_key="one")
    await db.execute("""INSERT INTO scheduler.jobs (kind, unique_key, idempotency_key) VALUES ('k', 'one', 'orphan')
        ON CONFLICT DO NOTHING""")
    assert await db.fetchval("SELECT count(*) FROM scheduler.idempotency_keys") == 1
    await clock.advance(2 * DAY)

    await retain_all(db)

    assert await db.fetchval("SELECT count(*) FROM scheduler.idempotency_keys") == 0


# Races, forced with held locks: these sessions give up on a lock after a moment.


async def test_retention_keeps_nobody_waiting(db, connect, clock):
    parent, gone = await ended(db), await ended(db)
    child = await insert(db, depends_on=[parent])
    await clock.advance(8 * DAY)
    worker, other = await connect(), await connect(server_settings={"lock_timeout": "100ms"})

    async with worker.transaction():
        assert (await retain(worker))["pruned"] == 1
        submitted = await insert(other, depends_on=[parent])
        jobs = await claim(other, 5)
        parents = await settle(other, *({"id": j["id"], "fence": j["fence"], "outcome": "completed"} for j in jobs))
        await resolve_all(other, parents["parents"])
        await resolve(other)
        await submit(other, idempotency_key="new")
        assert (await retain(other))["pruned"] == 0
        assert {job["id"] for job in jobs} == {child, submitted}

    assert gone not in await ids(db)


async def test_a_child_submitted_behind_retention_is_refused_when_its_parent_is_gone(db, connect, clock):
    parent = await ended(db)
    await clock.advance(8 * DAY)
    worker, submitter = await connect(), await connect()

    async with worker.transaction():
        assert (await retain(worker))["pruned"] == 1
        inserting = asyncio.create_task(insert(submitter, depends_on=[parent]))
        await until_waiting(db, submitter)

    with pytest.raises(asyncpg.CheckViolationError, match="does not exist"):
        await inserting


async def test_b27_many_at_once_beside_settlements_and_submits_never_deadlock_and_lose_no_parent(db, connect, clock):
    """B27: retention passes, prunes and completions."""
    await declare(db, queues=[{"queue": "default", "keep_completed": 0.001, "keep_failed": 0.001}])
    sessions = [await connect() for _ in range(6)]
    parents = await insert_many(db, 20)
    stop, ticking = asyncio.Event(), asyncio.Lock()

    async def remove(session, by_hand):
        while not stop.is_set():
            if by_hand:
                await verb(session, "prune", await ids(session))
            else:
                await retain(session, 7)

    async def work(session):
        for n in range(60):
            for job in await claim(session, 5):
                while (answer := await end(session, job, "failed" if n % 4 == 0 else "completed", retryable=False))[
                    "busy"
                ]:
                    pass
                await resolve(session, answer["parents"] or None)
            async with ticking:
                await clock.advance(1)
            with contextlib.suppress(asyncpg.CheckViolationError):  # the parent is gone
                await insert(session, depends_on=[parents[n % 20]], on_parent_failure="run")

    removing = [asyncio.create_task(remove(session, n == 0)) for n, session in enumerate(sessions[:3])]
    await asyncio.wait_for(asyncio.gather(*(work(session) for session in sessions[3:5])), 60)
    stop.set()
    await asyncio.gather(*removing)

    orphans = """SELECT count(*) FROM scheduler.dependencies d JOIN scheduler.jobs_active j ON j.id = d.child
        WHERE NOT EXISTS (SELECT FROM scheduler.jobs p WHERE p.id = d.parent)"""
    assert await db.fetchval(orphans) == 0
    assert await db.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
