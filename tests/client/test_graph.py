"""Graphs, batches, waiting and keys as clients ask for them: on every kind of connection, with or without await."""

import asyncio
from datetime import timedelta

import pytest
from notes import Note

from scheduler import InvalidJob, JobNotFound, ResultTimeout, Scheduler, Submission, SyncScheduler

SOON = timedelta(seconds=30)


async def edges(db):
    """Return the edges as pairs of the texts of their jobs, and the names that they have."""
    rows = await db.fetch("""SELECT p.payload ->> 'text' AS parent, c.payload ->> 'text' AS child, d.name
        FROM scheduler.dependencies d JOIN scheduler.jobs p ON p.id = d.parent JOIN scheduler.jobs c ON c.id = d.child
        WHERE d.parent <> d.child ORDER BY 1, 2""")
    return [tuple(row) for row in rows]


def count(db):
    return db.fetchval("SELECT count(*) FROM scheduler.jobs")


def node(name, *parents, **options):
    return Submission(Note(name), depends_on=parents, **options)


async def test_nodes_name_each_other_in_any_order(scheduler, db):
    outside = await scheduler.submit(Note("outside"))
    nodes = {"d": node("d", "b", "c"), "b": node("b", "a"), "c": node("c", "a", outside), "a": Note("a")}

    handles = await scheduler.submit_graph(nodes, priority=2, tenant="t")

    assert list(handles) == ["d", "b", "c", "a"]
    assert all(handle.created for handle in handles.values())
    assert await edges(db) == [
        ("a", "b", "a"), ("a", "c", "a"), ("b", "d", "b"), ("c", "d", "c"), ("outside", "c", None),
    ]  # fmt: skip
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs WHERE priority = 2 AND tenant = 't'") == 4
    assert (await scheduler.job(handles["a"].id))["status"] == "PENDING"
    assert (await scheduler.job(handles["d"].id))["unmet"] == 2


async def test_a_submission_can_be_submitted_again(scheduler, db):
    nodes = {"b": node("b", "a"), "a": Note("a")}

    await scheduler.submit_graph(nodes)
    await scheduler.submit_graph(nodes)

    assert await edges(db) == [("a", "b", "a")] * 2


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ({"a": node("a", "b"), "b": node("b", "a")}, "depends_on: goes round in a cycle: (a -> b -> a|b -> a -> b)"),
        ({"a": node("a", "a")}, "depends_on: goes round in a cycle: a -> a: leave out"),
        ({"a": Note(), "b": node("b", "c")}, "jobs\\['b'\\] depends_on: names 'c', which is no node of this graph"),
        ({"a": Note(), "b": node("b", "a", "a")}, "jobs\\['b'\\] depends_on: names a node twice"),
        ({"a": Note(), "b": node("b", "a", priority="x")}, "jobs\\['b'\\] priority: must be a whole number"),
        ({"a": Note(), "b": node("b", "a", priority=101)}, "jobs\\['b'\\] priority: must lie between -100 and 100"),
        ({"b": node("b", "a", 424242), "a": Note()}, "jobs\\['b'\\] depends_on: names job 424242, which does not"),
        ({1: Note()}, "node: must be text, not int"),
        ({"a\x00": Note()}, "node: holds a NUL"),
        ({"a": 3}, "jobs\\['a'\\] job: must be an instance of a job class"),
    ],
)  # fmt: skip
async def test_a_mistake_in_a_graph_is_named_and_nothing_is_inserted(scheduler, db, nodes, words):
    with pytest.raises(InvalidJob, match=f"^{words}"):
        await scheduler.submit_graph(nodes)

    assert await count(db) == 0


async def test_an_empty_graph_is_one(scheduler):
    assert await scheduler.submit_graph({}) == {}


async def test_a_long_chain_is_no_recursion(scheduler, db):
    await scheduler.declare([Note], [])
    nodes = {f"{n}": node(n, f"{n + 1}") if n < 1_999 else Note(n) for n in range(2_000)}

    handles = await scheduler.submit_graph(nodes)

    assert len(handles) == await count(db) == 2_000
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs WHERE status = 'PENDING'") == 1


@pytest.mark.slow
async def test_ten_thousand_nodes_go_in_with_one_statement(dsn, db):
    name = dsn.rpartition("/")[2]
    await db.execute(f"ALTER DATABASE {name} SET track_functions = 'all'")
    nodes = {f"{n}": node(n, *(f"{p}" for p in (n - 100, n - 101) if p >= 0)) for n in range(10_000)}
    async with Scheduler.connect(dsn) as scheduler:
        await scheduler.declare([Note], [])

        await scheduler.submit_graph(nodes)

    await db.execute("SELECT pg_stat_clear_snapshot()")
    calls = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'submit_graph'"
    assert (await count(db), await db.fetchval(calls)) == (10_000, 1)
    assert await db.fetchval("SELECT count(*) FROM scheduler.dependencies WHERE name IS NOT NULL") == 19_799


