"""What is said and not heard: a reply, a notice, a notice that was forged. The poll is the guarantee."""

import asyncio

import jobs
import pytest
from sql import steps
from wire import Wire
from witness import asleep, ended, insert, row, until

from scheduler import Submission


@pytest.fixture
async def wire(dsn):
    wire = await Wire(dsn).open()
    yield wire
    await wire.close()


async def test_f17_a_settlement_told_twice_counts_a_parent_once_and_starts_no_child_early(db, wire, work, gate):
    first, second = gate("first"), gate("second")
    await work(wire.dsn)
    parents = [await insert(db, "Wait", {"path": one.path}) for one in (first, second)]
    child = await insert(db, "Echo", depends_on=parents)
    await first.begun()
    await second.begun()

    wire.lose_reply_to("settle")
    first.open()
    await until(lambda: wire.lost, "a reply should have been lost")
    again = wire.calls["settle"]
    await until(lambda: wire.calls["settle"] > again, "the outcome should have been sent again")
    await until(lambda: child_counts(db, child, 1), "the child should have taken notice of the first")
    await db.fetchval("SELECT scheduler.resolve(NULL)")

    assert ((await row(db, child))["status"], (await row(db, child))["unmet"]) == ("BLOCKED", 1)
    second.open()
    job, found = await ended(db, child), await row(db, parents[0])
    assert (job["status"], job["attempt"], found["status"], found["attempt"]) == ("COMPLETED", 1, "COMPLETED", 1)


async def child_counts(db, child, unmet):
    return (await row(db, child))["unmet"] == unmet


async def test_f48_a_job_committed_after_the_workers_last_look_is_found_by_the_poll(db, connect, work):
    submitter = await connect()
    await work(poll=3)
    await asleep(db)
    await db.execute("UPDATE scheduler.workers SET sleeping = false")  # an insert now finds nobody to tell

    async with submitter.transaction():
        job_id = await insert(submitter, "Echo")
        await db.execute("UPDATE scheduler.workers SET sleeping = true")
        assert await row(db, job_id) is None

    assert (await ended(db, job_id))["attempt"] == 1


@pytest.mark.slow
async def test_f46_64_writers_of_single_rows_do_not_queue_behind_notices(db, connect, work):
    """A commit that notifies takes one lock of the whole cluster: few commits do, because few find a sleeper."""
    await work(poll=1)
    listener, heard = await connect(), []
    channel = await db.fetchval("SELECT channel FROM scheduler.workers")
    await listener.add_listener(channel, lambda *_: heard.append(1))
    writers = [await connect() for _ in range(64)]

    async def write(connection):
        return [await insert(connection, "Echo") for _ in range(30)]

    ids = [job_id for found in await asyncio.gather(*map(write, writers)) for job_id in found]
    await ended(db, *ids)
    await listener.fetchval("SELECT 1")

    assert len(set(ids)) == 64 * 30
    assert len(heard) < len(ids) * 3 / 4  # a busy machine is slow to say that it is awake


async def test_f69_ten_thousand_forged_notices_make_a_worker_look_a_few_times(db, wire, connect, work):
    await work(wire.dsn, poll=60)
    await asleep(db)
    channel = await db.fetchval("SELECT channel FROM scheduler.workers")
    forger, before = await connect(), wire.calls["claim"]

    for _ in range(100):
        await forger.execute("".join(f"NOTIFY {channel}, '{word}';" for word in [*map(str, range(99)), "cancel"]))

    job_id = await insert(db, "Echo")
    assert (await ended(db, job_id))["attempt"] == 1
    assert wire.calls["claim"] - before < 2000
    assert wire.calls["renew"] < 2000


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
async def test_b59_two_calls_with_the_same_keys_in_opposite_order_both_succeed_or_are_refused_by_rule(
    scheduler, db, connect, work, key
):
    """Idempotency keys are locked in their order; unique keys may meet as a deadlock, and the client tries again."""
    await work()
    names, holder = [f"key-{n}" for n in range(6)], await connect()
    given = [Submission(jobs.Echo(value=name), **{key: name}) for name in names]
    hold = holder.transaction()
    await hold.start()
    await steps.submit(holder, "Echo", **{key: names[3]})

    both = [asyncio.create_task(scheduler.submit_many(one)) for one in (given, given[::-1])]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await until(lambda: at_least(db, waiting, 2), "both calls should wait")
    await hold.rollback()

    answers = await asyncio.gather(*both, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert [str(error) for error in refused if "is held by an unfinished job" not in str(error)] == []
    if key == "idempotency_key":
        assert [handle.id for handle in answers[0]] == [handle.id for handle in reversed(answers[1])]


async def at_least(db, query, number):
    return await db.fetchval(query) >= number
