"""Files and packages of other people that are called like ours, and scripts that child processes cannot import."""

import shlex
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from newcomer import User

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HEAVY = """
    import worker
    from scheduler import CpuBoundJob

    class Heavy(CpuBoundJob, kind="heavy"):
        def run(self, ctx):
            return worker.__name__ + " of leasework" if hasattr(worker, "complaint") else "theirs"
"""
THEIRS = "raise SystemExit('the file of the user was imported')\n"


@pytest.fixture
def user(tmp_path, dsn):
    """A user with a CpuBoundJob in jobs.py."""
    user = User(tmp_path / "home", dsn)
    user.writes("jobs.py", HEAVY)
    return user


# Files of the user.


@pytest.mark.parametrize(
    ("name", "on_the_path"),
    [("worker.py", False), ("scheduler/__init__.py", False), ("worker/__init__.py", True), ("scheduler.py", True)],
)
def test_a_file_called_like_ours_shadows_nothing_in_worker_and_child(user, name, on_the_path):
    user.writes(name, THEIRS)
    path = {"PYTHONPATH": str(user.folder)} if on_the_path else {}

    with user.runs("scheduler-worker", "--app", "jobs", **path):
        answer = user.run("scheduler", "submit", "heavy", "--wait", 30, **path)

    assert answer.out.splitlines()[1:] == ['"worker of leasework"'], answer


def test_a_script_that_runs_a_worker_and_its_children_are_not_misled_by_the_folder_it_is_run_in(user):
    user.writes("worker.py", THEIRS)
    user.writes("scheduler.py", THEIRS)
    user.writes("bin/jobs.py", HEAVY)
    user.writes("bin/main.py", """
        import asyncio
        from jobs import Heavy
        from scheduler import Scheduler
        from worker import Worker
        async def main():
            async with Worker(), Scheduler.connect() as scheduler:
                print(await (await scheduler.submit(Heavy())).result())
        if __name__ == "__main__":
            asyncio.run(main())
    """)  # fmt: skip

    answer = user.run("python", "bin/main.py")

    assert answer.out == "worker of leasework\n", answer


@pytest.mark.parametrize("name", ["worker", "scheduler"])
def test_beside_a_script_a_file_called_like_ours_is_what_python_names(user, name):
    """Python puts the folder of a script first: nothing of ours runs that could say more."""
    theirs = user.writes(f"{name}.py", "")
    user.writes("main.py", f"from {name} import {name.title()}\n")

    answer = user.run("python", "main.py")

    error = f"ImportError: cannot import name '{name.title()}' from '{name}' ({theirs})"
    assert answer.err.splitlines()[-1].startswith(error)


# Scripts and children.

GUARD = 'put what starts it under `if __name__ == "__main__":`'
UNGUARDED = """
    import asyncio
    from datetime import timedelta
    from scheduler import CpuBoundJob, Retry, Scheduler
    from worker import Worker

    class Mine(CpuBoundJob, retry=Retry(max_attempts=1)):
        def run(self, ctx): ...

    async def main():
        async with Worker():
            await asyncio.sleep(0)

    {guard}asyncio.run(main())
"""


def test_a_cpu_bound_job_of_the_script_that_is_run_is_refused_and_both_ways_out_work(user):
    user.writes("mine.py", UNGUARDED.format(guard=""))
    refused = user.run("python", "mine.py").err.splitlines()[-1]

    user.writes("mine.py", UNGUARDED.format(guard="if __name__ == '__main__': "))
    with user.runs("scheduler-worker", "--app", "mine"):
        as_app = user.run("scheduler", "submit", "Mine", "--wait", 30)
    user.writes("main.py", "import mine, asyncio\nasyncio.run(mine.main())\n")
    in_a_module = user.run("python", "main.py")

    assert refused == (
        "scheduler.errors.ConfigurationError: Mine: a CpuBoundJob is defined in the script that is run: move it to a"
        " module, so that a child process can import it, or run the script as --app of scheduler-worker with what it"
        ' starts under `if __name__ == "__main__":`'
    )
    assert as_app.code == 0, as_app
    assert in_a_module.code == 0, in_a_module


