"""`make chaos`, for half a minute: the engine survives it, and the same with its fence taken out does not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .test_the_checker_objects import altered

TESTS = Path(__file__).parents[1]


def chaos(*options: str) -> tuple[int, str]:
    """Run the command; return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *options],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout + done.stderr
    shutil.rmtree(re.search(r"chaos in (\S+):", told)[1], ignore_errors=True)
    return done.returncode, told


@pytest.mark.slow
def test_f72_half_a_minute_of_faults_costs_nothing_that_was_promised():
    code, told = chaos("--minutes", "0.5", "--seed", "7")

    assert code == 0, told
    assert "every invariant holds" in told
    assert re.search(r"PostgreSQL \d+.*, Python 3\.\d+.*PgBouncer", told)
    assert re.search(r"lost: 0, stuck: 0", told)
    assert int(re.search(r"of which (\d+) hit", told)[1]) > 0
    assert int(re.search(r"jobs: ([\d,]+)", told)[1].replace(",", "")) > 0
    assert int(re.search(r"schedules: 6, ([\d,]+) jobs of fires", told)[1].replace(",", "")) > 0
    assert int(re.search(r"batches: \d+ \(COMPLETED (\d+)", told)[1]) > 0


@pytest.mark.slow
def test_without_its_fence_the_engine_is_found_out(tmp_path):
    sabotage = tmp_path / "sabotage.sql"
    sabotage.write_text(altered("settle", ("j.fence = s.fence AND j.worker_id = p_worker", "j.worker_id IS NOT NULL")))

    code, told = chaos("--minutes", "0.25", "--seed", "7", "--sabotage", str(sabotage))

    assert code == 1, told
    assert "I3 does not hold" in told, told
    assert re.search(r"stale writes: [\d,]+ refused, [1-9]", told), told
