"""One table holds the state machine; the schema and the documents are compared with it."""

import re
from pathlib import Path

from scheduler.states import ACTIVE, FINISHED, TRANSITIONS, Status

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "migrations" / "versions" / "0001_tables.py").read_text()


def words(pattern: str) -> set[str]:
    return set(re.findall(r"'(\w+)'", re.search(pattern, TABLES, re.DOTALL)[1]))


def test_the_type_and_the_partitions_have_the_statuses_of_the_table():
    assert words(r"job_status AS ENUM\s*\((.*?)\)") == set(Status)
    assert words(r"jobs_active PARTITION OF scheduler.jobs\s+FOR VALUES IN \((.*?)\)") == ACTIVE
    assert words(r"jobs_finished PARTITION OF scheduler.jobs\s+FOR VALUES IN \((.*?)\)") == FINISHED


def test_the_documented_state_machine_is_the_one_in_the_code():
    documented = {}
    page = (ROOT / "docs" / "states.md").read_text()
    for verb, status, to in re.findall(r"^\| (\w+) \| ([A-Z_]+) \| (.*) \|$", page, re.MULTILINE):
        documented.setdefault(verb, {})[Status(status)] = {Status(name) for name in to.split(", ") if name != "gone"}

    assert documented == TRANSITIONS


JOBS = re.search(r"CREATE TABLE scheduler.jobs \((.*?)\) PARTITION", TABLES, re.DOTALL)[1]
COLUMNS = set(re.findall(r"^  (\w+) [a-z]", JOBS, re.MULTILINE))
LEFT_BEHIND = {"worker_id", "lease_expires_at", "unmet"}  # of a job that has ended


def test_a_job_that_completes_takes_every_column_with_it():
    body = (ROOT / "scheduler" / "sql" / "settle.sql").read_text()

    moved = set(re.findall(r"\w+", re.search(r"INSERT INTO scheduler.jobs_finished \((.*?)\)", body, re.DOTALL)[1]))

    assert len(COLUMNS) > 30
    assert COLUMNS - moved == LEFT_BEHIND | {"error", "cancelled_by"}
