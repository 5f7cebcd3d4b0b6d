"""What operators see: jobs by filters, and queues, kinds and workers at a glance; no secrets, nothing dear."""

import json
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from .steps import cancel, claim, declare, end, insert, insert_many, start, verb
from .test_retain import HISTORY

DAY = 24 * 3600


async def listed(db, **filters):
    rows = await db.fetch("SELECT scheduler.list_jobs($1)", json.dumps(filters))
    return [json.loads(row[0])["id"] for row in rows]


async def count(db, **filters):
    return await verb(db, "count_jobs", json.dumps(filters))


async def job_ids(db, **filters):
    return await db.fetchval("SELECT scheduler.job_ids($1)", json.dumps(filters))


@pytest.fixture
async def jobs(db, clock):
    """Six jobs, one a minute."""
    await declare(db, "other")
    made = {}
    for name, columns in {
        "waits": {},
        "mail": {"queue": "mail"},
        "acme": {"tenant": "acme"},
        "other": {"kind": "other"},
    }.items():
        made[name] = await insert(db, **columns)
        await clock.advance(60)
    for name, error in {"lost": "Connection 100% RESET", "slow": "it took_long"}.items():
        job = await start(db, queue="q")
        await end(db, job, "failed" if name == "lost" else "timed_out", error=error, retryable=False)
        made[name] = job["id"]
        await clock.advance(60)
    return made


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, "slow lost other acme mail waits"),
        ({"status": ["FAILED", "TIMED_OUT"]}, "slow lost"),
        ({"status": []}, "slow lost other acme mail waits"),
        ({"kind": "other"}, "other"),
        ({"queue": "mail"}, "mail"),
        ({"tenant": "acme"}, "acme"),
        ({"tenant": None, "kind": None}, "slow lost other acme mail waits"),
        ({"error": "connection 100% reset"}, "lost"),
        ({"error": "100_"}, ""),
        ({"error": "K_L"}, "slow"),
        ({"older_than": 300}, "mail waits"),
        ({"newer_than": 120}, "slow lost"),
        ({"newer_than": 300, "older_than": 180}, "other acme mail"),
        ({"limit": 2}, "slow lost"),
        ({"status": ["PENDING"], "queue": "default", "limit": 2}, "other acme"),
    ],
)
async def test_filters_find_the_same_jobs_for_a_list_a_count_and_ids(db, jobs, filters, found):
    expected = [jobs[name] for name in found.split()]

    assert await listed(db, **filters) == expected
    assert await job_ids(db, **filters) == expected
    assert sum((await count(db, **filters)).values()) == len(expected)


async def test_a_count_is_by_status(db, jobs):
    assert await count(db) == {"PENDING": 4, "FAILED": 1, "TIMED_OUT": 1}
    assert await count(db, kind="none") == {}


async def test_ids_are_paged_newest_first(db):
    ids = await insert_many(db, 2500)

    pages, before = [], None
    while page := await job_ids(db, before=before):
        pages.append(page)
        before = page[-1]

    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert [job_id for page in pages for job_id in page] == ids[::-1]


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"kinds": "k"}, "kinds is no filter"),
        ({"status": "FAILED"}, "status must be a JSON array"),
        ({"older_than": "1 h"}, "older_than must be a JSON number"),
        ({"before": "x"}, "before must be a JSON number"),
    ],
)
@pytest.mark.parametrize("name", ["list_jobs", "count_jobs", "job_ids"])
async def test_a_wrong_filter_is_refused_by_name(db, name, filters, words):
    with pytest.raises(asyncpg.CheckViolationError, match=words):
        await db.fetch(f"SELECT scheduler.{name}($1)", json.dumps(filters))


async def glance(db, what):
    return [json.loads(row[0]) for row in await db.fetch(f"SELECT scheduler.list_{what}()")]


async def register(db, n, **facts):
    usual = {"host": "h", "pid": n, "version": "1", "queues": ["default"], "kinds": ["k"], "slots": {"async": 5}}
    facts = {**usual, **facts, "channel": f"c{n}"}
    await db.execute("SELECT scheduler.register($1, $2)", UUID(int=n), json.dumps(facts))