def test_a_module_that_starts_a_worker_when_it_is_imported_is_told_the_guard(user):
    user.writes("mine.py", UNGUARDED.format(guard=""))

    answer = user.run("scheduler-worker", "--app", "mine")

    assert answer.code == 3
    assert answer.sentence == (
        f"scheduler-worker: --app mine: a Worker is started while mine is imported for its job classes: {GUARD}"
    )


async def test_a_child_that_would_start_a_worker_of_its_own_fails_its_job_with_the_guard(user, db):
    """The script is guarded, what it imports is not: each child would be a worker, with children."""
    user.writes("mine.py", UNGUARDED.format(guard="if 'main.py' not in __import__('sys').argv[0]: "))
    user.writes("main.py", """
        import asyncio
        from mine import Mine
        from scheduler import Scheduler
        from worker import Worker
        async def main():
            async with Worker(), Scheduler.connect() as scheduler:
                await (await scheduler.submit(Mine())).result()
        if __name__ == "__main__":
            asyncio.run(main())
    """)  # fmt: skip

    answer = user.run("python", "main.py")

    assert answer.err.splitlines()[-1].endswith(
        f"ConfigurationError: a Worker is started while mine is imported for its job classes: {GUARD}"
    )
    assert await db.fetchval("SELECT count(*) FROM scheduler.workers") == 0


# Another package called scheduler.


def wheel_of(folder, name, version, files):
    """Make the wheel of somebody else's package."""
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,{len(text)}\n" for path, text in files.items()) + f"{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(inside, text)
    return path


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with our wheel, and that of another package called scheduler: as on PyPI, it has a class Scheduler."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    theirs = {"scheduler/__init__.py": "class Scheduler: ...\n", "scheduler/py.typed": ""}
    wheel_of(folder, "scheduler", "0.8.11", theirs)
    return folder


@pytest.fixture
def installed(tmp_path, dsn, dist):
    """A user with an environment of their own, in which `pip` finds those two wheels and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # what we depend on, and pip
    user = User(tmp_path / "home", dsn, programs)
    user.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(dist), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    user.writes("jobs.py", HEAVY)
    return user


def pip(user, *arguments):
    answer = user.run("python", "-m", "pip", "-q", *arguments)
    assert answer.code == 0, answer


def install_ours(user):
    pip(user, "install", "--no-deps", "--ignore-installed", "leasework")


@pytest.mark.slow
def test_another_package_called_scheduler_is_noticed_and_the_commands_that_are_told_mend_it(installed):
    install_ours(installed)
    pip(installed, "install", "scheduler")

    answers = [installed.run("scheduler", "jobs"), installed.run("scheduler-worker", "--app", "jobs")]
    in_code = installed.run("python", "-c", "from worker import Worker")
    connected = installed.run("python", "-c", "from scheduler.client import Scheduler; Scheduler.connect()")

    assert [answer.code for answer in answers] == [3, 3]
    replaced = Path("scheduler") / "__init__.py"
    for answer in answers:
        assert f"another package has replaced or removed {installed.programs.parent}" in answer.sentence
        assert f"{replaced}, as the one called scheduler does: run `" in answer.sentence
    for answer in (in_code, connected):
        assert answers[0].sentence.removeprefix("scheduler: ") in answer.err.splitlines()[-1]

    for command in answers[0].sentence.split("`")[1::2]:
        python, *arguments = shlex.split(command)
        assert Path(python).parent == installed.programs
        assert installed.run("python", *arguments).code == 0
    assert installed.run("scheduler", "jobs").err == "scheduler: there are no jobs\n"


@pytest.mark.slow
def test_installed_over_another_package_ours_works_until_that_is_removed(installed):
    pip(installed, "install", "scheduler")
    install_ours(installed)
    both = installed.run("scheduler", "jobs")

    pip(installed, "uninstall", "-y", "scheduler")
    one = installed.run("scheduler", "jobs")

    assert both.err == "scheduler: there are no jobs\n"
    assert one.code == 3
    assert "another package has replaced or removed " in one.sentence
