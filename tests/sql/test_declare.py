"""Declarations: what job classes say of themselves is the default of later rows, and of rows that waited for it."""

import asyncio
import json
from datetime import timedelta

import asyncpg
import pytest

from .steps import claim, declare, end, insert, insert_many, promote, row, status, submit, until_waiting

NEW = {"kind": "new", "queue": "mails", "priority": 3, "timeout": 60, "max_attempts": 2, "retry_base": 5}
DEFAULTS = ("queue", "priority", "max_attempts", "max_crashes", "timeout", "retry_base", "retry_cap", "retry_jitter")


async def test_a_row_of_an_undeclared_kind_waits_and_the_first_declaration_fills_it_in(db, clock):
    job_id = await insert(db, "new")
    waiting = await row(db, job_id)
    assert (waiting["status"], [waiting[name] for name in DEFAULTS]) == ("PENDING", [None] * 8)
    assert await claim(db, 5, ["new"], ["default", "mails"]) == []

    assert await declare(db, NEW) == {"changed": ["new"], "superseded": []}

    filled = await row(db, job_id)
    seconds = [filled[name].total_seconds() for name in ("timeout", "retry_base", "retry_cap")]
    assert [filled[name] for name in DEFAULTS[:4]] + seconds + [filled["retry_jitter"]] == [
        *("mails", 3, 2, 3),
        *(60, 5, 3600),
        True,
    ]
    assert filled["rank_at"] == await clock.now() - timedelta(seconds=30)
    assert [job["timeout"] for job in await claim(db, 5, ["new"], ["mails"])] == [60]


async def test_waiting_rows_of_every_status_are_filled_in(db, clock):
    parent = await insert(db)
    blocked = await insert(db, "new", depends_on=[parent])
    delayed = await insert(db, "new", run_at=await clock.now() + timedelta(hours=1))

    await declare(db, NEW)

    assert [(await row(db, i))["queue"] for i in (blocked, delayed)] == ["mails", "mails"]
    assert [await status(db, i) for i in (blocked, delayed)] == ["BLOCKED", "DELAYED"]


async def test_a_delayed_row_of_an_undeclared_kind_is_promoted_and_goes_on_waiting(db, clock):
    job_id = await insert(db, "new", run_at=await clock.now() + timedelta(seconds=1))
    await clock.advance(2)

    assert (await promote(db))["promoted"] == 1

    await declare(db, NEW)
    assert [job["id"] for job in await claim(db, 1, ["new"], ["mails"])] == [job_id]


@pytest.mark.parametrize("column", DEFAULTS)
async def test_a_row_that_left_but_one_column_open_is_filled_in(db, column):
    own = {"queue": "q", "priority": 5, "max_attempts": 4, "max_crashes": 2, "timeout": timedelta(seconds=9)}
    own |= {"retry_base": timedelta(seconds=2), "retry_cap": timedelta(seconds=30), "retry_jitter": False}
    del own[column]
    job_id = await insert(db, "new", **own)

    await declare(db, NEW)

    job = await row(db, job_id)
    assert None not in [job[name] for name in DEFAULTS]
    assert {name: job[name] for name in own} == own


@pytest.mark.parametrize(
    "own",
    [{"retry_base": timedelta(days=30)}, {"retry_cap": timedelta(seconds=0.01)}, {"priority": -100}, {"priority": 100}],
)
async def test_no_row_that_was_let_in_can_prevent_the_declaration_of_its_kind(db, own):
    job_id = await insert(db, "new", **own)

    await declare(db, NEW, queues=[{"queue": "mails", "ordering": "strict"}])

    assert (await row(db, job_id))["timeout"] == timedelta(seconds=60)


@pytest.mark.parametrize("seen", [False, True], ids=["of a kind never seen", "of a kind seen before"])
async def test_a_declaration_waits_for_an_open_insert_and_fills_it_in(db, connect, seen):
    submitter, worker = await connect(), await connect()
    await insert_many(db, int(seen), "new")

    async with submitter.transaction():
        job_id = await insert(submitter, "new")
        declaring = asyncio.create_task(declare(worker, NEW))
        await until_waiting(db, worker)
    await declaring

    assert (await row(db, job_id))["queue"] == "mails"


async def test_an_insert_behind_an_open_declaration_waits_for_it_and_gets_its_defaults(db, connect):
    submitter, worker = await connect(), await connect()

    async with worker.transaction():
        await declare(worker, NEW)
        inserting = asyncio.create_task(insert(submitter, "new"))
        await until_waiting(db, submitter)

    assert (await row(db, await inserting))["queue"] == "mails"


async def test_an_insert_raced_by_the_first_declaration_is_never_left_open(db, connect):
    submitter, worker = await connect(), await connect()

    for n in range(100):
        kind = f"kind{n}"
        await asyncio.gather(insert(submitter, kind), declare(worker, kind))

    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE queue = 'default'") == 100


