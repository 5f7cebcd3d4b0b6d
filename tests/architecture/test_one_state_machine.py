"""One table holds the state machine; the schema and the documents are compared with it."""

import re
from pathlib import Path

from scheduler.states import ACTIVE, FINISHED, Status, transitions_markdown

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "migrations" / "versions" / "0001_tables.py").read_text()


def words(pattern: str) -> set[str]:
    return set(re.findall(r"'(\w+)'", re.search(pattern, TABLES, re.S)[1]))


def test_the_type_and_the_partitions_have_the_statuses_of_the_table():
    assert words(r"job_status AS ENUM\s*\((.*?)\)") == set(Status)
    assert words(r"jobs_active PARTITION OF scheduler.jobs\s+FOR VALUES IN \((.*?)\)") == ACTIVE
    assert words(r"jobs_finished PARTITION OF scheduler.jobs\s+FOR VALUES IN \((.*?)\)") == FINISHED


def test_the_documented_state_machine_is_the_one_in_the_code():
    assert transitions_markdown() in (ROOT / "docs" / "states.md").read_text()
