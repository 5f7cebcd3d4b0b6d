"""Batches: a callback that is BLOCKED gains members until it is closed, and runs once, after the last of them."""

import asyncio
import json

import asyncpg
import pytest

from .steps import (
    attempts,
    cancel,
    claim,
    declare,
    end,
    insert,
    outcome,
    resolve,
    resolve_all,
    row,
    settle,
    status,
    statuses,
    submit,
    until_waiting,
    verb,
)


@pytest.fixture(autouse=True)
async def kinds(db):
    await declare(db, {"kind": "callback", "queue": "default"})


async def open_batch(db, **options):
    return await submit(db, "callback", batch=True, **options)


async def close(db, batch):
    return await db.fetchval("SELECT scheduler.close_batch($1)", batch)


async def settle_and_resolve(db, job, ending="completed", **facts):
    await resolve_all(db, (await end(db, job, ending, **facts))["parents"])


async def run_members(db, number=100, ending="completed"):
    """Claim members and end them all, with one settlement."""
    jobs = await claim(db, number)
    answer = await settle(db, *(outcome(job, ending, retryable=False) for job in jobs))
    await resolve_all(db, answer["parents"])
    return jobs


async def callback_runs_once(db, batch):
    (job,) = await claim(db, 10, ["callback"])
    assert job["id"] == batch
    await settle_and_resolve(db, job)
    assert await claim(db, 10, ["callback"]) == []
    assert await resolve(db) == {"parents": [], "busy": [], "more": False, "jobs": []}
    assert ((await row(db, batch))["attempt"], await attempts(db, batch)) == (1, [])


async def test_an_open_batch_does_not_start_whatever_became_of_its_members(db):
    batch = await open_batch(db)
    await submit(db, member_of=batch)
    await run_members(db)

    assert (await status(db, batch), (await row(db, batch))["unmet"]) == ("BLOCKED", 1)
    assert (await verb(db, "job", batch))["open_batch"] is True

    assert await close(db, batch) is True
    assert "open_batch" not in await verb(db, "job", batch)
    await callback_runs_once(db, batch)


async def test_a_batch_closed_without_a_member_runs_at_once(db):
    batch = await open_batch(db)

    await close(db, batch)

    await callback_runs_once(db, batch)


async def test_a_callback_whose_time_has_not_come_is_delayed_when_its_batch_is_closed(db):
    batch = await open_batch(db, delay="1 hour")

    await close(db, batch)

    assert await status(db, batch) == "DELAYED"


async def test_a_closed_batch_waits_for_the_last_of_its_members(db):
    batch = await open_batch(db)
    await verb(db, "submit_graph", json.dumps([{"kind": "k", "member_of": batch}] * 3))
    await close(db, batch)

    for job in await claim(db, 3):
        assert await claim(db, 10, ["callback"]) == []
        await settle_and_resolve(db, job)

    await callback_runs_once(db, batch)


async def test_closing_twice_or_after_the_end_changes_nothing(db):
    batch = await open_batch(db)

    assert [await close(db, batch), await close(db, batch)] == [True, False]
    await callback_runs_once(db, batch)
    assert await close(db, batch) is False


async def test_a_child_that_is_given_the_id_of_the_parent_it_names_is_refused_and_no_batch(db):
    """After a failover that lost the parent the next job may have its id."""
    lost = await submit(db, "callback") + 1

    with pytest.raises(asyncpg.CheckViolationError, match="depends_on must not contain the job itself"):
        await submit(db, "callback", depends_on=[lost])
    with pytest.raises(asyncpg.CheckViolationError, match=f"names job {lost + 1}, which does not exist"):
        await verb(db, "submit_many", json.dumps([{"kind": "callback", "depends_on": [lost + 1]}]))


@pytest.mark.parametrize("what", ["an ordinary job", "nothing"])
async def test_closing_what_is_no_batch_is_refused(db, what):
    job_id = await insert(db) if what == "an ordinary job" else 4711

    with pytest.raises(asyncpg.CheckViolationError, match=f"batch {job_id} is no batch") as refused:
        await close(db, job_id)

    assert refused.value.column_name == "batch"


@pytest.mark.parametrize("state", ["an ordinary job", "closed", "closed and waiting", "cancelled", "missing"])
async def test_a_member_of_what_is_no_open_batch_is_refused_and_not_inserted(db, state):
    batch = 4711 if state == "missing" else await (insert if state == "an ordinary job" else open_batch)(db)
    if state == "closed and waiting":
        await submit(db, member_of=batch)
    if state.startswith("closed"):
        await close(db, batch)
    if state == "cancelled":
        await cancel(db, batch)
    before = await db.fetchval("SELECT count(*) FROM scheduler.jobs")

    with pytest.raises(asyncpg.CheckViolationError, match=f"names job {batch}, which is no open batch") as refused:
        await submit(db, member_of=batch)

    assert refused.value.column_name == "member_of"
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == before


