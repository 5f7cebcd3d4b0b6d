"""The contract for other languages says what the database does: its reference is current, and its SQL runs."""

import importlib.util
import json
import re
import sys

import asyncpg
import pytest
from programs import ROOT

SPEC = importlib.util.spec_from_file_location("sql_contract", ROOT / "docs" / "sql_contract.py")
sql_contract = sys.modules["sql_contract"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sql_contract)

PAGE = sql_contract.PAGE.read_text()
BY_HAND = PAGE.partition(sql_contract.MARK)[0]
STATEMENTS = [
    statement
    for block in re.findall(r"^```sql\n(.*?)^```", BY_HAND, re.MULTILINE | re.DOTALL)
    for statement in re.split(r";[^\n]*\n", block)
    if statement.strip()
]


async def test_the_reference_is_what_a_fresh_database_says(dsn):
    written = sql_contract.page(await sql_contract.reference(dsn))

    assert written == PAGE, "make contract writes the page anew"


async def test_every_table_and_every_column_has_a_comment(db):
    without = await db.fetch("""
        SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'scheduler'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND c.relname <> 'alembic_version' AND a.attnum > 0 AND NOT a.attisdropped
          AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid, 'pg_class') IS NULL)""")

    assert [tuple(row) for row in without] == []


def test_every_verb_that_the_introduction_names_is_in_the_reference():
    verbs = set(re.findall(r"^#### (\w+)$", PAGE, re.MULTILINE))

    named = set(re.findall(r"scheduler\.(\w+)\(", BY_HAND)) | set(re.findall(r"`(\w+)\([^`]*\)`", BY_HAND))

    assert len(named) > 10
    assert named <= verbs


async def test_the_sql_of_the_introduction_takes_a_job_from_its_insert_to_its_end(db):
    said = {}
    for statement in STATEMENTS:
        rows = await db.fetch(statement)
        said.setdefault(re.search(r"scheduler\.(\w+)|BEGIN|COMMIT", statement)[1], []).append(rows)

    inserted, taken = said["jobs"]
    assert ([row["id"] for row in inserted], taken) == ([1], [])
    assert [rows[0]["submit"] for rows in said["submit"]] == [2, 2]
    for rows in (said["claim"][0], said["claimed_by"][0]):
        assert (rows[0]["id"], rows[0]["fence"]) == (1, 4294967297)
    assert said["claim"][0][-1]["id"] is None
    assert json.loads(said["renew"][0][0]["renew"]) == {"lost": [], "busy": [], "cancel": []}
    assert json.loads(said["settle"][0][0]["settle"]) == {"lost": [], "busy": [], "parents": [1]}
    assert await db.fetch("SELECT id, status::text FROM scheduler.jobs ORDER BY id") == [
        (1, "COMPLETED"),
        (2, "DELAYED"),
    ]


@pytest.mark.parametrize(
    ("statement", "state", "column"),
    [
        ("INSERT INTO scheduler.jobs (kind, priority) VALUES ('k', 1000)", "23514", "priority"),
        ("INSERT INTO scheduler.jobs (kind, depends_on) VALUES ('k', '{99}')", "23514", "depends_on"),
        ("INSERT INTO scheduler.jobs (kind, attempt) VALUES ('k', 1)", "23514", "attempt"),
        ("SELECT scheduler.submit('k', '{}', '{\"colour\": 1}')", "23514", "colour"),
        ("INSERT INTO scheduler.jobs (kind, unique_key) VALUES ('k', 'u'), ('k', 'u')", "23505", None),
        ("INSERT INTO scheduler.jobs (kind, run_at) VALUES ('k', 'soon')", "22007", None),
        ("INSERT INTO scheduler.jobs (kind, payload) VALUES ('k', '{\"a\": \"\\u0000\"}')", "22P05", None),
        ("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT scheduler.settle(gen_random_uuid(), '[]')", "25000", None),
        ("SET ROLE scheduler_submitter; SELECT scheduler.promote()", "42501", None),
        (
            "SET ROLE scheduler_submitter; INSERT INTO scheduler.jobs (kind, status) VALUES ('k', 'DELAYED')",
            "42501",
            None,
        ),
    ],
)
async def test_a_refusal_has_the_sqlstate_that_the_contract_names(db, statement, state, column):
    with pytest.raises(asyncpg.PostgresError) as caught:
        await db.execute(statement)

    assert (caught.value.sqlstate, caught.value.column_name if column else None) == (state, column)
    assert f"| {state} |" in BY_HAND or f"| {state[:2]}xxx |" in BY_HAND
    assert not column or caught.value.hint
