"""Submitting from Python: what is refused, where, in which words; and that a refusal leaves nothing behind."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from scheduler import (
    AsyncJob,
    ConfigurationError,
    Context,
    DatabaseUnavailable,
    InvalidJob,
    Priority,
    Scheduler,
    SchemaMismatch,
)


class Letter(AsyncJob, kind="unit_letter"):
    to: Any
    size: float = 0.0

    async def run(self, ctx: Context) -> None: ...


LETTER = Letter(to="a@example.org")
NESTED: Any = []
for _ in range(100):
    NESTED = [NESTED]

BAD = {
    "a parent that is not in a list": ({"depends_on": 7}, "depends_on", "a list of handles or ids"),
    "a naive datetime": ({"run_at": datetime(2030, 1, 1)}, "run_at", "time zone"),  # noqa: DTZ001
    "a date before 2000": ({"run_at": datetime(1999, 12, 31, tzinfo=UTC)}, "run_at", "2000 to 9999"),
    "a negative delay": ({"delay": timedelta(seconds=-1)}, "delay", "negative"),
    "a delay that is a number": ({"delay": 5}, "delay", "timedelta"),
    "both delay and run_at": (
        {"delay": timedelta(1), "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        "delay",
        "contradicts",
    ),
    "a priority beyond the range": ({"priority": 101}, "priority", "-100 and 100"),
    "NUL in a tenant": ({"tenant": "a\0b"}, "tenant", "NUL"),
    "a lone surrogate in a key": ({"idempotency_key": "\ud800"}, "idempotency_key", "surrogate"),
    "an endless key": ({"idempotency_key": "x" * 501}, "idempotency_key", "500 bytes"),
    "a parent that does not exist": ({"depends_on": [424242]}, "depends_on", "424242"),
    "an unknown policy": ({"on_parent_failure": "ignore"}, "on_parent_failure", "cancel or run"),
    "metadata that is too large": ({"metadata": {"a": "x" * 20_000}}, "metadata", "at most"),
}
BAD_PAYLOADS = {
    "NaN": (Letter(to="a", size=float("nan")), "payload.size"),
    "NUL": (Letter(to="a\0b"), "payload.to"),
    "a lone surrogate": (Letter(to="\ud800"), "payload.to"),
    "a wrong type": (Letter(to="a", size="big"), "payload.size"),  # type: ignore[arg-type]
    "over 256 kB": (Letter(to="x" * 262_145), "payload"),
    "too deep": (Letter(to=NESTED), "payload.to"),
}


@pytest.fixture
async def scheduler(dsn: str):
    async with Scheduler.connect(dsn) as opened:
        yield opened


async def count(db: asyncpg.Connection) -> int:
    return await db.fetchval("SELECT count(*) FROM scheduler.jobs")


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_option_is_one_error_that_names_field_and_rule_and_inserts_nothing(scheduler, db, case):
    options, field, words = BAD[case]

    with pytest.raises(InvalidJob) as refused:
        await scheduler.submit(LETTER, **options)

    assert refused.value.field == field
    assert words in str(refused.value)
    assert await count(db) == 0


@pytest.mark.parametrize("case", BAD_PAYLOADS)
async def test_a_bad_payload_never_reaches_the_database(scheduler, db, case):
    job, field = BAD_PAYLOADS[case]

    with pytest.raises(InvalidJob) as refused:
        await scheduler.submit(job)

    assert refused.value.field == field
    assert await count(db) == 0


async def test_only_what_the_caller_sets_is_written_and_defaults_stay_with_the_kind(scheduler, db):
    handle = await scheduler.submit(LETTER, priority=Priority.HIGH, metadata={"trace": "x"})

    row = await db.fetchrow("SELECT * FROM scheduler.jobs WHERE id = $1", handle.id)

    assert (row["priority"], row["metadata"], row["timeout"], row["queue"]) == (2, '{"trace": "x"}', None, None)


async def test_a_job_submitted_on_a_callers_connection_exists_if_and_only_if_that_commits(scheduler, db, connect):
    mine = await connect()

    with pytest.raises(ZeroDivisionError):
        async with mine.transaction():
            lost = await scheduler.submit(LETTER, connection=mine)
            raise ZeroDivisionError
    async with mine.transaction():
        kept = await scheduler.submit(LETTER, connection=mine)
        assert await count(db) == 0  # seen from outside

    assert [row["id"] for row in await db.fetch("SELECT id FROM scheduler.jobs")] == [kept.id]
    assert lost.id != kept.id


async def test_a_taken_idempotency_key_gives_every_caller_the_same_handle(scheduler, db):
    handles = [await scheduler.submit(LETTER, idempotency_key="order-7") for _ in range(3)]

    assert len({handle.id for handle in handles}) == 1
    assert await count(db) == 1


async def test_a_taken_unique_key_is_an_error_that_names_it_where_that_is_asked_for(scheduler, db):
    await scheduler.submit(LETTER, unique_key="nightly")

    with pytest.raises(InvalidJob) as refused:
        await scheduler.submit(LETTER, unique_key="nightly", on_taken="raise")

    assert refused.value.field == "unique_key"
    assert await count(db) == 1


async def test_cancelling_a_waiting_parent_cancels_its_children_in_its_name(scheduler):
    parent = await scheduler.submit(LETTER)
    child = await scheduler.submit(LETTER, depends_on=[parent])
    grandchild = await scheduler.submit(LETTER, depends_on=[child.id])

    done = await scheduler.cancel(parent)

    assert done.cancelled == [parent.id]
    found = [await scheduler.job(handle.id) for handle in (child, grandchild)]
    assert [(job["status"], job["cancelled_by"]) for job in found] == [("CANCELLED", parent.id)] * 2


async def test_without_a_dsn_one_sentence_names_both_ways(monkeypatch):
    monkeypatch.delenv("SCHEDULER_DSN", raising=False)

    with pytest.raises(ConfigurationError, match=r"SCHEDULER_DSN.*postgresql://.*embedded:"):
        Scheduler.connect()


async def test_a_database_without_the_schema_says_to_migrate(empty_dsn):
    with pytest.raises(SchemaMismatch, match="scheduler migrate"):
        await Scheduler.connect(empty_dsn).open()


async def test_a_server_that_is_not_there_is_called_so():
    with pytest.raises(DatabaseUnavailable):
        await Scheduler.connect("postgresql://nobody@127.0.0.1:1/none").open()


async def test_a_scheduler_that_is_not_open_says_how_to_open_it(dsn):
    scheduler = Scheduler.connect(dsn)

    for call in (scheduler.submit(LETTER), scheduler.jobs(), scheduler.handle(1).result()):
        with pytest.raises(DatabaseUnavailable, match="is not open: use it within `async with"):
            await call


async def test_a_scheduler_is_opened_once_and_goes_on(dsn):
    async with Scheduler.connect(dsn) as scheduler:
        with pytest.raises(ConfigurationError, match="open already"):
            async with scheduler:
                pass

        assert await scheduler.jobs() == []
