"""The duty of retention: a worker deletes what has been kept long enough, beside its other work."""

from datetime import timedelta

import pytest
from witness import until

from scheduler.options import QUEUES, Queue
from worker.duties import BREATH, OLD_BATCH, RETAIN, retain

OLD = """
INSERT INTO scheduler.jobs_finished (id, kind, queue, status, run_at, rank_at, submitted_at, finished_at)
OVERRIDING SYSTEM VALUE
SELECT 10 ^ 12 + n, 'old', 'old', 'COMPLETED', at, at, at, at
FROM generate_series(1, $1::int) AS n, (SELECT scheduler.clock() - $2::interval AS at) AS c"""


@pytest.fixture
def brief():
    """A queue whose jobs are kept for a minute, declared by the workers of this test alone."""
    yield Queue("old", keep_completed=timedelta(minutes=1))
    del QUEUES["old"]


async def test_a_worker_deletes_what_has_been_kept_long_enough_batch_after_batch(scheduler, work, connect, brief):
    db = await connect()
    await db.execute(OLD, 2 * OLD_BATCH + 10, timedelta(minutes=2))
    await db.execute(OLD.replace("10 ^ 12", "10 ^ 13"), 1, timedelta(seconds=0))

    await work()

    async def one_left():
        return await db.fetchval("SELECT count(*) FROM scheduler.jobs_finished") == 1

    await until(one_left, "all but the newest should have been deleted")
    assert {q["queue"]: q["keep_completed"] for q in await scheduler.admin.queues() if q["queue"] == "old"} == {
        "old": 60
    }


async def test_a_pass_comes_again_at_once_while_there_is_more_and_then_rests(scheduler, connect):
    db = await connect()
    await db.execute(OLD, OLD_BATCH + 1, timedelta(days=8))

    pauses = [await retain(scheduler.store) for _ in range(2)]

    assert pauses[0] == BREATH
    assert pauses[1] >= RETAIN / 2
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs_finished") == 0