async def test_an_unfinished_member_adds_members_after_its_batch_was_closed(db):
    batch = await open_batch(db)
    await submit(db, member_of=batch)
    await close(db, batch)
    (author,) = await claim(db)

    later = await submit(db, member_of=batch, member=author["id"])
    await settle_and_resolve(db, author)

    assert await status(db, batch) == "BLOCKED"
    with pytest.raises(asyncpg.CheckViolationError):  # it has ended
        await submit(db, member_of=batch, member=author["id"])
    assert [job["id"] for job in await run_members(db)] == [later]
    await callback_runs_once(db, batch)


async def test_f22_the_last_member_ends_while_a_member_is_being_added_and_the_callback_waits_for_that_one_too(
    db, connect
):
    batch = await open_batch(db)
    await submit(db, member_of=batch)
    await close(db, batch)
    (last,) = await claim(db)
    author = await connect()

    async with author.transaction():
        added = await submit(author, member_of=batch, member=last["id"])
        parents = (await end(db, last))["parents"]
        assert (await resolve(db, parents))["busy"] == [last["id"]]
    await resolve_all(db, parents)

    assert await status(db, batch) == "BLOCKED"
    assert [job["id"] for job in await run_members(db)] == [added]
    await callback_runs_once(db, batch)


async def test_f22_a_member_that_comes_after_the_last_one_was_seen_to_end_is_refused(db, connect):
    batch = await open_batch(db)
    await submit(db, member_of=batch)
    await close(db, batch)
    (last,) = await claim(db)
    worker, author = await connect(), await connect()
    parents = (await end(db, last))["parents"]

    async with worker.transaction():
        await resolve(worker, parents)
        adding = asyncio.create_task(submit(author, member_of=batch, member=last["id"]))
        await until_waiting(db, author)

    with pytest.raises(asyncpg.CheckViolationError, match="no open batch"):
        await adding
    await callback_runs_once(db, batch)


async def test_a_batch_that_is_closed_while_a_member_is_being_added_waits_for_it(db, connect):
    batch = await open_batch(db)
    author, closer = await connect(), await connect()

    async with author.transaction():
        await submit(author, member_of=batch)
        closing = asyncio.create_task(close(closer, batch))
        await until_waiting(db, closer)
    await closing

    assert await status(db, batch) == "BLOCKED"
    await run_members(db)
    await callback_runs_once(db, batch)


async def test_a_member_whose_transaction_is_rolled_back_is_not_waited_for(db, connect):
    batch = await open_batch(db)
    author = await connect()
    adding = author.transaction()
    await adding.start()
    await submit(author, member_of=batch)
    await adding.rollback()

    await close(db, batch)

    await callback_runs_once(db, batch)


async def test_f21_a_batch_of_200_whose_members_end_together_runs_its_callback_once(db, connect):
    workers = [await connect() for _ in range(20)]
    for _ in range(5):
        batch = await open_batch(db)
        await verb(db, "submit_graph", json.dumps([{"kind": "k", "member_of": batch}] * 200))
        await close(db, batch)
        jobs = await claim(db, 200)

        async def work(worker, mine):
            answers = [await settle(worker, outcome(job)) for job in mine]
            await resolve_all(worker, [parent for answer in answers for parent in answer["parents"]])

        await asyncio.gather(*(work(worker, jobs[n::20]) for n, worker in enumerate(workers)))

        await callback_runs_once(db, batch)


async def test_b33_a_batch_some_of_whose_members_fail_runs_its_callback_once(db, connect):
    workers = [await connect() for _ in range(20)]
    batch = await open_batch(db, on_parent_failure="run")
    await verb(db, "submit_graph", json.dumps([{"kind": "k", "member_of": batch}] * 20))
    await close(db, batch)
    jobs = await claim(db, 20)

    await asyncio.gather(
        *(
            settle_and_resolve(worker, job, "failed" if n % 3 else "completed", retryable=False)
            for n, (worker, job) in enumerate(zip(workers, jobs, strict=True))
        )
    )

    await callback_runs_once(db, batch)


