"""Bad input: one clear error that names the column and the rule; nothing is inserted; good rows are not harmed."""

import json
from datetime import timedelta

import asyncpg
import pytest

from .steps import declare, insert, insert_many, row, status, submit

BAD = {
    "status COMPLETED": ("status", "'COMPLETED'", "status is not the submitter's to set"),
    "status FAILED": ("status", "'FAILED'", "status is not the submitter's to set"),
    "status RUNNING": ("status", "'RUNNING'", "status is not the submitter's to set"),
    "status BLOCKED": ("status", "'BLOCKED'", "status is not the submitter's to set"),
    "explicit NULL status": ("status", "NULL", "status is not the submitter's to set"),
    "attempt": ("attempt", "1", "attempt is not the submitter's to set"),
    "failures": ("failures", "-1", "failures is not the submitter's to set"),
    "line": ("line", "'x'", "line is not the submitter's to set"),
    "unmet": ("unmet", "1", "unmet is not the submitter's to set"),
    "rank_at": ("rank_at", "now()", "rank_at is not the submitter's to set"),
    "fence": ("fence", "1", "fence is not the submitter's to set"),
    "worker_id": ("worker_id", "gen_random_uuid()", "worker_id is not the submitter's to set"),
    "lease_expires_at": ("lease_expires_at", "now()", "lease_expires_at is not the submitter's to set"),
    "cancelled_by": ("cancelled_by", "1", "cancelled_by is not the submitter's to set"),
    "finished_at": ("finished_at", "now()", "finished_at is not the submitter's to set"),
    "result": ("result", "'{}'", "result is not the submitter's to set"),
    "payload an array": ("payload", "'[1]'", "payload must be a JSON object"),
    "payload a string": ("payload", "'\"x\"'", "payload must be a JSON object"),
    "payload the JSON null": ("payload", "'null'", "payload must be a JSON object"),
    "payload NULL": ("payload", "NULL", "payload must be a JSON object"),
    "payload over 256 kB": (
        "payload",
        "jsonb_build_object('a', repeat('x', 262144))",
        "payload must be at most 256 kB as text",
    ),
    "payload of many keys over 256 kB": (
        "payload",
        "(SELECT jsonb_object_agg(n, n) FROM generate_series(1, 30000) AS n)",
        "payload must be at most 256 kB as text",
    ),
    "metadata a number": ("metadata", "'1'", "metadata must be a JSON object of at most 16 kB"),
    "metadata large": ("metadata", "jsonb_build_object('a', repeat('x', 16384))", "metadata must be a JSON object"),
    "queue empty": ("queue", "''", "queue must be 1 to 100 letters"),
    "queue strange": ("queue", "'a b'", "queue must be 1 to 100 letters"),
    "queue long": ("queue", "repeat('x', 101)", "queue must be 1 to 100 letters"),
    "tenant long": ("tenant", "repeat('x', 201)", "tenant must be at most 200 bytes"),
    "idempotency_key long": ("idempotency_key", "repeat('x', 501)", "idempotency_key must be at most 500 bytes"),
    "unique_key long": ("unique_key", "repeat('x', 501)", "unique_key must be at most 500 bytes"),
    "a missing parent": ("depends_on", "'{4711}'", "depends_on names job 4711, which does not exist"),
    "a NULL parent": ("depends_on", "'{NULL}'", "depends_on must be a flat array of job ids"),
    "parents in rows": ("depends_on", "'{{1},{2}}'", "depends_on must be a flat array of job ids"),
    "priority 101": ("priority", "101", "priority must lie between -100 and 100"),
    "priority -101": ("priority", "-101", "priority must lie between -100 and 100"),
    "run_at infinity": ("run_at", "'infinity'", "run_at must lie in the years 2000 to 9999"),
    "run_at -infinity": ("run_at", "'-infinity'", "run_at must lie in the years 2000 to 9999"),
    "run_at 1999": ("run_at", "'1999-12-31 23:59:59+00'", "run_at must lie in the years 2000 to 9999"),
    "run_at 10000": ("run_at", "'10000-01-01 00:00+00'", "run_at must lie in the years 2000 to 9999"),
    "run_at 294276": ("run_at", "'294276-12-31 00:00+00'", "run_at must lie in the years 2000 to 9999"),
    "on_parent_failure": ("on_parent_failure", "'ignore'", "on_parent_failure must be cancel or run"),
    "max_attempts 0": ("max_attempts", "0", "max_attempts must be at least 1"),
    "max_crashes -1": ("max_crashes", "-1", "max_crashes must be at least 0"),
    "timeout 0": ("timeout", "'0'", "timeout must be over 0 and at most 30 days"),
    "timeout negative": ("timeout", "'-1 s'", "timeout must be over 0 and at most 30 days"),
    "timeout 31 days": ("timeout", "'31 days'", "timeout must be over 0 and at most 30 days"),
    "retry_base 0": ("retry_base", "'0'", "retry_base must be over 0 and at most retry_cap"),
    "retry_base 31 days": ("retry_base", "'31 days'", "retry_base must be over 0 and at most retry_cap and 30 days"),
    "retry_cap 31 days": ("retry_cap", "'31 days'", "retry_cap must be over 0 and at most 30 days"),
}
NAMELESS = {
    "kind missing": ("payload", "'{}'", "kind must be 1 to 100 letters"),
    "kind strange": ("kind", "'a b'", "kind must be 1 to 100 letters"),
    "kind empty": ("kind", "''", "kind must be 1 to 100 letters"),
    "kind long": ("kind", "repeat('x', 101)", "kind must be 1 to 100 letters"),
}


