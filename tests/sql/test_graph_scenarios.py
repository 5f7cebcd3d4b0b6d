"""Graphs as they go wrong elsewhere: cycles that nobody refuses, cascades that reach a job twice."""

import asyncio
import json
from collections import Counter

import asyncpg
import pytest
from chaos import recorder

from .steps import (
    cancel,
    claim,
    end,
    insert,
    insert_many,
    outcome,
    resolve_all,
    settle,
    start,
    status,
    until_waiting,
    verb,
)

CHILDREN = """INSERT INTO scheduler.jobs (kind, depends_on, on_parent_failure)
SELECT 'k', ARRAY[parent], $2 FROM unnest($1::bigint[]) AS parent RETURNING id"""


async def test_f19_two_submitters_who_guess_each_others_ids_build_no_cycle(db, connect):
    """Each names the id that the other is about to get: a parent must exist, so one at least is refused."""
    last = await insert(db)
    one, other = await connect(), await connect()

    async with one.transaction():
        with pytest.raises(asyncpg.CheckViolationError, match=f"names job {last + 2}, which does not exist"):
            await insert(one, depends_on=[last + 2])
    async with other.transaction():
        assert await insert(other, depends_on=[]) == last + 2
        with pytest.raises(asyncpg.CheckViolationError, match=f"names job {last + 2}, which does not exist"):
            await insert(one, depends_on=[last + 2])  # not committed, so it is not there

    loops = """SELECT count(*) FROM scheduler.dependencies a JOIN scheduler.dependencies b
        ON a.parent = b.child AND a.child = b.parent"""
    assert await db.fetchval(loops) == 0
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs WHERE status = 'BLOCKED'") == 0


async def test_f19_a_job_that_names_itself_or_a_parent_that_is_none_is_refused_and_one_named_twice_counts_once(db):
    parent = await insert(db)
    with pytest.raises(asyncpg.CheckViolationError, match="depends_on must not contain the job itself"):
        await insert(db, depends_on=[parent + 1])
    with pytest.raises(asyncpg.CheckViolationError, match="names job 4711, which does not exist"):
        await insert(db, depends_on=[parent, 4711])

    child = await insert(db, depends_on=[parent, parent])
    (job,) = await claim(db)
    await resolve_all(db, (await end(db, job))["parents"])

    assert await status(db, child) == "PENDING"


@pytest.mark.parametrize("place", [0, 1, 7, -1])
async def test_f19_a_node_that_names_itself_or_a_later_one_in_sql_is_refused_and_no_batch_by_mistake(db, place):
    with pytest.raises(asyncpg.CheckViolationError, match="parents must be the places of earlier jobs"):
        await verb(db, "submit_graph", json.dumps([{"kind": "k", "parents": {"p": place}}, {"kind": "k"}]))

    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0


async def test_f19_no_edge_can_be_added_to_a_job_that_is_there(db, login):
    parent, child = await insert(db), await insert(db)
    for role in ("scheduler_submitter", "scheduler_worker", "scheduler_operator"):
        session = await login(role)
        for statement in (
            "UPDATE scheduler.jobs SET depends_on = ARRAY[$1::bigint] WHERE id = $2",
            "INSERT INTO scheduler.dependencies (parent, child) VALUES ($1, $2)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute(statement, parent, child)


@pytest.mark.parametrize("policy", ["cancel", "run"])
async def test_f20_below_a_parent_that_failed_each_descendant_moves_once(db, policy):
    """Ten levels of a hundred jobs, each a child of one above it."""
    await recorder.install(db)
    root = await start(db)
    levels = [[root["id"]]]
    for _ in range(10):
        above = levels[-1] * (100 // len(levels[-1]))
        levels.append([row["id"] for row in await db.fetch(CHILDREN, above, policy)])

    await resolve_all(db, (await end(db, root, "failed", retryable=False))["parents"])

    below = [job_id for level in levels[1:] for job_id in level]
    moves = Counter(await moved(db, "was = 'BLOCKED'"))
    if policy == "cancel":
        found = "SELECT status::text, cancelled_by FROM scheduler.jobs_finished WHERE id = ANY ($1)"
        rows = await db.fetch(found, below)
        assert {(row["status"], row["cancelled_by"]) for row in rows} == {("CANCELLED", root["id"])}
        assert moves == Counter(below)
    else:  # the first level runs, the others wait for it
        assert moves == Counter(levels[1])
        for level in levels[1:]:
            jobs = await claim(db, 1000)
            assert sorted(job["id"] for job in jobs) == level
            await resolve_all(db, (await settle(db, *map(outcome, jobs)))["parents"])


async def test_f20_two_operators_who_cancel_one_root_cancel_each_descendant_once(db, connect):
    await recorder.install(db)
    root, one, other = await insert(db), await connect(), await connect()
    children = await insert_many(db, 100, depends_on=[root])

    async with one.transaction():
        first = await cancel(one, root)
        cancelling = asyncio.create_task(cancel(other, root))
        await until_waiting(db, other)
    second = await cancelling
    await asyncio.gather(resolve_all(one, first["parents"]), resolve_all(other, [root]))

    assert second["ended"] == [root]
    assert Counter(await moved(db, "now = 'CANCELLED'")) == Counter([root, *children])


async def moved(db, condition):
    """Return the jobs of the moves that the triggers saw, one for each time."""
    return [row["job"] for row in await db.fetch(f"SELECT job FROM chaos.events WHERE {condition}")]
