"""Claims: each job goes to one claimer, in one claim never more than asked for."""

import asyncio
from collections import Counter
from itertools import combinations
from uuid import UUID, uuid4

import asyncpg
import pytest

from .steps import LEASE, claim, claim_all, declare, insert, insert_many, start

JOINS = ("nestloop", "hashjoin", "mergejoin", "material", "memoize", "sort", "hashagg")
SCANS = ((), ("seqscan", "bitmapscan"), ("indexscan", "indexonlyscan"))


async def test_f13_16_claimers_share_10_000_jobs_and_each_is_claimed_once(db, connect):
    ids = await insert_many(db, 10_000)
    claimers = [await connect() for _ in range(16)]

    taken = await asyncio.gather(*(drain(c, UUID(int=n + 1), n % 5 * 20 + 5) for n, c in enumerate(claimers)))

    counts = Counter(job_id for ids in taken for job_id in ids)
    assert set(counts.values()) == {1}
    assert set(counts) == set(ids)
    assert sum(map(bool, taken)) > 1, "one claimer took all"
    assert (
        await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE status = 'RUNNING' AND attempt = 1")
        == 10_000
    )


async def test_16_claimers_of_five_kinds_share_1_000_jobs(db, connect):
    kinds = [f"kind{n}" for n in range(5)]
    await declare(db, *kinds)
    ids = [job_id for kind in kinds for job_id in await insert_many(db, 200, kind)]
    claimers = [await connect() for _ in range(16)]

    taken = await asyncio.gather(*(drain(c, UUID(int=n + 1), 7, kinds) for n, c in enumerate(claimers)))

    assert sorted(job_id for ids in taken for job_id in ids) == sorted(ids)


async def drain(connection, worker, slots, kinds=("k",)):
    """Claim until nothing is waiting; a claim that met only locked rows is no end."""
    taken = []
    while jobs := await claim(connection, slots, kinds, worker=worker) or await waits(connection):
        taken += [job["id"] for job in jobs if isinstance(job, asyncpg.Record)]
    return taken


async def waits(connection):
    return await connection.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE status = 'PENDING'") * [None]


@pytest.mark.parametrize("kinds", [["k"], ["k", "other", "third"]], ids=["one kind", "three kinds"])
async def test_f12_a_claim_of_n_returns_at_most_n_whatever_the_planner_does(db, kinds):
    await declare(db, *kinds[1:])
    for kind in kinds:
        await insert_many(db, 1000, kind)
    running = "SELECT count(*) FROM scheduler.jobs_active WHERE status = 'RUNNING'"

    for off in (c for size in range(len(JOINS)) for c in combinations(JOINS, size)):
        async with db.transaction():
            for method in (*off, *SCANS[len(off) % 3]):
                await db.execute(f"SET LOCAL enable_{method} = off")
            before = await db.fetchval(running)
            await db.execute("DISCARD PLANS")  # those kept from the last round
            jobs = await claim(db, 5, kinds)
            assert (len(jobs), await db.fetchval(running) - before) == (5, 5), off


async def test_a_locked_job_is_passed_over_and_not_waited_for(db, connect):
    first, second = await insert(db), await insert(db)
    other = await connect()

    async with other.transaction():
        await other.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", first)
        assert [job["id"] for job in await claim(db, 2)] == [second]

    assert [job["id"] for job in await claim(db, 2)] == [first]


async def test_f14_a_job_on_which_a_child_is_being_submitted_can_be_claimed(db, connect):
    parent = await insert(db)
    submitter = await connect()

    async with submitter.transaction():
        await insert(submitter, depends_on=[parent])
        assert [job["id"] for job in await claim(db)] == [parent]


async def test_a_claim_sets_lease_fence_attempt_and_start(db, clock):
    job = await start(db)
    row = await db.fetchrow("SELECT *, fence >> 32 AS epoch, fence & 4294967295 AS low FROM scheduler.jobs_active")

    assert (row["lease_expires_at"], row["started_at"]) == (await clock.now() + LEASE, await clock.now())
    assert (row["fence"], row["epoch"], row["low"]) == (job["fence"], 1, 1)


async def test_a_claim_whose_reply_was_lost_can_be_fetched_again(db):
    worker, lost, other = uuid4(), uuid4(), uuid4()
    await insert_many(db, 5)
    jobs = await claim(db, 3, worker=worker, request=lost)
    await claim(db, 2, worker=worker, request=other)

    again = await db.fetch("SELECT * FROM scheduler.claimed_by($1, $2)", worker, lost)

    assert again == jobs
    assert await db.fetch("SELECT * FROM scheduler.claimed_by($1, $2)", uuid4(), lost) == []


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_a_claim_outside_read_committed_is_refused(db, level):
    await insert(db)

    with pytest.raises(asyncpg.InvalidTransactionStateError, match="claim needs READ COMMITTED"):
        async with db.transaction(isolation=level):
            await claim(db)


@pytest.mark.parametrize("slots", [0, -1])
async def test_a_claim_of_nothing_takes_nothing(db, slots):
    await insert(db)

    assert await claim_all(db, slots) == []


async def test_a_kind_or_queue_named_twice_is_claimed_once(db):
    await insert_many(db, 10)

    jobs = await claim(db, 4, ["k", "k"], ["default", "default"])

    assert len({job["id"] for job in jobs}) == len(jobs) == 4
