"""What jobs write in their own transactions is written exactly once, on real workers, wherever they are cut off."""

import asyncio
import json
import signal
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
import transfers
from wire import Wire
from witness import attempts, ended, insert, insert_many, row, until

from scheduler import DatabaseUnavailable, Scheduler

KINDS = [transfers.Transfer, transfers.TransferInThread, transfers.TransferInProcess]
NAMES = [kind.options.kind for kind in KINDS]
HERE = Path(__file__).parent


@pytest.fixture
async def effects(db):
    """Tell who has written for a job: the fences, committed ones only."""
    await db.execute("CREATE TABLE effects (job_id bigint, fence bigint)")

    async def effects(job_id):
        return [found["fence"] for found in await db.fetch("SELECT fence FROM effects WHERE job_id = $1", job_id)]

    return effects


@pytest.fixture
async def wire(dsn):
    wire = await Wire(dsn).open()
    yield wire
    await wire.close()


ENDS = {  # how the first attempt goes, and what stands in the log of attempts
    "commit": [],
    "raise after": [],
    "raise within": [("failed", "ValueError")],
    "swallow": [("failed", "NotCommitted")],
    "twice": [("failed", "scheduler.errors.LeaseLost")],
}


@pytest.mark.parametrize("kind", NAMES)
async def test_whatever_a_handler_does_around_complete_its_rows_are_written_once(db, dsn, work, effects, caplog, kind):
    await work(kinds=KINDS)

    ids = {how: await insert(db, kind, {"dsn": dsn, "how": how}) for how in ENDS}

    found = await ended(db, *ids.values())
    for how, job_id in ids.items():
        job, log = found[job_id], await attempts(db, job_id)
        assert (how, job["status"]) == (how, "COMPLETED")
        assert (how, await effects(job_id)) == (how, [job["fence"]])
        assert (how, [(one["outcome"], one["error_type"]) for one in log]) == (how, ENDS[how])
        assert (how, json.loads(job["result"])) == (how, {"attempt": 1 + len(ENDS[how])})
    await until(lambda: "what came after is not recorded: ValueError" in caplog.text, "the late error should be told")


async def test_a_complete_that_nobody_awaited_does_not_count_as_completion(db, dsn, work, effects):
    await work(kinds=KINDS)

    job = await ended(db, await insert(db, "Transfer", {"dsn": dsn, "how": "not awaited"}))

    (failed,) = await attempts(db, job["id"])
    assert (failed["outcome"], failed["error_type"], job["attempt"]) == ("failed", "NotCommitted", 2)
    assert "await it, and let its transaction commit before you return" in failed["error"]


@pytest.mark.parametrize(
    ("how", "log"), [("die within", [("failed", "ChildDied")]), ("die after", [])], ids=["before", "after"]
)
@pytest.mark.slow
async def test_a_child_that_dies_around_its_commit_has_completed_or_not_begun(db, dsn, work, effects, how, log):
    await work(kinds=KINDS)

    job = await ended(db, await insert(db, "TransferInProcess", {"dsn": dsn, "how": how}))

    assert (job["status"], await effects(job["id"])) == ("COMPLETED", [job["fence"]])
    assert [(one["outcome"], one["error_type"]) for one in await attempts(db, job["id"])] == log


@pytest.mark.parametrize("kind", NAMES)
async def test_a_timeout_between_complete_and_commit_rolls_both_back(db, dsn, work, gate, effects, kind):
    await work(kinds=KINDS)
    payload = {"dsn": dsn, "how": "stay within", "path": gate().path}

    job = await ended(db, await insert(db, kind, payload, timeout=timedelta(seconds=1)))

    assert [one["outcome"] for one in await attempts(db, job["id"])] == ["timed_out"]
    assert (job["status"], job["attempt"], await effects(job["id"])) == ("COMPLETED", 2, [job["fence"]])


async def test_a_cancellation_before_complete_leaves_nothing_written(scheduler, db, dsn, work, gate, effects):
    await work(kinds=KINDS)
    gate = gate()
    job_id = await insert(db, "Transfer", {"dsn": dsn, "how": "stay before", "path": gate.path})
    await gate.begun()

    await scheduler.cancel(job_id)

    assert ((await ended(db, job_id))["status"], await effects(job_id)) == ("CANCELLED", [])


