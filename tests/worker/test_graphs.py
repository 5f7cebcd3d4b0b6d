"""Graphs and batches run by workers: what a child sees of its parents, who may wait, and what fans out at run time."""

from datetime import timedelta

import graph_jobs as g
import pytest
from witness import ended, row

from scheduler import JobFailed, Submission
from scheduler.job import KINDS

SOON = timedelta(minutes=1)
ALL = [kind for kind in KINDS.values() if kind.__module__ == g.__name__]
NOT_IN_CHILDREN = [kind for kind in ALL if kind.options.executor != "process"]


@pytest.mark.parametrize("kind", [g.Sees, g.SeesInThread, g.SeesInChild])
async def test_a_child_sees_its_parents_results_by_id_and_name_in_every_executor(scheduler, work, kind):
    handles = await scheduler.submit_graph({
        "join": Submission(kind(), depends_on=["left", "right"]),
        "left": g.Value({"n": 1}),
        "right": g.Value("é"),
    })  # fmt: skip
    await work(kinds=ALL)

    found = sorted(await handles["join"].result(SOON), key=lambda parent: parent[1])
    assert found == [
        [handles["left"].id, "left", "COMPLETED", {"n": 1}, None],
        [handles["right"].id, "right", "COMPLETED", "é", None],
    ]


async def test_a_parent_is_found_by_its_name(scheduler, work):
    nodes = {
        "left": g.Value(1),
        "right": g.Value(2),
        "sum": Submission(g.SeesByName(), depends_on=["left", "right"]),
    }
    handles = await scheduler.submit_graph(nodes)
    await work(kinds=NOT_IN_CHILDREN)

    assert await handles["sum"].result(SOON) == 3


async def test_a_child_with_the_policy_run_sees_how_its_parent_failed(scheduler, work):
    parent = await scheduler.submit(g.Fails())
    child = await scheduler.submit(g.Sees(), depends_on=[parent], on_parent_failure="run")
    await work(kinds=NOT_IN_CHILDREN)

    assert await child.result(SOON) == [
        [parent.id, None, "FAILED", None, "scheduler.errors.NonRetryableError: on purpose"]
    ]


async def test_a_job_without_parents_sees_none(scheduler, work):
    await work(kinds=NOT_IN_CHILDREN)

    assert await (await scheduler.submit(g.Sees())).result(SOON) == []


async def test_parents_too_large_for_a_claim_are_read_page_by_page(scheduler, work, dsn):
    parents = await scheduler.submit_many([g.Value("x" * 60_000)] * 40)
    child = await scheduler.submit(g.CountPages(dsn), depends_on=parents)
    await work(kinds=NOT_IN_CHILDREN)

    assert await child.result(SOON) == ["ParentsTooLarge", 40, 3]


@pytest.mark.parametrize(
    ("kind", "options", "slots"),
    [
        (g.WaitsFor, {}, "async_slots"),
        (g.WaitsFor, {"how": "wait"}, "async_slots"),
        (g.WaitsForInThread, {}, "threads"),
        (g.WaitsForInChild, {}, "processes"),
    ],
)
async def test_jobs_that_wait_for_a_job_are_refused_where_all_slots_would_wait_for_ever(
    scheduler, work, dsn, kind, options, slots
):
    handles = await scheduler.submit_many([kind(dsn, **options)] * 2, priority=3)
    await db_without_retries(scheduler, handles)
    await work(kinds=ALL, **{"async_slots": 2, slots: 2})

    for handle in handles:
        with pytest.raises(JobFailed, match=r"WaitsInJob: job \d+ would hold its slot.*depends_on.*member_of"):
            await handle.result(SOON)


async def db_without_retries(scheduler, handles):
    """Each fails in its first attempt: nobody waits for the backoff."""
    call = "UPDATE scheduler.jobs_active SET max_attempts = 1 WHERE id = ANY ($1)"
    await scheduler.store._caller.fetch(call, [handle.id for handle in handles])


async def test_a_batch_that_fans_out_from_its_members_runs_its_callback_once_after_them_all(scheduler, work, db, dsn):
    await work(kinds=NOT_IN_CHILDREN)

    async with scheduler.batch(g.Sum()) as batch:
        await scheduler.submit(g.FansOut(dsn, batch.id, 3), member_of=batch)

    assert await batch.result(SOON) == 2**4 - 1
    assert (await row(db, batch.id))["attempt"] == 1


async def test_waiting_for_a_whole_graph_tells_how_each_ended(scheduler, work):
    nodes = {"a": g.Fails(), "b": Submission(g.Value(1), depends_on=["a"]), "c": g.Value(2)}
    handles = await scheduler.submit_graph(nodes)
    await work(kinds=NOT_IN_CHILDREN)

    statuses = await scheduler.wait(handles.values(), SOON)

    assert {name: statuses[handle.id] for name, handle in handles.items()} == {
        "a": "FAILED",
        "b": "CANCELLED",
        "c": "COMPLETED",
    }


async def test_an_operators_retry_of_the_root_runs_the_graph_again(scheduler, work, db):
    nodes = {
        "a": g.Value(1),
        "b": Submission(g.Value(2), depends_on=["a"]),
        "c": Submission(g.Sees(), depends_on=["b"]),
    }
    handles = await scheduler.submit_graph(nodes)
    await scheduler.cancel(handles["a"])
    await ended(db, *(handle.id for handle in handles.values()))

    await scheduler.admin.retry([handles["a"].id])
    await work(kinds=NOT_IN_CHILDREN)

    assert await handles["c"].result(SOON) == [[handles["b"].id, "b", "COMPLETED", 2, None]]
