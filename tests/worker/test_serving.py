"""Queues, their order, and how few statements a drain takes."""

import jobs
import pytest
from wire import Wire
from witness import asleep, ended, insert, insert_many

from scheduler import Priority
from scheduler.options import QUEUES

LOW, MEDIUM, HIGH, CRITICAL = (level.value for level in Priority)


async def test_two_queues_are_served_side_by_side(db, work):
    await work(queues=("first", "second"), async_slots=2)
    ids = {queue: await insert_many(db, 100, "Overlap", queue=queue) for queue in ("first", "second")}

    found = await ended(db, *ids["first"], *ids["second"])

    started = {queue: sorted(found[job_id]["started_at"] for job_id in some) for queue, some in ids.items()}
    assert started["first"][0] < started["second"][-1]
    assert started["second"][0] < started["first"][50]  # neither has to wait for the end of the other
    assert started["first"][0] < started["second"][50]


async def test_a_queue_that_is_not_served_waits(db, work):
    await work(queues=("first",))
    other = await insert(db, "Echo", queue="second")

    await ended(db, await insert(db, "Echo", queue="first"))

    assert await db.fetchval("SELECT status::text FROM scheduler.jobs WHERE id = $1", other) == "PENDING"


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("by_rank", [CRITICAL, HIGH, MEDIUM, LOW, LOW]),
        ("by_level", [CRITICAL, HIGH, MEDIUM, LOW, LOW]),
        ("by_time", [LOW, MEDIUM, HIGH, CRITICAL, LOW]),
    ],
)
async def test_a_queue_is_served_in_its_order(scheduler, db, work, queue, expected):
    await scheduler.declare([jobs.Echo], QUEUES.values())
    levels = (LOW, MEDIUM, HIGH, CRITICAL, LOW)
    ids = [await insert(db, "Echo", queue=queue, priority=level) for level in levels]

    await work(queues=(queue,), async_slots=1)

    found = await ended(db, *ids)
    in_order = sorted((found[job_id] for job_id in ids), key=lambda job: job["started_at"])
    assert [job["priority"] for job in in_order] == expected
    lows = [job["id"] for job in in_order if job["priority"] == LOW]
    assert lows == sorted(lows)


async def test_each_executor_claims_its_own_kinds(db, dsn, work):
    wire = await Wire(dsn).open()
    backlog = await insert_many(db, 200, "Overlap")
    alone = await insert(db, "EchoInThread")

    worker = await work(wire.dsn, async_slots=1, threads=1)

    found = await ended(db, alone, *backlog)
    behind = [job_id for job_id in backlog if found[job_id]["started_at"] > found[alone]["started_at"]]
    assert len(behind) > 150  # the thread did not wait for the jobs of the loop
    await worker.stop()
    await wire.close()


async def test_a_drain_takes_less_than_a_tenth_of_a_statement_per_job(db, dsn, work):
    wire = await Wire(dsn).open()
    ids = await insert_many(db, 2000, "Echo")

    worker = await work(wire.dsn, async_slots=100, lease=30)
    await ended(db, *ids)
    asked = wire.calls.copy()
    await worker.stop()
    await wire.close()

    assert asked["claim"] >= 20
    assert asked["settle"] >= 1
    assert asked.total() / len(ids) < 0.1


async def test_a_lone_job_takes_few_statements(db, dsn, work):
    wire = await Wire(dsn).open()
    worker = await work(wire.dsn, lease=30, poll=60)
    await asleep(db)
    before = wire.calls.copy()

    await ended(db, await insert(db, "Echo"))

    asked = wire.calls - before
    await worker.stop()
    await wire.close()
    assert (asked["settle"], asked["doze"]) == (1, 0)
    assert asked.total() <= 12  # five, and what the worker was still asking when it fell asleep