async def test_a_cancellation_between_complete_and_commit_waits_and_finds_the_job_completed(
    scheduler, db, dsn, work, gate, effects
):
    await work(kinds=KINDS)
    gate = gate()
    job_id = await insert(db, "Transfer", {"dsn": dsn, "how": "stay within", "path": gate.path})
    await gate.begun()

    cancelling = asyncio.create_task(scheduler.cancel(job_id))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%cancel%'"
    await until(lambda: db.fetchval(waiting), "the cancellation should wait")
    gate.open()

    assert (await cancelling).ended == [job_id]
    job = await ended(db, job_id)
    assert (job["status"], await effects(job_id)) == ("COMPLETED", [job["fence"]])


async def test_a_worker_that_gives_its_jobs_back_leaves_nothing_half_written(db, dsn, work, gate, effects):
    worker = await work(kinds=KINDS)
    gate = gate()
    job_id = await insert(db, "Transfer", {"dsn": dsn, "how": "stay within", "path": gate.path})
    await gate.begun()

    await worker.stop(cancel_running=True)

    assert ((await row(db, job_id))["status"], await effects(job_id)) == ("PENDING", [])


async def test_callbacks_are_told_that_a_job_completed_in_its_own_transaction(db, dsn, work, effects):
    told = []
    await work(kinds=KINDS, on_transition=told.append)

    job_id = await insert(db, "Transfer", {"dsn": dsn})

    await until(lambda: len(told) >= 2, "the claim and the end should be told")
    assert [(one.job_id, one.to_status, one.outcome, one.error_type, one.error) for one in told] == [
        (job_id, "RUNNING", None, None, None),
        (job_id, "COMPLETED", "completed", None, None),
    ]


async def test_a_child_starts_after_a_parent_that_completed_in_its_own_transaction(db, dsn, work, effects):
    await work(kinds=KINDS)
    parent = await insert(db, "Transfer", {"dsn": dsn, "how": "raise after"})
    child = await insert(db, "TransferInThread", {"dsn": dsn}, depends_on=[parent])

    found = await ended(db, parent, child)

    assert [job["attempt"] for job in found.values()] == [1, 1]


# A submit whose reply is lost.


async def test_f33_a_submit_whose_reply_is_lost_is_done_once_by_its_key(db, wire):
    async with Scheduler.connect(wire.dsn) as scheduler:
        wire.lose_reply_to("submit_graph")  # what a submit with a key calls
        with pytest.raises(DatabaseUnavailable):
            await scheduler.submit(transfers.Transfer(dsn=""), idempotency_key="order-5")
        made = await db.fetchval("SELECT id FROM scheduler.jobs")

        handle = await scheduler.submit(transfers.Transfer(dsn=""), idempotency_key="order-5")

    assert (wire.lost, handle.id) == (1, made)
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 1


async def test_f33_a_transaction_whose_commit_is_not_heard_of_submits_once_by_its_key(db, wire, scheduler, connect):
    async def order():
        connection = await connect(wire.dsn)
        async with connection.transaction():
            return await scheduler.submit(transfers.Transfer(dsn=""), connection=connection, idempotency_key="order-5")

    wire.lose_reply_to("COMMIT")
    with pytest.raises((ConnectionError, asyncpg.PostgresError)):
        await order()

    handle = await order()

    assert wire.lost == 1
    assert await db.fetch("SELECT id FROM scheduler.jobs") == [(handle.id,)]


# Three cut points: killed before the commit, killed after it, and its reply lost.


@pytest.mark.parametrize("kind", ["Transfer", "TransferInThread", "TransferInProcess"])
@pytest.mark.slow
async def test_f66_a_worker_killed_before_the_commit_has_written_nothing(db, dsn, launch, gate, effects, kind):
    gate = gate()
    worker = await launch(app="transfers", folder=HERE, lease=2).ready()
    job_id = await insert(db, kind, {"dsn": dsn, "how": "stay within", "path": gate.path})
    await gate.begun()

    worker.end()
    await launch(app="transfers", folder=HERE, lease=2).ready()

    job = await ended(db, job_id)
    assert (job["status"], job["attempt"], job["crashes"]) == ("COMPLETED", 2, 1)
    assert await effects(job_id) == [job["fence"]]