async def test_b34_a_member_that_fails_and_then_succeeds_lets_the_callback_run_once(db):
    batch = await open_batch(db)
    await submit(db, member_of=batch)
    await close(db, batch)
    (first,) = await claim(db)
    await settle_and_resolve(db, first, "failed", delay=0)
    assert await status(db, batch) == "BLOCKED"

    await db.execute("SELECT scheduler.promote()")
    await run_members(db)

    await callback_runs_once(db, batch)


async def test_b46_a_member_that_is_retried_twice_is_waited_for_to_its_last_end(db):
    batch = await open_batch(db, on_parent_failure="run")
    await submit(db, member_of=batch, max_attempts=3)
    await close(db, batch)
    for _ in range(3):
        assert await claim(db, 10, ["callback"]) == []
        (member,) = await claim(db)
        await settle_and_resolve(db, member, "failed", delay=0)
        await db.execute("SELECT scheduler.promote()")

    await callback_runs_once(db, batch)


async def test_b47_nested_batches_run_each_callback_once_the_inner_one_first(db):
    outer = await open_batch(db)
    inner = await open_batch(db, member_of=outer)
    await close(db, outer)
    await submit(db, member_of=inner)
    await close(db, inner)

    await run_members(db)
    assert await statuses(db, [inner, outer]) == {inner: "PENDING", outer: "BLOCKED"}
    (job,) = await claim(db, 10, ["callback"])
    assert job["id"] == inner
    await settle_and_resolve(db, job)

    await callback_runs_once(db, outer)
    assert (await row(db, inner))["attempt"] == 1


@pytest.mark.parametrize(("policy", "after"), [("cancel", "CANCELLED"), ("run", "PENDING")])
@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_the_policy_of_the_callback_decides_on_members_that_do_not_complete(db, policy, after, ending):
    batch = await open_batch(db, on_parent_failure=policy)
    member = await submit(db, member_of=batch)
    await close(db, batch)

    if ending == "cancelled":
        await resolve_all(db, (await cancel(db, member))["parents"])
    else:
        await run_members(db, ending="failed")

    assert (await status(db, batch), (await row(db, batch))["cancelled_by"]) == (
        after,
        member if policy == "cancel" else None,
    )


async def test_a_member_retried_by_an_operator_is_waited_for_again(db):
    batch = await open_batch(db, on_parent_failure="run")
    member = await submit(db, member_of=batch)
    await run_members(db, ending="failed")
    assert (await row(db, batch))["unmet"] == 1  # for the author

    await verb(db, "retry", [member])
    await close(db, batch)

    assert (await status(db, batch), (await row(db, batch))["unmet"]) == ("BLOCKED", 1)
    await run_members(db)
    await callback_runs_once(db, batch)


async def test_a_member_is_not_retried_while_somebody_holds_its_waiting_batch(db, connect):
    batch = await open_batch(db, on_parent_failure="run")
    member = await submit(db, member_of=batch)
    await run_members(db, ending="failed")
    author = await connect()

    async with author.transaction():
        await submit(author, member_of=batch)
        assert (await verb(db, "retry", [member]))["busy"] == [member]
    assert (await verb(db, "retry", [member]))["retried"] == [member]

    assert (await row(db, batch))["unmet"] == 3


async def test_a_member_retried_after_the_callback_ran_leaves_it_as_it_is(db):
    batch = await open_batch(db, on_parent_failure="run")
    member = await submit(db, member_of=batch)
    await close(db, batch)
    await run_members(db, ending="failed")
    await callback_runs_once(db, batch)

    await verb(db, "retry", [member])
    await run_members(db)

    assert (await row(db, batch))["attempt"] == 1


async def test_a_retry_of_what_cancelled_an_open_batch_revives_it_closed(db):
    batch = await open_batch(db)
    member = await submit(db, member_of=batch)
    await run_members(db, ending="failed")
    assert await status(db, batch) == "CANCELLED"

    answer = await verb(db, "retry", [member])
    assert answer["children"] == [batch]
    await verb(db, "retry", [batch])

    assert (await status(db, batch), (await row(db, batch))["unmet"]) == ("BLOCKED", 1)
    await run_members(db)
    await callback_runs_once(db, batch)


async def test_an_abandoned_batch_ends_by_cancel_and_is_pruned(db):
    batch = await open_batch(db)
    member = await submit(db, member_of=batch)

    await resolve_all(db, (await cancel(db, batch))["parents"])

    assert await statuses(db, [batch, member]) == {batch: "CANCELLED", member: "PENDING"}
    await run_members(db)
    assert await resolve(db) == {"parents": [], "busy": [], "more": False, "jobs": []}
    assert (await verb(db, "prune", [batch, member]))["pruned"] == [batch, member]


