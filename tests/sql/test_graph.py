"""Dependencies: a child starts when all its parents have completed; its policy says what their failure means to it."""

from datetime import timedelta

import asyncpg
import pytest

from .steps import (
    cancel,
    claim,
    end,
    insert,
    insert_many,
    outcome,
    reap,
    release,
    resolve,
    resolve_all,
    row,
    settle,
    start,
    status,
    statuses,
)

ENDINGS = ["failed", "timed_out", "cancelled"]


async def finish(db, *ids, ending="completed"):
    """Claim and settle these jobs, which are all that wait; return the parents to be resolved."""
    jobs = await claim(db, len(ids))
    assert {job["id"] for job in jobs} == set(ids)
    return (await settle(db, *(outcome(job, ending, retryable=False) for job in jobs)))["parents"]


async def test_a_child_waits_for_all_its_parents(db):
    first, second = await insert(db), await insert(db)
    child = await insert(db, depends_on=[first, second])
    assert (await row(db, child))["unmet"] == 2
    one, two = await claim(db, 2)

    await resolve_all(db, (await end(db, one))["parents"])
    assert ((await row(db, child))["status"], (await row(db, child))["unmet"]) == ("BLOCKED", 1)

    await resolve_all(db, (await end(db, two))["parents"])
    assert ((await row(db, child))["status"], (await row(db, child))["unmet"]) == ("PENDING", 0)


async def test_a_child_of_completed_parents_starts_at_once(db):
    parent = await start(db)
    await end(db, parent)

    child = await insert(db, depends_on=[parent["id"]])

    assert await status(db, child) == "PENDING"
    assert await resolve(db) == {"parents": [], "busy": [], "more": False, "jobs": []}


async def test_a_child_whose_time_has_not_come_is_delayed_when_its_parents_end(db, clock):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent], run_at=await clock.now() + timedelta(hours=1))

    await resolve_all(db, await finish(db, parent))

    assert await status(db, child) == "DELAYED"


async def test_time_spent_blocked_counts_as_waiting(db, clock):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    place = (await row(db, child))["rank_at"]
    await clock.advance(100)

    await resolve_all(db, await finish(db, parent))

    assert (await row(db, child))["rank_at"] == place == await clock.now() - timedelta(seconds=110)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_parent_that_does_not_complete_cancels_its_child(db, ending):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])

    await resolve_all(db, await finish(db, parent, ending=ending))

    cancelled = await row(db, child)
    assert (cancelled["status"], cancelled["cancelled_by"]) == ("CANCELLED", parent)
    assert cancelled["error"] == f"job {parent}, which this one depends on, ended {ending.upper()}"


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_child_with_the_policy_run_runs_whatever_became_of_its_parents(db, ending):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent], on_parent_failure="run")

    await resolve_all(db, await finish(db, parent, ending=ending))

    assert await status(db, child) == "PENDING"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("policy", "after"), [("cancel", "CANCELLED"), ("run", "PENDING")])
async def test_a_child_of_a_parent_that_already_failed(db, ending, policy, after):
    parent = await start(db)
    await end(db, parent, ending, retryable=False)

    child = await insert(db, depends_on=[parent["id"]], on_parent_failure=policy)
    await resolve(db)

    assert await status(db, child) == after
    assert (await row(db, child))["cancelled_by"] == (parent["id"] if policy == "cancel" else None)


async def test_a_retried_parent_does_not_touch_its_child(db):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    (job,) = await claim(db)

    assert (await end(db, job, "failed"))["parents"] == []
    assert await status(db, child) == "BLOCKED"


async def test_cancelling_a_chain_of_ten_names_the_root_in_all(db):
    chain = [await insert(db)]
    for _ in range(10):
        chain.append(await insert(db, depends_on=[chain[-1]]))

    await resolve_all(db, await finish(db, chain[0], ending="failed"))

    rows = [await row(db, job_id) for job_id in chain[1:]]
    assert [(r["status"], r["cancelled_by"]) for r in rows] == [("CANCELLED", chain[0])] * 10


