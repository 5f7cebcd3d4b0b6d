"""Races around parents and children, forced with held locks or raced 300 times: never stuck, never a missing parent."""

import asyncio

from .steps import (
    cancel,
    claim,
    end,
    insert,
    insert_many,
    outcome,
    resolve,
    resolve_all,
    row,
    settle,
    status,
    statuses,
    until_waiting,
)

TIMES = 300


async def test_f15_two_parents_finishing_together_never_leave_their_child_stuck(db, connect):
    left, right = await connect(), await connect()
    parents = [(await insert(db), await insert(db)) for _ in range(TIMES)]
    children = [await insert(db, depends_on=pair) for pair in parents]
    jobs = {job["id"]: job for job in await claim(db, 2 * TIMES)}

    for one, two in parents:
        await asyncio.gather(settle_and_resolve(left, jobs[one]), settle_and_resolve(right, jobs[two]))

    assert set((await statuses(db, children)).values()) == {"PENDING"}
    assert await resolve(db) == {"parents": [], "busy": [], "more": False, "jobs": []}


async def settle_and_resolve(connection, job):
    await resolve_all(connection, (await end(connection, job))["parents"])


async def test_two_parents_whose_settlements_overlap_free_their_child(db, connect):
    one, two = await insert(db), await insert(db)
    child = await insert(db, depends_on=[one, two])
    first, second = await claim(db, 2)
    other = await connect()

    async with other.transaction():
        parents = (await end(other, first))["parents"]
        await settle_and_resolve(db, second)
        assert (await row(db, child))["unmet"] == 1
    await resolve_all(other, parents)

    assert await status(db, child) == "PENDING"


async def test_two_resolves_that_overlap_free_their_child(db, connect):
    one, two = await insert(db), await insert(db)
    child = await insert(db, depends_on=[one, two])
    first, second = await claim(db, 2)
    await end(db, first)
    other = await connect()

    async with other.transaction():
        await resolve(other, [one])
        await end(db, second)
        assert (await resolve(db, [two]))["busy"] == [two]
    await resolve_all(db, [two])

    assert await status(db, child) == "PENDING"


async def test_f16_a_child_inserted_while_its_parent_moves_is_never_stuck(db, connect):
    submitter, worker = await connect(), await connect()
    parents = await insert_many(db, TIMES)
    jobs = {job["id"]: job for job in await claim(db, TIMES)}

    children = []
    for parent in parents:
        child, _ = await asyncio.gather(insert(submitter, depends_on=[parent]), settle_until_done(worker, jobs[parent]))
        children.append(child)
    await resolve_all(db, parents)

    assert set((await statuses(db, children)).values()) == {"PENDING"}


async def settle_until_done(worker, job):
    """A submitter's lock makes the settlement busy for a moment; a worker sends it again."""
    while (answer := await end(worker, job))["busy"]:
        pass
    await resolve_all(worker, answer["parents"])


async def test_a_child_inserted_while_its_parent_is_cancelled_is_cancelled_in_turn(db, connect):
    submitter, operator = await connect(), await connect()
    parents = await insert_many(db, TIMES)

    children = []
    for parent in parents:
        child, _ = await asyncio.gather(insert(submitter, depends_on=[parent]), cancel(operator, parent))
        children.append(child)
    await resolve_all(db, parents)

    assert set((await statuses(db, children)).values()) == {"CANCELLED"}


async def test_a_parent_does_not_end_unseen_while_its_child_is_being_inserted(db, connect):
    parent = await insert(db)
    (job,) = await claim(db)
    submitter = await connect()

    async with submitter.transaction():
        child = await insert(submitter, depends_on=[parent])
        assert (await end(db, job))["busy"] == [parent]
    await settle_and_resolve(db, job)

    assert await status(db, child) == "PENDING"


async def test_a_child_inserted_behind_a_settlement_waits_for_it_and_finds_its_parent(db, connect):
    parent = await insert(db)
    (job,) = await claim(db)
    worker, submitter = await connect(), await connect()

    async with worker.transaction():
        await end(worker, job)
        inserting = asyncio.create_task(insert(submitter, depends_on=[parent]))
        await until_waiting(db, submitter)

    assert await status(db, await inserting) == "PENDING"


async def test_a_child_inserted_behind_a_settlement_rolled_back_waits_for_its_parent(db, connect):
    parent = await insert(db)
    (job,) = await claim(db)
    worker, submitter = await connect(), await connect()

    settling = worker.transaction()
    await settling.start()
    await end(worker, job)
    inserting = asyncio.create_task(insert(submitter, depends_on=[parent]))
    await until_waiting(db, submitter)
    await settling.rollback()

    assert await status(db, await inserting) == "BLOCKED"


async def test_a_child_inserted_behind_a_cancel_is_cancelled_in_turn(db, connect):
    parent = await insert(db)
    operator, submitter = await connect(), await connect()

    async with operator.transaction():
        await cancel(operator, parent)
        inserting = asyncio.create_task(insert(submitter, depends_on=[parent]))
        await until_waiting(db, submitter)
    child = await inserting
    await resolve(db)

    assert await status(db, child) == "CANCELLED"


async def test_a_grandchild_being_inserted_does_not_hold_up_its_parents_start(db, connect):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    (job,) = await claim(db)
    submitter = await connect()

    async with submitter.transaction():
        await insert(submitter, depends_on=[child])
        await settle_and_resolve(db, job)
        assert await status(db, child) == "PENDING"


async def test_a_child_that_must_be_cancelled_waits_until_a_grandchild_is_inserted(db, connect):
    parent = await insert(db)
    child = await insert(db, depends_on=[parent])
    (job,) = await claim(db)
    parents = (await end(db, job, "failed", retryable=False))["parents"]
    submitter = await connect()

    async with submitter.transaction():
        grandchild = await insert(submitter, depends_on=[child])
        assert await resolve(db, parents) == {"parents": [], "busy": [parent], "more": False, "jobs": []}
        assert await status(db, child) == "BLOCKED"
    await resolve_all(db, parents)

    assert await statuses(db, [child, grandchild]) == {child: "CANCELLED", grandchild: "CANCELLED"}


async def test_settlers_of_shared_graphs_never_deadlock(db, connect):
    parents = await insert_many(db, 200)
    children = [await insert(db, depends_on=[parents[n], parents[-1 - n], parents[n * 7 % 200]]) for n in range(200)]
    jobs = await claim(db, 200)
    workers = [await connect() for _ in range(4)]

    async def work(worker, mine):
        for n in range(0, len(mine), 10):
            answer = await settle(worker, *map(outcome, mine[n : n + 10]))
            await resolve_all(worker, answer["parents"])

    await asyncio.gather(*(work(worker, jobs[n::4]) for n, worker in enumerate(workers)))

    assert set((await statuses(db, children)).values()) == {"PENDING"}
    assert await db.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