@pytest.mark.slow
async def test_f66_a_worker_killed_after_the_commit_has_completed_and_its_child_starts(db, dsn, launch, gate, effects):
    gate = gate()
    worker = await launch(app="transfers", folder=HERE, lease=2).ready()
    job_id = await insert(db, "Transfer", {"dsn": dsn, "how": "stay after", "path": gate.path})
    child = await insert(db, "TransferInThread", {"dsn": dsn}, depends_on=[job_id])
    await gate.begun()

    worker.end()
    assert (await row(db, job_id))["status"] == "COMPLETED"
    await launch(app="transfers", folder=HERE, lease=2).ready()

    found = await ended(db, job_id, child)
    assert [(job["attempt"], job["crashes"]) for job in found.values()] == [(1, 0), (1, 0)]
    assert await effects(job_id) == [found[job_id]["fence"]]


@pytest.mark.parametrize("kind", NAMES)
async def test_f66_a_handler_that_never_hears_of_its_commit_has_completed(db, work, wire, effects, caplog, kind):
    await work(kinds=KINDS)

    wire.lose_reply_to("COMMIT")
    job_id = await insert(db, kind, {"dsn": wire.dsn})

    job = await ended(db, job_id)
    await until(lambda: "what came after is not recorded" in caplog.text, "the error should be told")
    assert wire.lost == 1
    assert (job["status"], job["attempt"], await effects(job_id)) == ("COMPLETED", 1, [job["fence"]])
    assert await attempts(db, job_id) == []


async def test_f66_a_handler_cut_off_before_its_commit_has_written_nothing(db, work, wire, gate, effects):
    await work(kinds=KINDS)
    gate = gate()
    job_id = await insert(db, "Transfer", {"dsn": wire.dsn, "how": "stay within", "path": gate.path})
    await gate.begun()

    wire.cut()
    gate.open()

    job = await ended(db, job_id)
    assert (job["status"], job["attempt"], await effects(job_id)) == ("COMPLETED", 2, [job["fence"]])


@pytest.mark.slow
async def test_f66_rows_are_completed_jobs_exactly_whatever_is_cut(db, dsn, launch, effects):
    """Workers are killed again and again while they complete jobs."""
    ids = [job_id for kind in NAMES for job_id in await insert_many(db, 40, kind, {"dsn": dsn}, max_crashes=100)]
    worker = await launch(app="transfers", folder=HERE, lease=2, processes=1).ready()
    for share in (10, 30, 60):

        async def reached(share=share):
            return await db.fetchval("SELECT count(*) FROM effects") >= share

        await until(reached, "jobs should complete")
        worker.end()
        worker = await launch(app="transfers", folder=HERE, lease=2, processes=1).ready()

    found = await ended(db, *ids)
    assert {job["status"] for job in found.values()} == {"COMPLETED"}
    written = await db.fetch("SELECT job_id, fence FROM effects ORDER BY job_id")
    assert [tuple(one) for one in written] == sorted((job["id"], job["fence"]) for job in found.values())


# And what is stale writes nothing.


async def test_f67_a_worker_that_wakes_up_after_its_lease_writes_nothing(db, dsn, launch, gate, effects):
    gate = gate()
    zombie = await launch(app="transfers", folder=HERE, lease=2).ready()
    job_id = await insert(db, "Transfer", {"dsn": dsn, "how": "stay first", "path": gate.path})
    await gate.begun()
    zombie.send(signal.SIGSTOP)
    await launch(app="transfers", folder=HERE, lease=2).ready()
    job = await ended(db, job_id)

    gate.open()
    zombie.send(signal.SIGCONT)
    zombie.send(signal.SIGTERM)

    await zombie.exits()
    assert (job["status"], job["attempt"], await effects(job_id)) == ("COMPLETED", 2, [job["fence"]])


@pytest.mark.parametrize("kind", NAMES)
async def test_a_job_whose_lease_has_lapsed_is_not_taken_from_its_handlers_transaction(
    db, dsn, work, effects, connect, kind
):
    other = await connect()
    await work(kinds=KINDS, renew_every=5)
    async with other.transaction():
        await other.execute("LOCK TABLE effects")
        job_id = await insert(db, kind, {"dsn": dsn})
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ^@ 'INSERT INTO eff'"
        await until(lambda: db.fetchval(waiting), "the handler should wait within its transaction")
        await db.execute("UPDATE scheduler.jobs_active SET lease_expires_at = '2000-01-01' WHERE id = $1", job_id)
        reaped = json.loads(await db.fetchval("SELECT scheduler.reap('1 ms')"))["reaped"]

    job = await ended(db, job_id)
    assert reaped == []
    assert (job["status"], job["attempt"], await effects(job_id)) == ("COMPLETED", 1, [job["fence"]])
