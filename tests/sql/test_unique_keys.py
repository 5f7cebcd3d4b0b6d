"""unique_key in submit: keep the unfinished job that has it, replace its payload and time while it waits, or raise."""

import asyncio
import json
from datetime import timedelta

import asyncpg
import pytest

from .steps import cancel, claim, end, insert, row, start, status, submit, until_waiting, verb


async def graph(db, *jobs):
    return await verb(db, "submit_graph", json.dumps([{"kind": "k", **job} for job in jobs]))


async def payload_of(db, job_id):
    return json.loads((await row(db, job_id))["payload"])


async def count(db):
    return await db.fetchval("SELECT count(*) FROM scheduler.jobs")


@pytest.mark.parametrize("on_taken", [None, "keep", "replace"])
async def test_twenty_submits_at_once_with_one_unique_key_make_one_job_and_all_get_its_id(db, connect, on_taken):
    submitters = [await connect() for _ in range(20)]

    ids = await asyncio.gather(*(submit(c, unique_key="one", on_taken=on_taken) for c in submitters))

    assert len(set(ids)) == 1
    assert await count(db) == 1


async def test_keep_returns_the_holder_unchanged_also_while_it_runs(db):
    holder = await submit(db, payload={"n": 1}, unique_key="one")
    assert await submit(db, payload={"n": 2}, unique_key="one") == holder
    assert await graph(db, {"unique_key": "one"}) == {"ids": [holder], "older": [holder], "running": []}
    await claim(db)

    assert await graph(db, {"unique_key": "one"}) == {"ids": [holder], "older": [holder], "running": [holder]}
    assert await payload_of(db, holder) == {"n": 1}


async def test_replace_gives_a_waiting_holder_the_new_payload_and_time(db, clock):
    holder = await submit(db, payload={"n": 1}, unique_key="one", delay="10 s", priority=3)
    await clock.advance(5)

    assert await submit(db, payload={"n": 2}, unique_key="one", on_taken="replace", delay="10 s") == holder

    job = await row(db, holder)
    assert (json.loads(job["payload"]), job["run_at"]) == ({"n": 2}, await clock.now() + timedelta(seconds=10))
    assert (job["rank_at"], job["status"]) == (job["run_at"] - timedelta(seconds=30), "DELAYED")
    await submit(db, payload={"n": 3}, unique_key="one", on_taken="replace")
    assert (await status(db, holder), await payload_of(db, holder)) == ("PENDING", {"n": 3})
    await submit(db, unique_key="one", on_taken="replace", delay="10 s")
    assert (await status(db, holder), await count(db)) == ("DELAYED", 1)


async def test_replace_leaves_a_running_holder_as_it_is_and_says_so(db):
    holder = await start(db, unique_key="one")

    answer = await graph(db, {"unique_key": "one", "on_taken": "replace", "payload": {"n": 2}})

    assert answer == {"ids": [holder["id"]], "older": [holder["id"]], "running": [holder["id"]]}
    assert await payload_of(db, holder["id"]) == {}


async def test_replace_leaves_a_holder_that_waits_for_parents_waiting(db):
    parent = await insert(db)
    holder = await submit(db, unique_key="one", depends_on=[parent])

    await submit(db, payload={"n": 2}, unique_key="one", on_taken="replace")

    assert (await status(db, holder), await payload_of(db, holder)) == ("BLOCKED", {"n": 2})


async def test_raise_refuses_a_taken_key_by_name(db):
    await submit(db, unique_key="one")

    with pytest.raises(asyncpg.UniqueViolationError) as refused:
        await submit(db, unique_key="one", on_taken="raise")

    assert refused.value.constraint_name == "unique_key is held by an unfinished job of this kind"


@pytest.mark.parametrize("on_taken", ["keep", "replace"])
async def test_a_key_whose_holder_ended_is_free(db, on_taken):
    holder = await start(db, unique_key="one")
    await end(db, holder)

    assert await submit(db, unique_key="one", on_taken=on_taken) != holder["id"]


async def test_a_holder_that_ends_behind_a_submit_is_followed_by_a_new_job(db, connect):
    holder = await submit(db, unique_key="one")
    operator, submitter = await connect(), await connect()

    async with operator.transaction():
        await cancel(operator, holder)
        replacing = asyncio.create_task(submit(submitter, unique_key="one", on_taken="replace"))
        await until_waiting(db, submitter)

    new = await replacing
    assert new != holder
    assert await status(db, new) == "PENDING"


