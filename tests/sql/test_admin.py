"""The operators' side in Python: any number of jobs, in batches, and what is busy is waited for."""

import asyncio
from datetime import timedelta

import pytest

from scheduler import InvalidJob, Scheduler
from scheduler.answers import Pruned, Reason, Retried

from .steps import claim, end, insert, insert_many, resolve, resolve_all, settle, statuses


@pytest.fixture
async def admin(db, dsn):
    async with Scheduler.connect(dsn) as scheduler:
        yield scheduler.admin


async def fail_all(db):
    """Let all that waits fail for good, its children informed."""
    while jobs := await claim(db, 1000):
        outcomes = [{"id": j["id"], "fence": j["fence"], "outcome": "failed", "retryable": False} for j in jobs]
        await resolve_all(db, (await settle(db, *outcomes))["parents"])


async def test_a_retry_revives_every_level_below(db, admin):
    root = await insert(db)
    wide = await insert_many(db, 1500, depends_on=[root])
    deep = [await insert(db, depends_on=wide[:2])]
    deep += [await insert(db, depends_on=deep)]
    await fail_all(db)

    answer = await admin.retry([root])

    assert answer == Retried(retried=[root], revived=[*wide, *deep])
    assert set((await statuses(db, answer.revived)).values()) == {"BLOCKED"}


async def test_parent_and_child_in_one_retry_are_both_retried_in_any_order(db, admin):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    await fail_all(db)

    assert await admin.retry([child, 4711, root, root]) == Retried(retried=[root, child], missing=[4711])
    assert await admin.retry([child, root]) == Retried(not_ended=[root, child])


async def test_a_job_that_stays_refused_is_told_with_its_reason(db, admin):
    root, other = await insert(db), await insert(db)
    child = await insert(db, depends_on=[root, other])
    await fail_all(db)

    answer = await admin.retry([root])

    assert (answer.retried, answer.revived, [refused.id for refused in answer.refused]) == ([root], [], [child])
    assert await admin.retry([other]) == Retried(retried=[other], revived=[child])


async def test_what_somebody_holds_is_waited_for(db, connect, admin):
    job_id = await insert(db)
    await fail_all(db)
    submitter = await connect()

    async with submitter.transaction():
        await insert(submitter, depends_on=[job_id])
        retrying = asyncio.create_task(admin.retry([job_id]))
        await asyncio.sleep(0.05)  # a try or two
    await resolve(db)

    answer = await retrying
    assert (answer.retried, answer.busy) == ([job_id], [])


async def test_what_somebody_holds_for_long_is_told_to_be_busy(db, connect, admin):
    job_id = await insert(db)
    await fail_all(db)
    submitter = await connect()

    async with submitter.transaction():
        await insert(submitter, depends_on=[job_id])
        assert await admin.retry([job_id]) == Retried(busy=[job_id])


async def test_filters_find_any_number_of_jobs_in_batches(db, admin):
    ids = await insert_many(db, 2001)

    batches = [batch async for batch in admin.ids({"status": ["PENDING"]})]

    assert [len(batch) for batch in batches] == [1000, 1000, 1]
    assert [job_id for batch in batches for job_id in batch] == ids[::-1]
    assert await admin.count({"kind": "k"}) == {"PENDING": 2001}
    assert [batch async for batch in admin.ids({"limit": 2})] == [ids[:-3:-1]]
    assert [len(batch) async for batch in admin.ids({"limit": 1001, "before": ids[-1]})] == [1000, 1]
    assert [batch async for batch in admin.ids({"kind": "none"})] == []
    with pytest.raises(InvalidJob, match="colour: is no filter"):
        await admin.count({"colour": "red"})


async def test_what_filters_found_is_retried_and_pruned_batch_by_batch(db, admin):
    ids = await insert_many(db, 1200)
    await fail_all(db)

    answers = [await admin.retry(batch) async for batch in admin.ids({"status": ["FAILED"]})]
    assert sorted(job_id for answer in answers for job_id in answer.retried) == ids
    await fail_all(db)

    pruned = [await admin.prune(batch) async for batch in admin.ids({"status": ["FAILED"]})]
    assert sorted(job_id for answer in pruned for job_id in answer.pruned) == ids


async def test_a_family_is_pruned_children_first(db, admin):
    root = await insert(db)
    children = await insert_many(db, 1500, depends_on=[root])
    last = await insert(db)
    await fail_all(db)
    waiting = await insert(db, depends_on=[last], on_parent_failure="run", run_at=None)

    answer = await admin.prune([root, *children, last, 4711])

    assert sorted(answer.pruned) == [root, *children]
    assert answer == Pruned(answer.pruned, [Reason(last, f"job {waiting}, which depends on it, has not ended")], [4711])


async def test_a_pause_is_seen_and_ended(db, admin):
    await admin.pause(queue="default", duration=timedelta(hours=1), by="me")
    await admin.pause(kind="k")
    await insert(db)

    (queue,), (kind,) = await admin.queues(), await admin.kinds()

    assert (queue["paused_by"], 3500 < queue["paused_for"] <= 3600) == ("me", True)
    assert (kind["paused"], kind["paused_for"]) == (True, None)
    assert (await admin.resume(queue="default"))["resumed"]
    assert (await admin.resume(kind="k"))["resumed"]
    (job,) = await claim(db)
    await end(db, job)
    assert await admin.workers() == []
    with pytest.raises(InvalidJob, match="queue: or kind must be given"):
        await admin.pause()
