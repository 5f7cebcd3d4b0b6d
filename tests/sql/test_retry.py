"""Retrying by hand: what failed, timed out or was cancelled runs again, and what its failure cancelled follows."""

import asyncio
from datetime import timedelta

import pytest

from .steps import (
    attempts,
    cancel,
    claim,
    declare,
    end,
    insert,
    insert_many,
    promote,
    resolve,
    resolve_all,
    row,
    start,
    status,
    statuses,
    submit,
    until_waiting,
    verb,
)

NOTHING = {
    "retried": [],
    "not_ended": [],
    "missing": [],
    "busy": [],
    "refused": [],
    "children": [],
    "more": False,
}
RESET = {
    "failures": 0,
    "crashes": 0,
    "started_at": None,
    "finished_at": None,
    "cancel_requested_at": None,
    "cancelled_by": None,
    "error": None,
}


async def retry(db, *ids):
    return await verb(db, "retry", list(ids))


async def retry_all(db, *ids):
    """Retry level by level, as an operator's command does; return what ran again."""
    done, level = [], list(ids)
    while level:
        answer = await retry(db, *level)
        done += answer["retried"]
        level = answer["children"] + answer["busy"]
    return sorted(done)


async def failed(db, ending="failed", **columns):
    """Insert a job and let it fail for good, its children informed."""
    job = await start(db, **columns)
    await resolve_all(db, (await end(db, job, ending, retryable=False, error="why"))["parents"])
    return job["id"]


async def fail(db, job_id):
    """Let a job that waits fail for good, its children informed."""
    (job,) = [job for job in await claim(db, 1) if job["id"] == job_id]
    await resolve_all(db, (await end(db, job, "failed", retryable=False, error="why"))["parents"])


@pytest.mark.parametrize("ending", ["failed", "timed_out", "cancelled"])
async def test_a_job_that_ended_badly_runs_again_as_if_new_but_for_attempt_and_fence(db, clock, ending):
    job = await start(db, payload='{"a": 1}', metadata='{"b": 2}', priority=3)
    await end(db, job, ending, error_type="E", error="why", retryable=False)
    before = dict(await row(db, job["id"]))
    await clock.advance(60)

    assert await retry(db, job["id"]) == NOTHING | {"retried": [job["id"]]}

    now = await clock.now()
    after = {"status": "PENDING", "run_at": now, "rank_at": now - timedelta(seconds=30)}
    assert dict(await row(db, job["id"])) == before | RESET | after
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 1
    (again,) = await claim(db)
    assert (again["id"], again["attempt"]) == (job["id"], 2)
    assert again["fence"] > job["fence"]
    assert [a["outcome"] for a in await attempts(db, job["id"])] == [ending]


async def test_no_column_that_is_not_reset_is_lost(db):
    """Whatever column a later version adds: it comes along, or it stands in RESET."""
    job_id = await failed(db)
    columns = [
        r["attname"]
        for r in await db.fetch("""SELECT attname FROM pg_attribute
        WHERE attrelid = 'scheduler.jobs'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'id'""")
    ]
    texts = ["kind", "queue", "line", "tenant", "on_parent_failure", "idempotency_key", "unique_key"]
    for column in texts:
        await db.execute(f"UPDATE scheduler.jobs_finished SET {column} = '{column}' WHERE id = $1", job_id)
    await db.execute(
        "UPDATE scheduler.jobs_finished SET schedule_id = 7, fire_time = run_at, request = gen_random_uuid()"
    )
    before = dict(await row(db, job_id))

    await retry(db, job_id)

    after = dict(await row(db, job_id))
    changed = {column for column in columns if before[column] != after[column]}
    assert changed <= {*RESET, "status", "run_at", "rank_at"}


async def test_a_job_cancelled_before_its_time_waits_for_it_again(db, clock):
    job_id = await insert(db, run_at=await clock.now() + timedelta(hours=1))
    await cancel(db, job_id)

    await retry(db, job_id)

    assert await status(db, job_id) == "DELAYED"
    await clock.advance(3600)
    await promote(db)
    assert [job["id"] for job in await claim(db)] == [job_id]