@pytest.mark.parametrize("case", BAD)
async def test_f57_a_bad_value_is_refused_by_column_and_rule(db, case):
    column, value, words = BAD[case]

    for kind in ("k", "undeclared"):
        error = await refused(db, f"INSERT INTO scheduler.jobs (kind, {column}) VALUES ('{kind}', {value})")
        assert words in error.message
        assert column == error.column_name
        assert error.hint


@pytest.mark.parametrize("case", NAMELESS)
async def test_a_job_without_a_proper_kind_is_refused(db, case):
    column, value, words = NAMELESS[case]

    error = await refused(db, f"INSERT INTO scheduler.jobs ({column}) VALUES ({value})")

    assert words in error.message
    assert error.column_name == "kind"


async def refused(db, statement):
    """Return the one error of a statement that leaves nothing behind, beside a good one that does."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await db.execute(statement)
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0
    assert await db.fetchval("SELECT count(*) FROM scheduler.dependencies") == 0
    assert await db.fetchval("SELECT count(*) FROM scheduler.idempotency_keys") == 0
    neighbour = await insert(db)
    assert await status(db, neighbour) == "PENDING"
    await db.execute("DELETE FROM scheduler.jobs_active WHERE id = $1", neighbour)
    assert caught.value.sqlstate == "23514", caught.value
    return caught.value


@pytest.mark.parametrize("payload", ['{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"a": NaN}', '{"a": Infinity}', "{", ""])
async def test_text_that_is_no_json_of_postgresql_is_refused_whole(db, payload):
    with pytest.raises(asyncpg.DataError):
        await insert(db, payload=payload)
    with pytest.raises(asyncpg.DataError):
        await db.fetchval("SELECT scheduler.submit('k', $1)", payload)

    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0


async def test_one_bad_row_of_a_statement_refuses_all_of_it(db):
    with pytest.raises(asyncpg.CheckViolationError, match="must be a JSON object"):
        await db.execute("INSERT INTO scheduler.jobs (kind, payload) VALUES ('k', '{}'), ('k', '[]'), ('k', '{}')")

    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0


async def test_the_largest_of_everything_is_taken(db):
    job_id = await insert(
        db,
        payload=json.dumps({"a": "x" * (262_144 - len('{"a": ""}'))}),
        metadata=json.dumps({"a": "x" * (16_384 - len('{"a": ""}'))}),
        tenant="x" * 200,
        idempotency_key="x" * 500,
        unique_key="y" * 500,
        queue="q" * 100,
        priority=100,
    )

    assert await status(db, job_id) == "PENDING"


async def test_the_row_gets_what_its_kind_declares(db, clock):
    declaration = {"kind": "mail", "queue": "mails", "priority": 3, "max_attempts": 7, "max_crashes": 1, "timeout": 9.5}
    await declare(db, declaration | {"retry_base": 2, "retry_cap": 30, "retry_jitter": False})

    job = await row(db, await insert(db, "mail"))

    assert (job["queue"], job["priority"], job["max_attempts"], job["max_crashes"]) == ("mails", 3, 7, 1)
    seconds = [job[name].total_seconds() for name in ("timeout", "retry_base", "retry_cap")]
    assert (seconds, job["retry_jitter"], job["payload"]) == ([9.5, 2, 30], False, "{}")
    assert job["submitted_at"] == job["run_at"] == await clock.now()


async def test_nothing_set_by_the_kind_overrules_the_row(db):
    job = await row(db, await insert(db, queue="mine", priority=-5, max_attempts=1, max_crashes=0))

    assert (job["queue"], job["priority"], job["max_attempts"], job["max_crashes"]) == ("mine", -5, 1, 0)


@pytest.mark.parametrize("option", ["satus", "id", "status"])
async def test_submit_refuses_an_option_that_does_not_exist(db, option):
    with pytest.raises(asyncpg.CheckViolationError, match=f"{option} is no option of submit"):
        await submit(db, "k", {}, **{option: 1})


async def test_submit_refuses_both_a_delay_and_a_time(db):
    with pytest.raises(asyncpg.CheckViolationError, match="delay contradicts run_at"):
        await submit(db, delay="5 s", run_at="2030-01-01 00:00Z")


async def test_submit_writes_what_an_insert_would(db, clock):
    parent = await insert(db)
    options = {"queue": "q", "priority": 2, "tenant": "t", "delay": "90 s", "depends_on": [parent], "unique_key": "u"}
    job = await row(db, await submit(db, "k", {"a": 1}, **options, timeout="5 s", metadata={"m": 1}))

    assert (job["queue"], job["priority"], job["tenant"], job["status"]) == ("q", 2, "t", "BLOCKED")
    assert (job["run_at"] - await clock.now()).total_seconds() == 90
    assert (job["payload"], job["metadata"], job["unique_key"]) == ('{"a": 1}', '{"m": 1}', "u")
    assert job["timeout"] == timedelta(seconds=5)


async def test_of_base_and_cap_the_one_given_bends_the_default_of_the_other(db):
    hours = await row(db, await insert(db, retry_base=timedelta(hours=2)))
    half = await row(db, await insert(db, retry_cap=timedelta(seconds=0.5)))

    assert (hours["retry_base"], hours["retry_cap"]) == (timedelta(hours=2), timedelta(hours=2))
    assert (half["retry_base"], half["retry_cap"]) == (timedelta(seconds=0.5), timedelta(seconds=0.5))


@pytest.mark.parametrize("kind", ["k", "undeclared"])
async def test_a_base_over_its_cap_is_refused(db, kind):
    error = await refused(
        db, f"INSERT INTO scheduler.jobs (kind, retry_base, retry_cap) VALUES ('{kind}', '2 s', '1 s')"
    )

    assert error.message == "retry_base must be over 0 and at most retry_cap and 30 days"


async def test_a_thousand_rows_go_in_with_one_statement(db):
    ids = await insert_many(db, 1000)

    assert len(set(ids)) == 1000