async def test_cancelling_a_job_with_a_hundred_children_cancels_them_all(db):
    parent = await insert(db)
    children = await insert_many(db, 100, depends_on=[parent])
    grandchild = await insert(db, depends_on=children)

    await resolve_all(db, (await cancel(db, parent))["parents"])

    rows = [await row(db, job_id) for job_id in [*children, grandchild]]
    assert {(r["status"], r["cancelled_by"]) for r in rows} == {("CANCELLED", parent)}


async def test_a_cascade_stops_at_a_child_with_the_policy_run(db):
    root = await insert(db)
    runs = await insert(db, depends_on=[root], on_parent_failure="run")
    below = await insert(db, depends_on=[runs])

    await resolve_all(db, await finish(db, root, ending="failed"))

    assert await statuses(db, [runs, below]) == {runs: "PENDING", below: "BLOCKED"}


async def test_a_fan_in_of_a_thousand_waits_for_the_last(db):
    parents = await insert_many(db, 1000)
    child = await insert(db, depends_on=parents)
    jobs = await claim(db, 1000)

    answer = await settle(db, *map(outcome, jobs[:-1]))
    await resolve_all(db, answer["parents"])
    assert await status(db, child) == "BLOCKED"

    await resolve_all(db, (await end(db, jobs[-1]))["parents"])
    assert await status(db, child) == "PENDING"


async def test_a_call_of_resolve_does_no_more_than_its_limit_and_says_that_more_is_left(db):
    parent = await insert(db)
    children = await insert_many(db, 25, depends_on=[parent])
    parents, answers = await finish(db, parent), []
    for _ in range(3):
        answers.append(await resolve(db, parents, 10))
        answers[-1]["done"] = list((await statuses(db, children)).values()).count("PENDING")

    assert [(a["done"], a["more"]) for a in answers] == [(10, True), (20, True), (25, False)]


async def test_more_is_true_while_edges_are_left_though_children_share_parents(db):
    first, second = await insert(db), await insert(db)
    shared = await insert_many(db, 2, depends_on=[first, second])
    alone = await insert_many(db, 20, depends_on=[second])
    parents, calls = await finish(db, first, second), 0

    while (await resolve(db, parents, 3))["more"]:
        calls += 1
        assert calls < 100

    assert set((await statuses(db, shared + alone)).values()) == {"PENDING"}


async def test_resolve_with_null_finds_any_edge_left_over(db):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    await finish(db, parent)

    answer = await resolve(db)
    freed = {"kind": "k", "queue": "default", "tenant": "", "attempt": 0, "status": "PENDING", "ids": [child]}
    assert answer == {"parents": [], "busy": [], "more": False, "jobs": [freed]}
    assert await status(db, child) == "PENDING"


async def test_resolving_twice_counts_a_parent_once(db):
    first, second = await insert(db), await insert(db)
    child = await insert(db, depends_on=[first, second])
    one, _ = await claim(db, 2)
    parents = (await end(db, one))["parents"]

    for _ in range(3):
        await resolve(db, parents)
        await resolve(db)

    assert (await row(db, child))["unmet"] == 1


async def test_a_parent_named_twice_is_waited_for_once(db):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent, parent])

    assert ((await row(db, child))["unmet"], (await row(db, child))["depends_on"]) == (1, [parent])


async def test_a_released_or_reaped_parent_keeps_its_child_waiting(db, clock):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    (job,) = await claim(db)
    assert (await release(db, [job]))["parents"] == []
    await claim(db)
    await clock.advance(31)
    assert (await reap(db))["parents"] == []

    assert await status(db, child) == "BLOCKED"


async def test_a_missing_parent_is_refused_by_name(db):
    parent = await insert(db)

    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await insert(db, depends_on=[parent, 4711])

    assert caught.value.message == "depends_on names job 4711, which does not exist"
    assert caught.value.column_name == "depends_on"
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 1
    assert await db.fetchval("SELECT count(*) FROM scheduler.dependencies") == 0