async def test_one_call_tells_all_cases_apart(db):
    bad, waiting = await failed(db), await insert(db, "other")
    good = await start(db)
    await end(db, good)

    answer = await retry(db, waiting, good["id"], 4711, bad, bad)

    assert answer == NOTHING | {
        "retried": [bad],
        "not_ended": [waiting],
        "missing": [4711],
        "refused": [{"id": good["id"], "reason": "it has completed: submit it again"}],
    }
    assert await retry(db) == NOTHING


async def test_the_workers_late_word_changes_nothing_after_a_retry(db):
    job = await start(db)
    await end(db, job, "failed", retryable=False)
    await retry(db, job["id"])

    assert (await end(db, job))["lost"] == [job["id"]]
    assert await status(db, job["id"]) == "PENDING"


# Keys.


async def test_f51_a_job_whose_unique_key_is_taken_is_refused_alone_and_not_lost(db):
    job_id, other = await failed(db, unique_key="one"), await failed(db)
    holder = await insert(db, unique_key="one")

    answer = await retry(db, job_id, other)

    assert (answer["retried"], [r["id"] for r in answer["refused"]]) == ([other], [job_id])
    assert "unique_key" in answer["refused"][0]["reason"]
    assert await statuses(db, [job_id, holder]) == {job_id: "FAILED", holder: "PENDING"}


async def test_of_two_jobs_with_one_unique_key_one_runs_again(db):
    first = await failed(db, unique_key="one")
    second = await failed(db, unique_key="one")

    answer = await retry(db, first, second)

    assert (answer["retried"], [r["id"] for r in answer["refused"]]) == ([first], [second])


async def test_a_retry_beside_a_submit_of_the_same_unique_key_makes_one_of_them(db, connect):
    job_id, submitter, operator = await failed(db, unique_key="one"), await connect(), await connect()

    async with submitter.transaction():
        await insert(submitter, unique_key="one")
        retrying = asyncio.create_task(retry(operator, job_id))
        await until_waiting(db, operator)

    assert [r["id"] for r in (await retrying)["refused"]] == [job_id]


async def test_a_retried_job_holds_its_idempotency_key_again(db, clock):
    job_id = await failed(db, idempotency_key="one")
    await clock.advance(timedelta(days=2).total_seconds())

    await retry(db, job_id)

    assert await submit(db, idempotency_key="one") == job_id


async def test_a_job_whose_idempotency_key_stands_for_another_now_is_refused(db, clock):
    job_id = await failed(db, idempotency_key="one")
    await clock.advance(timedelta(days=2).total_seconds())
    other = await submit(db, idempotency_key="one")

    (refused,) = (await retry(db, job_id))["refused"]

    assert "idempotency_key" in refused["reason"]
    assert await submit(db, idempotency_key="one") == other


async def test_a_key_that_was_free_is_free_again_when_the_retry_fails_on_another(db, clock):
    job_id = await failed(db, idempotency_key="one", unique_key="two")
    await db.execute("DELETE FROM scheduler.idempotency_keys")
    await insert(db, unique_key="two")

    assert [r["id"] for r in (await retry(db, job_id))["refused"]] == [job_id]
    assert await db.fetchval("SELECT count(*) FROM scheduler.idempotency_keys") == 0


@pytest.mark.parametrize("declared", [False, True])
async def test_a_job_that_ended_before_its_kind_was_declared_gets_its_defaults(db, declared):
    job_id = await insert(db, "new")
    await cancel(db, job_id)
    for _ in range(declared):
        await declare(db, "new")

    await retry(db, job_id)

    await declare(db, "new")
    assert [job["id"] for job in await claim(db, kinds=["new"])] == [job_id]


# Parents and children.