async def test_members_are_kept_while_their_batch_is_unfinished(db):
    batch = await open_batch(db)
    member = await submit(db, member_of=batch)
    await run_members(db)

    assert (await verb(db, "prune", [member]))["pruned"] == []


async def test_a_member_with_a_taken_key_is_counted_once(db):
    batch = await open_batch(db)

    ids = {await submit(db, member_of=batch, idempotency_key="one") for _ in range(3)}

    assert len(ids) == 1
    assert (await row(db, batch))["unmet"] == 2


@pytest.mark.parametrize("state", ["closed", "its members ended", "ended"])
@pytest.mark.parametrize("together", [False, True])
async def test_an_author_that_runs_again_finds_its_members_though_the_batch_is_closed(db, state, together):
    """It was killed behind its close_batch: with the keys of the first time nothing is left to do."""

    async def author():
        batch = await open_batch(db, idempotency_key="import-7")
        options = [{"member_of": batch, "idempotency_key": f"import-7-{n}"} for n in range(3)]
        if together:
            members = (await verb(db, "submit_graph", json.dumps([{"kind": "k", **one} for one in options])))["ids"]
        else:
            members = [await submit(db, **one) for one in options]
        return batch, members, await close(db, batch)

    batch, members, closed = await author()
    assert closed
    if state != "closed":
        await run_members(db)
    if state == "ended":
        await callback_runs_once(db, batch)

    assert await author() == (batch, members, False)
    with pytest.raises(asyncpg.CheckViolationError, match="no open batch"):
        await submit(db, member_of=batch, idempotency_key="import-7-another")

    if state == "closed":
        await run_members(db)
    if state != "ended":
        await callback_runs_once(db, batch)


async def test_a_member_that_a_key_finds_completed_is_met(db):
    older = await submit(db, idempotency_key="one")
    await run_members(db)
    batch = await open_batch(db)

    assert await submit(db, member_of=batch, idempotency_key="one") == older

    assert (await row(db, batch))["unmet"] == 1
    await close(db, batch)
    await callback_runs_once(db, batch)


async def test_a_member_that_waits_for_its_own_batch_is_refused(db):
    batch = await open_batch(db)

    with pytest.raises(asyncpg.CheckViolationError, match="member_of would wait for job") as refused:
        await submit(db, member_of=batch, depends_on=[batch])

    assert refused.value.hint.startswith("a member of a batch may depend on members of the same batch")


async def test_an_older_job_that_waits_for_a_batch_is_refused_as_its_member(db):
    batch = await open_batch(db)
    await submit(db, depends_on=[batch], idempotency_key="behind")

    with pytest.raises(asyncpg.CheckViolationError, match="member_of would wait for job"):
        await submit(db, member_of=batch, idempotency_key="behind")


async def test_an_older_job_that_was_cancelled_while_it_waited_for_the_batch_is_refused_as_its_member(db):
    """Or, put back by an operator, it and the callback would wait for each other for ever."""
    batch = await open_batch(db, on_parent_failure="run")
    child = await submit(db, depends_on=[batch], idempotency_key="one")
    await cancel(db, child)

    with pytest.raises(asyncpg.CheckViolationError, match=f"member_of would wait for job {child}"):
        await submit(db, member_of=batch, idempotency_key="one")


async def test_a_graph_may_be_the_members_of_a_batch(db):
    batch = await open_batch(db)
    nodes = [{"kind": "k", "member_of": batch}, {"kind": "k", "member_of": batch, "parents": {"a": 0}}]

    first, second = (await verb(db, "submit_graph", json.dumps(nodes)))["ids"]
    await close(db, batch)

    assert await statuses(db, [first, second]) == {first: "PENDING", second: "BLOCKED"}
    await run_members(db)
    await run_members(db)
    await callback_runs_once(db, batch)


async def test_authors_of_many_batches_never_deadlock(db, connect):
    batches = [await open_batch(db) for _ in range(4)]
    authors = [await connect() for _ in range(4)]

    async def add(author, turn):
        for n in range(10):
            order = batches[(turn + n) % 4 :] + batches[: (turn + n) % 4]
            jobs = [{"kind": "k", "member_of": batch} for batch in order]
            await author.execute("SELECT scheduler.submit_graph($1)", json.dumps(jobs))

    await asyncio.gather(*(add(author, turn) for turn, author in enumerate(authors)))

    assert [(await row(db, batch))["unmet"] for batch in batches] == [41] * 4
    assert await db.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