async def test_a_kind_is_listed_before_it_is_declared(db):
    await insert(db, "new")

    kind = await db.fetchrow("SELECT kind, queue, seen_at FROM scheduler.kinds WHERE kind = 'new'")
    assert tuple(kind) == ("new", None, None)


async def test_a_declaration_of_no_options_gives_the_defaults(db):
    await declare(db, "plain")

    job = await row(db, await insert(db, "plain"))
    seconds = [job[name].total_seconds() for name in ("timeout", "retry_base", "retry_cap")]
    assert [job[name] for name in DEFAULTS[:4]] + seconds + [job["retry_jitter"]] == [
        "default",
        1,
        5,
        3,
        3600,
        1,
        3600,
        True,
    ]


async def test_a_changed_declaration_changes_later_rows_only(db):
    await declare(db, NEW)
    before = await insert(db, "new")
    await declare(db, NEW | {"priority": 0})

    assert [(await row(db, i))["priority"] for i in (before, await insert(db, "new"))] == [3, 0]


async def test_a_declaration_said_again_changes_nothing(db):
    await declare(db, NEW)

    assert await declare(db, NEW) == {"changed": [], "superseded": []}


async def test_in_a_rolling_deploy_the_old_version_changes_nothing_and_is_told(db):
    old, new = NEW, NEW | {"priority": 0}
    answers = [await declare(db, version) for version in (old, new, old, new, old)]

    told = [("changed" if a["changed"] else "superseded" if a["superseded"] else "same") for a in answers]
    assert told == ["changed", "changed", "superseded", "same", "superseded"]
    assert (await row(db, await insert(db, "new")))["priority"] == 0


async def test_a_forced_declaration_of_an_old_version_is_a_rollback(db):
    old, new = NEW, NEW | {"priority": 0}
    await declare(db, old)
    await declare(db, new)

    assert (await declare(db, old, force=True))["changed"] == ["new"]
    assert (await declare(db, new))["superseded"] == ["new"]
    assert (await row(db, await insert(db, "new")))["priority"] == 3


async def test_no_more_than_eight_declarations_are_kept(db):
    for n in range(20):
        await declare(db, NEW | {"priority": n})

    kept = json.loads(await db.fetchval("SELECT declared FROM scheduler.kinds WHERE kind = 'new'"))
    assert [declaration["priority"] for declaration in kept] == list(range(19, 11, -1))


async def test_what_an_operator_has_set_wins(db):
    await declare(db, NEW)
    await db.execute("""UPDATE scheduler.kinds SET override = '{"priority": -1}' WHERE kind = 'new'""")

    await declare(db, NEW | {"priority": 50})

    assert (await row(db, await insert(db, "new")))["priority"] == -1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "a b"}, "kind must be 1 to 100 letters"),
        ({"kind": "x", "timeout": 0}, "timeout must be over 0"),
        ({"kind": "x", "timeout": 2_592_001}, "timeout must be over 0 and at most 30 days"),
        ({"kind": "x", "max_attempts": 0}, "max_attempts must be at least 1"),
        ({"kind": "x", "executor": "gpu"}, "executor must be async, thread or process"),
        ({"kind": "x", "retry_base": 7200}, "retry_base must be over 0 and at most retry_cap"),
        ({"kind": "x", "idempotency_window": 0}, "idempotency_window must be over 0"),
    ],
)
async def test_a_wrong_declaration_is_refused_whole(db, wrong, words):
    with pytest.raises(asyncpg.CheckViolationError, match=words):
        await declare(db, "good", wrong)

    assert await db.fetchval("SELECT array_agg(kind) FROM scheduler.kinds") == ["k"]


@pytest.mark.parametrize(
    ("wrong", "words"), [({"ordering": "random"}, "ordering must be"), ({"step": -1}, "step must lie between")]
)
async def test_a_wrong_queue_is_refused(db, wrong, words):
    with pytest.raises(asyncpg.CheckViolationError, match=words):
        await declare(db, queues=[{"queue": "q", **wrong}])


async def test_many_workers_declare_at_once(db, connect):
    workers = [await connect() for _ in range(8)]
    kinds = [{"kind": f"kind{n}"} for n in range(10)]

    answers = await asyncio.gather(*(declare(w, *(kinds if n % 2 else kinds[::-1])) for n, w in enumerate(workers)))

    changed = [kind for answer in answers for kind in answer["changed"]]
    assert sorted(changed) == sorted({kind["kind"] for kind in kinds})


async def test_submit_takes_an_undeclared_kind_as_insert_does(db):
    job_id = await submit(db, "new")
    await insert_many(db, 3, "new")

    await declare(db, NEW)

    jobs = await claim(db, 10, ["new"], ["mails"])
    assert (len(jobs), jobs[0]["id"]) == (4, job_id)
    await end(db, jobs[0])
