"""The wheel carries all that it needs: installed alone, from nowhere near a checkout, it migrates a database."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MIGRATE = """
import asyncio, sys, scheduler
from scheduler.schema import migrate, migrations_folder
assert scheduler.__file__.startswith(sys.argv[1]), scheduler.__file__
assert str(migrations_folder()).startswith(sys.argv[1]), migrations_folder()
asyncio.run(migrate(sys.argv[2]))
"""


def run(*words: str, **environment: str) -> None:
    subprocess.run(words, check=True, cwd="/", capture_output=True, env=os.environ | environment)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the wheel in it and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = (folder / "dist").glob("leasework-*.whl")
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        "--target",
        str(folder / "site"),
        str(wheel),
    )
    return folder / "site"


async def test_the_installed_wheel_migrates_a_database(installed, empty_dsn, connect):
    run(sys.executable, "-P", "-c", MIGRATE, str(installed), empty_dsn, PYTHONPATH=str(installed))

    db = await connect(empty_dsn)
    assert await db.fetchval("SELECT scheduler.schema_version()") == "0002"


def test_the_wheel_is_typed_and_has_every_sql_file_and_migration(installed):
    inside = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}

    for path in [*ROOT.glob("scheduler/sql/*.sql"), *ROOT.glob("scheduler/*.py"), *ROOT.glob("worker/*.py")]:
        assert path.relative_to(ROOT).as_posix() in inside
    for path in ROOT.glob("migrations/**/*.py"):
        assert f"scheduler/{path.relative_to(ROOT).as_posix()}" in inside
    assert {"scheduler/py.typed", "worker/py.typed"} <= inside