async def test_a_holder_that_is_claimed_while_it_is_being_replaced_keeps_its_payload(db, connect):
    holder = await submit(db, payload={"n": 1}, unique_key="one")
    worker, submitter = await connect(), await connect()

    async with worker.transaction():
        (job,) = await claim(worker)
        replacing = asyncio.create_task(
            graph(submitter, {"unique_key": "one", "on_taken": "replace", "payload": {"n": 2}})
        )
        await until_waiting(db, submitter)

    assert await replacing == {"ids": [holder], "older": [holder], "running": [holder]}
    assert json.loads(job["payload"]) == await payload_of(db, holder) == {"n": 1}


async def test_a_holder_that_is_being_replaced_is_left_alone_by_claims(db, connect):
    holder = await submit(db, payload={"n": 1}, unique_key="one")
    submitter = await connect()

    async with submitter.transaction():
        await submit(submitter, payload={"n": 2}, unique_key="one", on_taken="replace")
        assert await claim(db) == []
    (job,) = await claim(db)

    assert (job["id"], json.loads(job["payload"])) == (holder, {"n": 2})


async def test_a_holder_whose_transaction_is_rolled_back_leaves_the_key_to_who_waits(db, connect):
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    lost = await submit(first, unique_key="one")
    submitting = asyncio.create_task(submit(second, unique_key="one"))
    await until_waiting(db, second)
    await transaction.rollback()

    assert await submitting not in {lost, None}


async def test_of_two_keys_the_idempotency_key_decides_first(db):
    older = await submit(db, payload={"n": 1}, idempotency_key="i")
    holder = await submit(db, payload={"n": 2}, unique_key="u")

    assert await submit(db, unique_key="u", idempotency_key="i", on_taken="replace", payload={"n": 3}) == older
    assert (await payload_of(db, older), await payload_of(db, holder)) == ({"n": 1}, {"n": 2})


async def test_an_idempotency_key_of_a_submission_that_was_kept_stands_for_the_holder(db):
    holder = await submit(db, unique_key="u")
    assert await submit(db, unique_key="u", idempotency_key="i") == holder
    await cancel(db, holder)

    assert await submit(db, unique_key="u", idempotency_key="i") == holder


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"unique_key": "u", "on_taken": "ignore"}, "on_taken"),
        ({"on_taken": "keep"}, "on_taken"),
        ({"unique_key": "u", "on_taken": "replace", "priority": 101}, "priority"),
        ({"unique_key": "x" * 501}, "unique_key"),
    ],
)
async def test_what_breaks_a_rule_is_refused_also_where_the_key_is_taken(db, options, field):
    await submit(db, unique_key="u")

    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await submit(db, **options)

    assert refused.value.column_name == field


async def test_many_with_unique_keys_give_each_its_job_in_order(db):
    older = await submit(db, unique_key="b")

    answer = await graph(db, *({"unique_key": key} if key else {} for key in ["a", "b", None, "a"]))

    first, second, third, fourth = answer["ids"]
    assert (second, fourth, answer["older"]) == (older, first, [older])
    assert len({first, second, third}) == 3


async def test_calls_that_name_the_same_unique_keys_in_opposite_order_never_deadlock(db, connect):
    one, other = await connect(), await connect()
    jobs = [{"unique_key": key} for key in "abcdefgh"]

    for _ in range(10):
        first, second = await asyncio.gather(graph(one, *jobs), graph(other, *jobs[::-1]))
        assert first["ids"] == second["ids"][::-1]
        await cancel(db, *first["ids"])

    assert await db.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


async def test_a_node_whose_key_is_taken_is_stood_for_by_the_job_that_has_it(db):
    for key in ("unique_key", "idempotency_key"):
        older = await submit(db, **{key: "one"})

        answer = await graph(db, {key: "one"}, {"parents": {"a": 0}})

        assert (answer["ids"][0], answer["older"]) == (older, [older])
        child = await row(db, answer["ids"][1])
        assert (child["status"], child["depends_on"]) == ("BLOCKED", [older])
        await end(db, (await claim(db))[0])
