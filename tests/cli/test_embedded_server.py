"""The commands of the embedded database."""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from scheduler import embedded

from .commands import UNREACHABLE, invoke


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the embedded PostgreSQL needs Linux or macOS")
def test_the_embedded_database_is_started_used_and_stopped(installed):
    folder = Path(tempfile.mkdtemp(prefix="leasework-")).resolve()
    folder.chmod(0o755)
    there = {"SCHEDULER_DSN": f"embedded:{folder / 'db'}"}
    try:
        down = installed("db", "url", **there)
        started = installed("db", "start", "--at", folder / "db", SCHEDULER_DSN="postgresql://elsewhere/x")
        url = installed("db", "url", **there).out
        migrated = installed("migrate", **there)
        submitted = installed("submit", "k", **there)
        asked = installed("db", "psql", "-Atc", "SELECT count(*) FROM scheduler.jobs", **there)
        failed = installed("db", "psql", "--dsn", there["SCHEDULER_DSN"], "-c", "SELECT 1/0", SCHEDULER_DSN="")
        stopped, again = (installed("db", "stop", **there) for _ in range(2))
    finally:
        embedded.stop(there["SCHEDULER_DSN"])
        shutil.rmtree(folder)

    assert (down.code, down.out) == (3, "")
    assert "scheduler db start" in down.err
    assert started.out == f"PostgreSQL runs in {folder / 'db'} until `scheduler db stop`\n"
    assert re.fullmatch(r"postgresql://\w+:\w+@127\.0\.0\.1:\d+/\w+\n", url)
    assert (migrated.code, migrated.err) == (0, "")
    assert submitted.out == "1\n"
    assert (asked.code, asked.out) == (0, "1\n")
    assert (failed.code, failed.err) == (1, "ERROR:  division by zero\n")
    assert stopped.out == f"PostgreSQL in {folder / 'db'} was stopped\n"
    assert again.out == f"PostgreSQL in {folder / 'db'} did not run\n"


def test_another_database_is_not_started_or_stopped():
    answer = invoke("db", "stop", "--dsn", UNREACHABLE)

    assert answer.code == 3
    assert "not the embedded PostgreSQL" in answer.err
    assert "hush" not in answer.err