async def test_what_a_failure_cancelled_is_revived_level_by_level(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    grandchildren = await insert_many(db, 3, depends_on=[child])
    await fail(db, root)
    assert set((await statuses(db, [child, *grandchildren])).values()) == {"CANCELLED"}

    assert await retry_all(db, root) == [root, child, *grandchildren]

    assert await statuses(db, [root, child, *grandchildren]) == {root: "PENDING"} | dict.fromkeys(
        [child, *grandchildren], "BLOCKED"
    )
    for job_id in (root, child, *grandchildren):
        (job,) = await claim(db)
        assert job["id"] == job_id or job["id"] in grandchildren
        await resolve_all(db, (await end(db, job))["parents"])
    assert set((await statuses(db, [root, child, *grandchildren])).values()) == {"COMPLETED"}


async def test_a_revived_child_follows_a_second_failure_of_its_parent(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    await fail(db, root)
    await retry_all(db, root)

    await fail(db, root)

    assert await status(db, child) == "CANCELLED"
    assert await retry_all(db, root) == [root, child]


async def test_a_child_cancelled_by_hand_stays_cancelled(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    grandchild = await insert(db, depends_on=[child])
    await cancel(db, child)
    await resolve(db)
    await fail(db, root)

    assert await retry_all(db, root) == [root]
    assert await statuses(db, [child, grandchild]) == {child: "CANCELLED", grandchild: "CANCELLED"}


async def test_a_child_that_ran_all_the_same_stays_as_it_is(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root], on_parent_failure="run")
    await fail(db, root)
    (job,) = await claim(db)
    await end(db, job)

    assert await retry_all(db, root) == [root]
    assert await status(db, child) == "COMPLETED"


async def test_a_child_that_another_parent_keeps_cancelled_is_cancelled_in_the_name_of_that_one(db):
    one, two = await insert(db), await insert(db)
    child = await insert(db, depends_on=[one, two])
    grandchild = await insert(db, depends_on=[child])
    await fail(db, one)
    await fail(db, two)
    assert (await row(db, grandchild))["cancelled_by"] == one

    answer = await retry(db, one)
    answers = [await retry(db, *answer["children"])]
    answers += [await retry(db, *answers[0]["children"])] if answers[0]["children"] else []

    assert [r["id"] for r in answers[0]["refused"]] == [child]
    assert answers[0]["refused"][0]["reason"].startswith(f"job {two}, which this one depends on, ended FAILED")
    assert (await row(db, child))["cancelled_by"] == two
    assert await retry_all(db, two) == [two, child, grandchild]
    assert set((await statuses(db, [child, grandchild])).values()) == {"BLOCKED"}


async def test_a_child_of_a_parent_that_stands_failed_is_refused_and_named(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    await fail(db, root)

    (refused,) = (await retry(db, child))["refused"]

    assert refused == {
        "id": child,
        "reason": f"job {root}, which this one depends on, ended FAILED: retry that one, and this one follows",
    }
    assert await status(db, child) == "CANCELLED"


async def test_parent_and_child_retried_in_one_call_run_one_after_the_other(db):
    root = await insert(db)
    ran = await insert(db, depends_on=[root], on_parent_failure="run")
    waited = await insert(db, depends_on=[root])
    await fail(db, root)
    await fail(db, ran)

    assert (await retry(db, waited, ran, root))["retried"] == [root, ran, waited]

    assert await statuses(db, [root, ran, waited]) == {root: "PENDING", ran: "BLOCKED", waited: "BLOCKED"}
    (job,) = await claim(db, 5)
    await resolve_all(db, (await end(db, job))["parents"])
    assert {job["id"] for job in await claim(db, 5)} == {ran, waited}


async def test_a_parent_that_was_pruned_counts_as_it_ended(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    (job,) = await claim(db)
    await resolve_all(db, (await end(db, job))["parents"])
    await fail(db, child)
    assert (await verb(db, "prune", [root]))["pruned"] == [root]

    assert (await retry(db, child))["retried"] == [child]
    assert await status(db, child) == "PENDING"
    await cancel(db, child)
    assert (await retry(db, child))["retried"] == [child]


async def test_a_retry_that_was_cut_short_is_repeated(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    await fail(db, root)
    await retry(db, root)

    answer = await retry(db, root)

    assert (answer["not_ended"], answer["children"]) == ([root], [child])


# Races, forced with held locks.


async def test_f51_of_two_retries_at_once_one_makes_the_job_run_again(db, connect):
    job_id = await failed(db)
    other = await connect()

    async with other.transaction():
        assert (await retry(other, job_id))["retried"] == [job_id]
        assert (await retry(db, job_id))["busy"] == [job_id]

    assert (await retry(db, job_id))["not_ended"] == [job_id]
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 1


async def test_a_job_to_which_a_child_is_being_submitted_is_busy_and_not_waited_for(db, connect):
    job_id = await failed(db)
    submitter = await connect()

    async with submitter.transaction():
        child = await insert(submitter, depends_on=[job_id])
        assert (await retry(db, job_id))["busy"] == [job_id]
    await resolve(db)

    assert await retry_all(db, job_id) == [job_id, child]


async def test_a_child_submitted_behind_a_retry_waits_for_the_parent_that_runs_again(db, connect):
    job_id = await failed(db)
    operator, submitter = await connect(), await connect()

    async with operator.transaction():
        await retry(operator, job_id)
        inserting = asyncio.create_task(insert(submitter, depends_on=[job_id]))
        await until_waiting(db, submitter)
    child = await inserting
    await resolve(db)

    assert await status(db, child) == "BLOCKED"
    (job,) = await claim(db)
    await resolve_all(db, (await end(db, job))["parents"])
    assert await status(db, child) == "PENDING"


async def test_a_retry_before_the_children_were_told_leaves_them_waiting(db):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    (job,) = await claim(db)
    parents = (await end(db, job, "failed", retryable=False))["parents"]

    assert await retry_all(db, root) == [root]
    await resolve_all(db, parents)
    await resolve(db)

    assert await status(db, child) == "BLOCKED"
    (job,) = await claim(db)
    await resolve_all(db, (await end(db, job))["parents"])
    assert await status(db, child) == "PENDING"


async def test_a_child_that_resolve_is_cancelling_is_busy_and_then_revived(db, connect):
    root = await insert(db)
    child = await insert(db, depends_on=[root])
    (job,) = await claim(db)
    parents = (await end(db, job, "failed", retryable=False))["parents"]
    resolver = await connect()

    async with resolver.transaction():
        await resolve(resolver, parents)
        answer = await retry(db, root)
        assert (answer["retried"], answer["children"]) == ([root], [child])
        assert (await retry(db, child))["busy"] == [child]
    assert await status(db, child) == "CANCELLED"

    assert await retry_all(db, root) == [child]
    assert await status(db, child) == "BLOCKED"


async def test_a_retry_of_a_child_while_its_parent_settles_is_busy(db, connect):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    await cancel(db, child)
    (job,) = await claim(db)
    worker = await connect()

    async with worker.transaction():
        await end(worker, job)
        assert (await retry(db, child))["busy"] == [child]

    assert (await retry(db, child))["retried"] == [child]
    assert await status(db, child) == "PENDING"


async def test_a_parent_settling_while_its_child_is_put_back_frees_it(db, connect):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    await cancel(db, child)
    (job,) = await claim(db)
    operator = await connect()

    async with operator.transaction():
        assert (await retry(operator, child))["retried"] == [child]
        assert (await end(db, job))["busy"] == [parent]
    await resolve_all(db, (await end(db, job))["parents"])

    assert await status(db, child) == "PENDING"


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
@pytest.mark.parametrize("name", ["retry", "prune", "retain"])
async def test_an_old_snapshot_is_refused(db, level, name):
    import asyncpg

    with pytest.raises(asyncpg.InvalidTransactionStateError, match=f"{name} needs READ COMMITTED"):
        async with db.transaction(isolation=level):
            await verb(db, name, 1 if name == "retain" else [1])


async def test_retries_resolves_and_settlements_of_one_graph_never_deadlock_and_leave_nothing_stuck(db, connect):
    parents = await insert_many(db, 60)
    children = [await insert(db, depends_on=[parents[n], parents[-1 - n], parents[n * 7 % 60]]) for n in range(60)]
    sessions = [await connect() for _ in range(4)]
    stop = asyncio.Event()

    async def work(session):
        rounds = 0
        while not stop.is_set():
            for job in await claim(session, 5):
                rounds += 1
                ending = "failed" if rounds % 3 == 0 else "completed"
                while (answer := await end(session, job, ending, retryable=False))["busy"]:
                    pass
                await resolve(session, answer["parents"] or None)
            await asyncio.sleep(0)

    async def operate(session):
        for _ in range(30):
            await retry(session, *parents[::2], *children)
            await retry(session, *children, *parents[1::2])
        while await session.fetchval("SELECT EXISTS (SELECT FROM scheduler.jobs WHERE status NOT IN ('COMPLETED'))"):
            await retry_all(session, *parents, *children)
            await resolve(session)

    workers = [asyncio.create_task(work(session)) for session in sessions[:2]]
    await asyncio.wait_for(asyncio.gather(*(operate(session) for session in sessions[2:])), 60)
    stop.set()
    await asyncio.gather(*workers)

    assert set((await statuses(db, parents + children)).values()) == {"COMPLETED"}
    assert await db.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