async def test_a_graph_and_a_batch_are_part_of_the_callers_transaction(caller, db):
    batch = await caller.submit(Note("callback"), batch=True, unique_key="one")
    again = await caller.submit(Note("callback"), batch=True, unique_key="one")
    handles = await caller.submit_graph({"b": node("b", "a"), "a": Note("a")}, member_of=batch)
    closed = await caller.close_batch(batch)
    before = await count(db)
    await caller.commit()

    assert (before, closed, again.id, batch.created, again.created) == (0, True, batch.id, True, False)
    assert await edges(db) == [("a", "b", "a"), ("a", "callback", None), ("b", "callback", None)]
    assert await db.fetchval("SELECT unmet FROM scheduler.jobs WHERE id = $1", batch.id) == 2
    assert [type(handle).__name__ for handle in handles.values()] in (["Handle"] * 2, ["SyncHandle"] * 2)


async def test_a_handle_tells_what_became_of_its_submit(scheduler, db):
    new = await scheduler.submit(Note(), unique_key="one")
    kept = await scheduler.submit(Note(), unique_key="one")
    await db.execute("""UPDATE scheduler.jobs_active SET status = 'RUNNING', worker_id = gen_random_uuid(),
        lease_expires_at = now() + interval '1 h'""")
    running = (await scheduler.submit_many([Note()], unique_key="one", on_taken="replace"))[0]

    assert {new.id, kept.id, running.id} == {new.id}
    told = [(handle.created, handle.running) for handle in (new, kept, running)]
    assert told == [(True, False), (False, False), (False, True)]


async def test_debouncing_keeps_one_job_with_the_last_payload(scheduler, db):
    for n in range(5):
        await scheduler.submit(Note(n), unique_key="doc-7", on_taken="replace", delay=timedelta(seconds=5))

    rows = await db.fetch("SELECT payload ->> 'text' AS text, status::text FROM scheduler.jobs")
    assert [tuple(row) for row in rows] == [("4", "DELAYED")]


async def test_the_end_of_a_batch_block_closes_the_batch(scheduler, db):
    async with scheduler.batch(Note("callback"), priority=3) as batch:
        await scheduler.submit(Note("member"), member_of=batch)
        assert (await scheduler.job(batch.id))["open_batch"] is True

    job = await scheduler.job(batch.id)
    assert (job["status"], job["unmet"], job["priority"], job.get("open_batch")) == ("BLOCKED", 1, 3, None)


@pytest.mark.parametrize(("key", "after"), [(None, "CANCELLED"), ("import-7", "BLOCKED")])
async def test_a_batch_block_that_raises_cancels_the_batch_unless_a_key_lets_it_be_taken_up_again(
    scheduler, key, after
):
    with pytest.raises(ZeroDivisionError):
        async with scheduler.batch(Note(), idempotency_key=key) as batch:
            member = await scheduler.submit(Note(), member_of=batch)
            raise ZeroDivisionError

    assert (await scheduler.job(batch.id))["status"] == after
    assert (await scheduler.job(member.id))["status"] == "PENDING"
    if key:
        async with scheduler.batch(Note(), idempotency_key=key) as again:
            pass
        assert (again.id, again.created) == (batch.id, False)
        assert (await scheduler.job(batch.id)).get("open_batch") is None


async def test_a_batch_block_that_raises_leaves_a_job_alone_that_was_there_before(scheduler, dsn):
    """Its unique_key is another one's: a job that is no batch, or the batch of somebody who still adds to it."""
    waiting = await scheduler.submit(Note(), unique_key="report", delay=timedelta(hours=1))
    with pytest.raises(InvalidJob, match="no open batch"):
        async with scheduler.batch(Note(), unique_key="report") as batch:
            await scheduler.submit(Note(), member_of=batch)
    assert (await scheduler.job(waiting.id))["status"] == "DELAYED"

    def again():
        with SyncScheduler.connect(dsn) as client, client.batch(Note(), unique_key="import"):
            raise ZeroDivisionError

    async with scheduler.batch(Note(), unique_key="import") as first:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(again)
        await scheduler.submit(Note(), member_of=first)
    assert (await scheduler.job(first.id))["status"] == "BLOCKED"


