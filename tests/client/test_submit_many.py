"""Many jobs in one call: all or nothing, ids in the order given, and an error that names which job."""

import asyncio
import json
import random
import time
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from notes import Note

from scheduler import InvalidJob, Submission


async def until(condition, what):
    deadline = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


async def until_waiting(db, connection):
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
    await until(lambda: db.fetchval(query, connection.get_server_pid()), "the session should have waited for a lock")


def count(db):
    return db.fetchval("SELECT count(*) FROM scheduler.jobs")


@pytest.mark.slow
async def test_a_hundred_thousand_jobs_in_one_call_come_back_in_order_and_leave_the_planner_informed(scheduler, db):
    await scheduler.declare([Note], [])

    handles = await scheduler.submit_many(Note(n) for n in range(100_000))

    ids = [handle.id for handle in handles]
    assert ids == sorted(set(ids))
    assert len(ids) == 100_000
    texts = [row[0] for row in await db.fetch("SELECT (payload ->> 'text')::int FROM scheduler.jobs ORDER BY id")]
    assert texts == list(range(100_000))
    known = await db.fetchval("SELECT reltuples FROM pg_class WHERE oid = 'scheduler.jobs_active'::regclass")
    assert known == 100_000


async def test_up_to_ten_thousand_jobs_leave_the_statistics_to_autovacuum_and_more_do_not(scheduler, db):
    await db.execute("ALTER TABLE scheduler.jobs_active SET (autovacuum_enabled = off)")
    await scheduler.declare([Note], [])
    query = "SELECT reltuples FROM pg_class WHERE oid = 'scheduler.jobs_active'::regclass"

    await scheduler.submit_many([Note()] * 10_000)
    before = await db.fetchval(query)
    await scheduler.submit_many([Note()] * 10_001)

    assert (before, await db.fetchval(query)) == (-1, 20_001)


async def test_options_of_the_call_are_those_of_every_job_and_those_of_a_job_win(scheduler, db):
    parent = await scheduler.submit(Note())
    at = datetime.now(UTC) + timedelta(hours=1)

    handles = await scheduler.submit_many(
        [Note(), Submission(Note(), priority=3, depends_on=[parent]), Submission(Note(), tenant=None, run_at=at)],
        priority=0,
        tenant="t",
        metadata={"a": 1},
    )

    rows = await db.fetch(
        "SELECT priority, tenant, status::text, depends_on, run_at > now() AS later FROM scheduler.jobs"
        " WHERE id = ANY ($1) AND metadata = '{\"a\": 1}' ORDER BY id",
        [handle.id for handle in handles],
    )
    assert [tuple(row) for row in rows] == [
        (0, "t", "PENDING", [], False),
        (3, "t", "BLOCKED", [parent.id], False),
        (0, "", "DELAYED", [], True),
    ]


async def test_a_taken_key_gives_the_older_job_also_within_the_call(scheduler, db):
    older = await scheduler.submit(Note("older"), idempotency_key="k2")

    handles = await scheduler.submit_many(
        [Submission(Note(n), idempotency_key=key) for n, key in enumerate(["k3", "k2", "k1", "k3", None, "k1"])]
    )

    ids = [handle.id for handle in handles]
    assert ids[1] == older.id
    assert (ids[3], ids[5]) == (ids[0], ids[2])
    assert ids[0] < ids[2] < ids[4]
    rows = await db.fetch("SELECT id, payload ->> 'text' AS text FROM scheduler.jobs ORDER BY id")
    assert [row["text"] for row in rows] == ["older", "0", "2", "4"]


async def test_the_same_call_again_changes_nothing_and_gives_the_same_handles(scheduler, db):
    jobs = [Submission(Note(n), idempotency_key=str(n)) for n in range(20)]

    first, again = await scheduler.submit_many(jobs), await scheduler.submit_many(reversed(jobs))

    assert [handle.id for handle in again] == [handle.id for handle in reversed(first)]
    assert await count(db) == 20


async def test_jobs_of_one_call_keep_their_order_in_the_queue_whatever_their_keys(scheduler, db):
    keys = [str(n) for n in range(100)]
    random.Random(1).shuffle(keys)

    handles = await scheduler.submit_many([Submission(Note(), idempotency_key=key) for key in keys])

    rows = await db.fetch("SELECT id FROM scheduler.jobs ORDER BY rank_at, id")
    assert [row["id"] for row in rows] == [handle.id for handle in handles]


async def test_two_calls_that_name_the_same_keys_in_opposite_order_do_not_deadlock(scheduler, connect, db):
    one, other = await connect(), await connect()
    jobs = [Submission(Note(), idempotency_key=key) for key in "abcdef"]
    async with db.transaction():
        await scheduler.submit(Note(), idempotency_key="c", connection=db)
        both = [
            asyncio.create_task(scheduler.submit_many(given, connection=connection))
            for connection, given in ((one, jobs), (other, jobs[::-1]))
        ]
        watcher = await connect()
        await until_waiting(watcher, one)
        await until_waiting(watcher, other)

    first, second = await asyncio.gather(*both)

    assert [handle.id for handle in second] == [handle.id for handle in reversed(first)]


