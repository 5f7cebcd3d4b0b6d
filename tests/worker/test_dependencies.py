"""Graphs of jobs, run to their end by a worker."""

import itertools
from datetime import timedelta

import jobs
from witness import attempts, ended, insert, insert_many, row

SOON = timedelta(minutes=1)


async def test_a_chain_runs_in_its_order(scheduler, db, work):
    handles = [await scheduler.submit(jobs.Echo(value=0))]
    for n in range(1, 10):
        handles.append(await scheduler.submit(jobs.Echo(value=n), depends_on=[handles[-1]]))
    await work()

    assert [await handle.result(SOON) for handle in handles] == list(range(10))

    found = await ended(db, *(handle.id for handle in handles))
    for parent, child in itertools.pairwise(handles):
        assert found[child.id]["started_at"] >= found[parent.id]["finished_at"]


async def test_a_chain_across_executors_takes_no_polls(scheduler, db, work):
    await work(poll=60)
    kinds = [jobs.Echo, jobs.EchoInThread, jobs.EchoInProcess] * 2
    await (await scheduler.submit(jobs.EchoInProcess())).result(SOON)  # its child is there
    handles = [await scheduler.submit(jobs.Echo())]
    for kind in kinds:
        handles.append(await scheduler.submit(kind(), depends_on=[handles[-1]]))

    await handles[-1].result(SOON)

    found = await ended(db, *(handle.id for handle in handles))
    assert found[handles[-1].id]["finished_at"] - found[handles[0].id]["finished_at"] < timedelta(
        seconds=8
    )  # 6 sweeps: 12


async def test_a_job_waits_for_two_hundred_parents(scheduler, db, work):
    await work()
    parents = await insert_many(db, 200, "Echo")

    child = await scheduler.submit(jobs.Echo(value="all in"), depends_on=parents)

    assert await child.result(SOON) == "all in"
    found = await ended(db, child.id, *parents)
    assert found[child.id]["started_at"] >= max(found[parent]["finished_at"] for parent in parents)
    assert found[child.id]["attempt"] == 1


async def test_a_failure_cancels_all_descendants_and_names_the_root(scheduler, db, work):
    root = await insert(db, "Act", {"action": "plain"}, max_attempts=1)
    children = [await scheduler.submit(jobs.Echo(), depends_on=[root]) for _ in range(3)]
    grandchild = await scheduler.submit(jobs.Echo(), depends_on=children)
    last = await scheduler.submit(jobs.Echo(), depends_on=[grandchild])
    anyway = await scheduler.submit(jobs.Echo(value=1), depends_on=[root], on_parent_failure="run")
    await work()

    assert await anyway.result(SOON) == 1
    cancelled = [handle.id for handle in (*children, grandchild, last)]
    found = await ended(db, *cancelled)
    assert {(job["status"], job["cancelled_by"], job["attempt"]) for job in found.values()} == {("CANCELLED", root, 0)}


async def test_cancelling_a_running_parent_cancels_its_children(scheduler, db, work, gate):
    gate = gate()
    await work()
    parent = await insert(db, "Wait", {"path": gate.path})
    child = await scheduler.submit(jobs.Echo(), depends_on=[parent])
    await gate.begun()

    await scheduler.cancel(parent)

    job = await ended(db, child.id)
    assert (job["status"], job["cancelled_by"]) == ("CANCELLED", parent)


async def test_a_child_does_not_start_before_a_retried_parent_completes(scheduler, db, work):
    await work()
    parent = await scheduler.submit(jobs.Steer(how="fail", until=3))
    child = await scheduler.submit(jobs.Echo(), depends_on=[parent])

    await child.result(SOON)

    assert (await row(db, child.id))["started_at"] >= (await row(db, parent.id))["finished_at"]
    assert len(await attempts(db, parent.id)) == 2


async def test_a_child_with_a_delay_waits_for_both(scheduler, db, work):
    await work(poll=60)
    parent = await scheduler.submit(jobs.Echo())
    late = await scheduler.submit(jobs.Echo(), depends_on=[parent], delay=timedelta(seconds=0.6))
    await parent.result(SOON)

    job = await ended(db, late.id)

    assert job["status"] == "COMPLETED"
    assert job["started_at"] >= job["run_at"] > job["submitted_at"] + timedelta(seconds=0.4)
    assert (job["started_at"] - job["run_at"]).total_seconds() < 10  # not the next poll