async def test_a_batch_of_another_block_is_left_to_it(scheduler, dsn):
    def add():
        with SyncScheduler.connect(dsn) as client, client.batch(Note(), unique_key="import") as batch:
            client.submit(Note(), member_of=batch)

    async with scheduler.batch(Note(), unique_key="import") as first:
        async with scheduler.batch(Note(), unique_key="import") as same:
            await scheduler.submit(Note(), member_of=same)
        await asyncio.to_thread(add)
        open_still = (await scheduler.job(first.id)).get("open_batch")

    job = await scheduler.job(first.id)
    assert (same.id, open_still) == (first.id, True)
    assert (job.get("open_batch"), job["unmet"]) == (None, 2)


async def test_a_batch_without_await(sync_scheduler):
    def program():
        with sync_scheduler.batch(Note("callback")) as batch:
            sync_scheduler.submit(Note("member"), member_of=batch)
        with pytest.raises(ZeroDivisionError), sync_scheduler.batch(Note("given up")) as given_up:
            raise ZeroDivisionError
        graph = sync_scheduler.submit_graph({"b": node("b", "a"), "a": Note("a")})
        sync_scheduler.cancel(graph["a"])
        ended = sync_scheduler.wait(graph.values(), SOON)
        seen = sync_scheduler.parents(graph["b"])
        return (
            [sync_scheduler.job(i.id)["status"] for i in (batch, given_up)],
            list(ended.values()),
            seen,
            graph["a"].id,
        )

    jobs, ended, seen, a = await asyncio.to_thread(program)
    assert (jobs, ended) == (["BLOCKED", "CANCELLED"], ["CANCELLED"] * 2)
    assert [(parent.id, parent.name, parent.status) for parent in seen] == [(a, "a", "CANCELLED")]


async def test_another_process_adds_to_a_batch_and_closes_it_by_its_id(scheduler, dsn, db):
    batch = await scheduler.submit(Note("callback"), batch=True)

    async with Scheduler.connect(dsn) as other:
        await other.submit(Note("member"), member_of=batch.id)
        assert [await other.close_batch(batch.id), await other.close_batch(batch.id)] == [True, False]
        with pytest.raises(InvalidJob, match=r"member_of: names job .* which is no open batch: add members before"):
            await other.submit(Note("too late"), member_of=batch.id)

    assert (await edges(db), await count(db)) == ([("member", "callback", None)], 2)


async def test_a_thousand_waiters_ask_with_one_statement_at_a_time(dsn, db):
    await db.execute(f"ALTER DATABASE {dsn.rpartition('/')[2]} SET track_functions = 'all'")
    async with Scheduler.connect(dsn) as scheduler:
        await scheduler.declare([Note], [])
        handles = await scheduler.submit_many([Note()] * 1000)
        waiters = [asyncio.create_task(handle.result(SOON)) for handle in handles]
        waiters += [asyncio.create_task(scheduler.wait(handles, SOON)) for _ in range(10)]
        await asyncio.sleep(0.2)
        await scheduler.cancel(*handles)

        done = await asyncio.gather(*waiters, return_exceptions=True)

    assert {type(error).__name__ for error in done[:1000]} == {"JobCancelled"}
    assert all(set(statuses.values()) == {"CANCELLED"} for statuses in done[1000:])
    calls = await db.fetchval("SELECT calls FROM pg_stat_user_functions WHERE funcname = 'outcomes'")
    assert 1 <= calls < 500  # a growing pause lies between two of them


async def test_waiting_for_jobs_that_do_not_end_or_exist(scheduler):
    handle = await scheduler.submit(Note())

    with pytest.raises(ResultTimeout, match=f"job {handle.id} has not ended"):
        await scheduler.wait([handle], timedelta(seconds=0.05))
    await scheduler.cancel(handle)
    with pytest.raises(JobNotFound):
        await scheduler.wait([handle, 4711], SOON)
    assert await scheduler.wait([]) == {}


async def test_a_claim_that_carries_no_parents_says_null(scheduler, db):
    await scheduler.declare([Note], [])
    await scheduler.submit(Note())

    call = (
        "SELECT * FROM scheduler.claim(gen_random_uuid(), gen_random_uuid(), '{default}', '{client_note}', 1, '30 s')"
    )
    assert (await db.fetch(call))[0]["parents"] is None


async def test_options_of_a_batch_of_the_wrong_type_are_refused(scheduler):
    with pytest.raises(InvalidJob, match=r"^batch: must be True or False"):
        await scheduler.submit(Note(), batch=1)
    with pytest.raises(InvalidJob, match=r"^member_of: must be a whole number"):
        await scheduler.submit(Note(), member_of="7")
    with pytest.raises(InvalidJob, match=r"^on_taken: must be keep, replace or raise"):
        await scheduler.submit(Note(), unique_key="u", on_taken="ignore")