@pytest.mark.parametrize("index", [0, 7, 19])
async def test_the_error_of_a_refused_job_names_its_place_and_nothing_is_inserted(scheduler, db, index):
    jobs = [Submission(Note(), priority=101 if n == index else 1) for n in range(20)]

    with pytest.raises(InvalidJob, match=rf"^jobs\[{index}\] priority: must lie between") as refused:
        await scheduler.submit_many(jobs)

    assert (refused.value.field, refused.value.index) == ("priority", index)
    assert await count(db) == 0


async def test_a_unique_key_given_twice_names_the_second_job_where_it_is_to_be_refused(scheduler, db):
    with pytest.raises(InvalidJob, match=r"^jobs\[2\] unique_key: is held"):
        await scheduler.submit_many([Submission(Note(), unique_key=key) for key in "aba"], on_taken="raise")

    assert await count(db) == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Submission(Note(float("nan"))), r"^jobs\[1\] payload.text: "),
        (Submission(Note(), delay=timedelta(-1)), r"^jobs\[1\] delay: must not be negative"),
        (Submission(Note(), depends_on=[424242]), r"^jobs\[1\] depends_on: names job 424242, which does not exist"),
        (3, r"^jobs\[1\] job: must be an instance of a job class, not int"),
    ],
)
async def test_whoever_finds_the_mistake_the_error_names_the_place(scheduler, db, wrong, words):
    with pytest.raises(InvalidJob, match=words):
        await scheduler.submit_many([Note(), wrong, Note()])

    assert await count(db) == 0


async def test_more_than_fits_in_one_call_is_refused_with_the_way_out(scheduler):
    large = Note("x" * 200_000)

    with pytest.raises(
        InvalidJob, match=r"jobs: have 200,0.* at most 200,000,000 .* several calls, in one transaction"
    ):
        await scheduler.submit_many(large for _ in range(1000))


async def test_no_jobs_are_no_handles(scheduler):
    assert await scheduler.submit_many([]) == []


async def test_one_call_wakes_a_sleeping_worker_once(scheduler, connect, db):
    heard = []
    listener = await connect()
    await listener.add_listener("sleeper", lambda *_: heard.append(1))
    await db.execute("""INSERT INTO scheduler.workers VALUES (gen_random_uuid(), 'h', 1, '1', '{default}', '{}', '{}',
        scheduler.clock(), scheduler.clock(), true, 'sleeper', false)""")
    await scheduler.declare([Note], [])
    await scheduler.submit_many([Note(n) for n in range(50)])
    await listener.fetchval("SELECT 1")

    async def told():
        return bool(heard)

    await until(told, "the sleeper should have been told")
    assert heard == [1]


async def test_from_sql_a_job_is_one_object_and_an_unknown_option_is_refused(db):
    jobs = [{"kind": "a"}, {"kind": "b", "payload": {"x": 1}, "priority": 2}]

    ids = await db.fetchval("SELECT scheduler.submit_many($1)", json.dumps(jobs))

    rows = await db.fetch("SELECT id, kind, payload, priority FROM scheduler.jobs ORDER BY id")
    assert [tuple(row) for row in rows] == [(ids[0], "a", "{}", None), (ids[1], "b", '{"x": 1}', 2)]
    with pytest.raises(asyncpg.CheckViolationError, match="colour is no option of submit") as refused:
        await db.fetchval("SELECT scheduler.submit_many($1)", json.dumps([{"kind": "a", "colour": "red"}]))
    assert (refused.value.detail, refused.value.column_name) == ("jobs[0]", "colour")


BAD_OPTIONS = {
    "a naive instant": ({"run_at": "2030-01-31 12:00:00"}, "run_at must have a time and a time zone"),
    "a date": ({"run_at": "2030-01-31"}, "run_at must have a time and a time zone"),
    "a word": ({"run_at": "tomorrow"}, "run_at must have a time and a time zone"),
    "a negative delay": ({"delay": "-5 minutes"}, "delay must not be negative"),
}
GOOD_INSTANTS = [
    "2030-01-31T12:00:00Z",
    "2030-01-31 12:00+00",
    "2030-01-31T12:00:00.123456+00:00",
    "2030-01-31 12:00:00 UTC",
    "2030-01-31 13:00:00 Europe/Paris",
    "2030-01-31T12:09:21+00:09:21",
]


@pytest.mark.parametrize("case", BAD_OPTIONS)
async def test_an_instant_without_a_zone_and_a_negative_delay_are_refused_in_sql(db, case):
    options, words = BAD_OPTIONS[case]

    with pytest.raises(asyncpg.CheckViolationError, match=words):
        await db.fetchval("SELECT scheduler.submit('k', '{}', $1)", json.dumps(options))

    assert await count(db) == 0


@pytest.mark.parametrize("instant", GOOD_INSTANTS)
async def test_an_instant_with_a_zone_is_taken_however_it_is_written(db, instant):
    await db.fetchval("SELECT scheduler.submit('k', '{}', $1)", json.dumps({"run_at": instant}))

    found = await db.fetchval("SELECT run_at FROM scheduler.jobs")
    assert found.replace(microsecond=0) == datetime(2030, 1, 31, 12, tzinfo=UTC)


async def test_a_role_that_may_submit_may_submit_many(db):
    await db.execute("SET ROLE scheduler_submitter")
    jobs = json.dumps([{"kind": "k", "depends_on": []}] * 10_001)

    ids = await db.fetchval("SELECT scheduler.submit_many($1)", jobs)

    assert len(ids) == 10_001
