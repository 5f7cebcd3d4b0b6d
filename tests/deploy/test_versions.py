"""Two versions at once: workers of this one on the schema of the next, before, during and after its migration."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from witness import ended, insert, until

from scheduler.schema import SUPPORTED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
THIS = SUPPORTED[-1]
NEXT, AFTER_NEXT = (f"{int(THIS) + ahead:04}" for ahead in (1, 2))
REVISION = f"""
from alembic import op

revision, down_revision = "{NEXT}", "{THIS}"

def upgrade():
    op.get_context().opts["script"]("ALTER TABLE scheduler.jobs ADD COLUMN of_the_next_version int")

def downgrade():
    op.get_context().opts["script"]("ALTER TABLE scheduler.jobs DROP COLUMN of_the_next_version")
"""
MAIN = "import sys; from {module} import main; sys.argv[0] = 'program'; main()"


@pytest.fixture(scope="module")
def next_version(tmp_path_factory):
    """A checkout of the version to come: one more revision, and a function with another text."""
    folder = tmp_path_factory.mktemp("next")
    for part in ("scheduler", "worker", "migrations"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "migrations" / "versions" / f"{NEXT}_next.py").write_text(REVISION)
    schema = folder / "scheduler" / "schema.py"
    schema.write_text(re.sub(r"^SUPPORTED = .*$", f'SUPPORTED = ("{NEXT}",)', schema.read_text(), flags=re.MULTILINE))
    function = folder / "scheduler" / "sql" / "promote.sql"
    function.write_text(function.read_text().replace("BEGIN\n", "BEGIN\n  -- of the next version\n", 1))
    return folder


@pytest.fixture
def run(dsn):
    """Run a program of this version, or of the one in a folder; return its exit code, stdout and stderr."""

    def run(*words, of=ROOT, module="scheduler.cli"):
        environment = os.environ | {"PYTHONPATH": str(of), "SCHEDULER_DSN": dsn}
        program = [sys.executable, "-c", MAIN.format(module=module), *words]
        done = subprocess.run(
            program, cwd=of, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        return done.returncode, done.stdout, done.stderr

    return run


async def test_f64_this_version_goes_on_while_the_next_one_migrates(db, connect, launch, run, next_version):
    waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query ~ 'of_the_next' AND wait_event_type = 'Lock')"
    workers = [await launch(lease=30).ready() for _ in range(2)]
    submitter, ids, enough = await connect(), [], asyncio.Event()

    async def keep_submitting():
        while not enough.is_set():
            ids.append(await insert(submitter, "Echo"))
            await asyncio.sleep(0.005)  # 200 a second at most

    submitting = asyncio.create_task(keep_submitting())
    await until(lambda: len(ids) > 50, "jobs should be submitted before")
    reader = await connect()
    async with reader.transaction():
        await reader.execute("LOCK TABLE scheduler.jobs IN ACCESS SHARE MODE")
        migrating = asyncio.create_task(asyncio.to_thread(run, "migrate", of=next_version))
        await until(lambda: db.fetchval(waits), "the migration should wait for the reader", 90)
        before = len(ids)
        await until(lambda: len(ids) > before + 20, "jobs should be submitted meanwhile")
    code, _, error = await migrating
    after = len(ids)
    await until(lambda: len(ids) > after + 50, "jobs should be submitted after it")
    enough.set()
    await submitting

    assert (code, error) == (0, "")
    found = await ended(db, *ids, seconds=60)
    assert Counter((job["status"], job["attempt"]) for job in found.values()) == {("COMPLETED", 1): len(ids)}
    for worker in workers:
        assert "Traceback" not in worker.log
    restarted = await launch().ready()
    for worker in workers:
        worker.send(15)
        assert await worker.exits() == 0
    assert (await ended(db, await insert(db, "Echo")))["status"] == "COMPLETED"
    assert "WARNING" not in restarted.log


async def test_a_schema_one_ahead_is_worked_on_and_left_as_it_is(db, run, next_version):
    assert run("migrate", of=next_version)[0] == 0

    assert run("submit", "Echo")[:2] == (0, "1\n")
    code, told, error = run("migrate")

    assert (code, error) == (0, "")
    assert told == f"the schema is at revision {NEXT}, one ahead of this version, which works on it: left as it is\n"
    assert await db.fetchval("SELECT scheduler.schema_version()") == NEXT
    assert "of the next version" in await db.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'promote'")


async def test_a_schema_two_ahead_is_refused(db, run, launch):
    await db.execute("UPDATE scheduler.alembic_version SET version_num = $1", AFTER_NEXT)

    refusals = [run("jobs"), run("migrate")]
    worker = launch()

    assert await worker.exits() == 5
    assert worker.log.count("\n") == 1
    for code, out, error in [*refusals, (5, "", worker.log)]:
        assert (code, out) == (5, "")
        assert "install a newer leasework on this host" in error


def test_the_next_version_is_refused_before_its_migration(run, next_version):
    code, out, error = run("jobs", of=next_version)

    assert (code, out) == (5, "")
    assert error.strip().endswith("run `scheduler migrate`")


async def test_a_schema_is_taken_back_and_the_older_version_puts_its_functions_back(db, run, next_version, launch):
    job_id = await insert(db, "Echo", {"value": 1})
    assert run("migrate", of=next_version)[0] == 0

    down = run("migrate", "--to", THIS, of=next_version)
    again = run("migrate")

    assert down[:2] == (0, f"the schema is now at revision {THIS}\n")
    assert "now run `scheduler migrate` of the version" in down[2]
    assert again == (0, f"the schema was already at revision {THIS}\n", "")
    assert "of the next version" not in await db.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'promote'")
    columns = "SELECT count(*) FROM pg_attribute WHERE attname = 'of_the_next_version'"
    assert await db.fetchval(columns) == 0
    await launch().ready()
    assert (await ended(db, job_id))["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("revision", "code", "words"),
    [
        (AFTER_NEXT, 5, f"this version does not know the way to revision {AFTER_NEXT}"),
        ("base", 2, "is not a valid integer"),
    ],
)
async def test_a_revision_that_is_none_is_refused(db, run, revision, code, words):
    answer = run("migrate", "--to", revision)

    assert answer[:2] == (code, "")
    assert words in answer[2]
    assert await db.fetchval("SELECT scheduler.schema_version()") == THIS