async def test_queues_at_a_glance(db, clock):
    await declare(db, queues=[{"queue": "mail", "ordering": "fifo", "keep_completed": DAY}])
    await register(db, 1, queues=["default", "served"])
    running = await start(db)
    await insert(db, depends_on=[running["id"]])
    await insert(db, run_at=await clock.now() + timedelta(days=1))
    await insert(db)
    await insert(db, "new")
    await clock.advance(30)

    found = {queue.pop("queue"): queue for queue in await glance(db, "queues")}

    empty = {
        "blocked": 0,
        "delayed": 0,
        "pending": 0,
        "running": 0,
        "oldest": None,
        "workers": 0,
        "ordering": "aging",
        "keep_completed": 7 * DAY,
        "keep_failed": 30 * DAY,
        "paused": False,
        "paused_for": None,
        "paused_by": None,
    }
    assert found == {
        "default": empty | {"blocked": 1, "delayed": 1, "pending": 1, "running": 1, "oldest": 30, "workers": 1},
        "mail": empty | {"ordering": "fifo", "keep_completed": DAY},
        "served": empty | {"workers": 1},
        None: empty | {"pending": 1, "oldest": 30},
    }


async def test_kinds_at_a_glance(db, clock):
    await register(db, 1)
    await start(db)
    await insert_many(db, 2)
    await insert(db, "new")
    await clock.advance(30)
    await register(db, 2)
    await clock.advance(31)
    await verb(db, "pause", None, "new", timedelta(hours=1), "me")

    k, new = await glance(db, "kinds")

    assert k == {
        "kind": "k",
        "queue": "default",
        "executor": "async",
        "seen": k["seen"],
        "waiting": 2,
        "running": 1,
        "workers": 1,
        "paused": False,
        "paused_for": None,
        "paused_by": None,
    }
    assert new == {
        "kind": "new",
        "queue": None,
        "executor": None,
        "seen": None,
        "waiting": 1,
        "running": 0,
        "workers": 0,
        "paused": True,
        "paused_for": 3600,
        "paused_by": "me",
    }


async def test_workers_at_a_glance(db, clock):
    await register(db, 1, kinds=["k", "other"])
    await clock.advance(30)
    await register(db, 2, draining=True)
    await insert_many(db, 3)
    await claim(db, 2, worker=UUID(int=1))
    await clock.advance(31)

    first, second = await glance(db, "workers")

    assert first == {
        "id": str(UUID(int=1)),
        "host": "h",
        "pid": 1,
        "version": "1",
        "queues": ["default"],
        "kinds": 2,
        "slots": {"async": 5},
        "running": 2,
        "age": 61,
        "seen": 61,
        "sleeping": False,
        "draining": False,
        "abandoned": 0,
        "dead": True,
    }
    assert (second["running"], second["seen"], second["draining"], second["dead"]) == (0, 31, True, False)


async def test_a_viewer_sees_the_glances_and_an_operator_all(db, login):
    viewer, operator = await login("scheduler_viewer"), await login("scheduler_operator")
    submitter, worker = await login("scheduler_submitter"), await login("scheduler_worker")

    for what in ("queues", "kinds", "workers"):
        await glance(viewer, what)
        await glance(operator, what)
    calls = {
        "list_jobs()": [operator], "count_jobs()": [operator], "job_ids()": [operator], "retry('{1}')": [operator],
        "prune('{1}')": [operator], "pause('q', NULL)": [operator], "resume('q', NULL)": [operator],
        "retain()": [operator, worker], "list_queues()": [operator, viewer],
    }  # fmt: skip
    for call, allowed in calls.items():
        for session in (viewer, operator, submitter, worker):
            if session in allowed:
                await session.fetch(f"SELECT scheduler.{call}")
            else:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await session.fetch(f"SELECT scheduler.{call}")


async def test_a_glance_reads_nothing_of_what_has_ended(db, clock):
    await db.execute(HISTORY, 1000, 10**12, "default", "COMPLETED", 60)
    await insert(db)
    query = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables WHERE relname = $1"

    async with db.transaction():
        before = await db.fetchval(query, "jobs_finished")
        for what in ("queues", "kinds", "workers"):
            await glance(db, what)
        assert await db.fetchval(query, "jobs_finished") == before


async def test_a_cancelled_job_is_found_by_the_words_of_its_parents_end(db):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    await cancel(db, parent)
    await verb(db, "resolve", [parent], 10)

    assert await listed(db, error="which this one depends on") == [child]
