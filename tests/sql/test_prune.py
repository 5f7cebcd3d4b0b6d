"""Pruning by hand: what nobody needs any more is gone with all that belongs to it; the rest stays, with the reason."""

import pytest

from .steps import cancel, claim, end, insert, insert_many, resolve, resolve_all, start, statuses, submit, verb

NOTHING = {"pruned": [], "kept": [], "missing": []}


async def prune(db, *ids):
    return await verb(db, "prune", list(ids))


def reasons(answer):
    return {kept["id"]: kept["reason"] for kept in answer["kept"]}


async def ended(db, ending="completed", **columns):
    job = await start(db, **columns)
    await resolve_all(db, (await end(db, job, ending, retryable=False))["parents"])
    return job["id"]


async def left(db):
    """Count the rows of everything that belongs to jobs."""
    tables = ("jobs", "attempts", "dependencies", "idempotency_keys")
    return [await db.fetchval(f"SELECT count(*) FROM scheduler.{table}") for table in tables]


@pytest.mark.parametrize("ending", ["completed", "failed", "timed_out", "cancelled"])
async def test_a_job_goes_with_its_attempts_edges_and_key(db, clock, ending):
    parent = await ended(db)
    job_id = await ended(db, ending, depends_on=[parent], idempotency_key="one")
    await clock.advance(24 * 3600)

    assert await prune(db, job_id) == NOTHING | {"pruned": [job_id]}

    assert await left(db) == [1, 0, 0, 0]
    assert await submit(db, idempotency_key="one") != job_id


async def test_one_call_tells_pruned_kept_and_missing_apart(db):
    gone, waiting = await ended(db), await insert(db)

    answer = await prune(db, gone, waiting, 4711)

    assert (answer["pruned"], answer["missing"]) == ([gone], [4711])
    assert reasons(answer) == {waiting: "it has not ended: cancel it first"}
    assert await prune(db) == NOTHING


async def test_a_parent_of_an_unfinished_child_is_kept(db):
    parent = await ended(db)
    child = await insert(db, depends_on=[parent])

    assert reasons(await prune(db, parent)) == {parent: f"job {child}, which depends on it, has not ended"}

    (job,) = await claim(db)
    await end(db, job)
    assert (await prune(db, parent))["pruned"] == [parent]


async def test_a_child_of_an_unfinished_parent_is_kept_until_it_has_taken_notice_of_its_end(db):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    await cancel(db, child)
    assert reasons(await prune(db, child)) == {child: f"job {parent}, which it depends on, has not ended"}
    (job,) = await claim(db)
    parents = (await end(db, job))["parents"]
    assert reasons(await prune(db, child)) == {child: f"job {parent}, which it depends on, has not ended"}

    await resolve_all(db, parents)

    assert (await prune(db, child))["pruned"] == [child]
    assert await resolve(db) == {"parents": [], "busy": [], "more": False}


async def test_a_failed_parent_is_kept_for_a_retry_that_would_revive_its_child(db):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    grandchild = await insert(db, depends_on=[child])
    (job,) = await claim(db)
    await resolve_all(db, (await end(db, job, "failed", retryable=False))["parents"])

    assert f"job {child}" in reasons(await prune(db, parent))[parent]
    assert sorted((await prune(db, parent, child, grandchild))["pruned"]) == [parent, child, grandchild]
    assert await left(db) == [0, 0, 0, 0]


async def test_a_job_whose_idempotency_key_is_held_is_kept(db, clock):
    job_id = await ended(db, idempotency_key="one")

    assert reasons(await prune(db, job_id)) == {job_id: "its idempotency_key is held until its window ends"}
    assert await submit(db, idempotency_key="one") == job_id

    await clock.advance(24 * 3600)
    assert (await prune(db, job_id))["pruned"] == [job_id]


async def test_a_key_that_another_job_has_taken_over_stays(db, clock):
    job_id = await ended(db, idempotency_key="one")
    await clock.advance(24 * 3600)
    other = await submit(db, idempotency_key="one")

    assert (await prune(db, job_id))["pruned"] == [job_id]

    assert await submit(db, idempotency_key="one") == other


# Races, forced with held locks.


async def test_a_parent_to_which_a_child_is_being_submitted_is_kept(db, connect):
    parent = await ended(db)
    submitter = await connect()

    async with submitter.transaction():
        child = await insert(submitter, depends_on=[parent])
        assert reasons(await prune(db, parent)) == {parent: "another transaction holds it: try again"}

    assert f"job {child}" in reasons(await prune(db, parent))[parent]


async def test_what_has_to_stay_is_not_locked_while_others_are_pruned(db, connect):
    kept, gone = await ended(db), await ended(db)
    await insert(db, depends_on=[kept])
    operator = await connect()

    async with operator.transaction():
        assert (await prune(operator, kept, gone))["pruned"] == [gone]
        await insert(db, depends_on=[kept])


async def test_two_prunes_of_the_same_jobs_never_wait_for_each_other(db, connect):
    jobs = await insert_many(db, 10)
    for job in await claim(db, 10):
        await end(db, job)
    operator = await connect()

    async with operator.transaction():
        assert sorted((await prune(operator, *jobs))["pruned"]) == jobs
        assert set(reasons(await prune(db, *jobs)).values()) == {"another transaction holds it: try again"}

    assert (await prune(db, *jobs))["missing"] == jobs


async def test_a_key_that_a_submitter_is_taking_over_is_not_waited_for(db, connect, clock):
    job_id = await ended(db, idempotency_key="one")
    await clock.advance(24 * 3600)
    submitter = await connect()

    async with submitter.transaction():
        other = await submit(submitter, idempotency_key="one")
        assert (await prune(db, job_id))["pruned"] == [job_id]

    assert await submit(db, idempotency_key="one") == other
    assert await statuses(db, [job_id, other]) == {other: "PENDING"}
