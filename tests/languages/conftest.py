"""Programs in other languages, and workers in two: whatever was started is ended."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import EXAMPLES, WORKER_TESTS, Program, tool
from witness import Gate


@pytest.fixture(scope="session")
def node_example(tmp_path_factory):
    """A copy of examples/node in which `npm install` was run, one for all processes of this run."""
    tool("node")
    npm = tool("npm")
    shared = tmp_path_factory.getbasetemp()
    shared = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "node"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "node_modules" / "pg").exists():
            shutil.rmtree(shared, ignore_errors=True)
            shutil.copytree(EXAMPLES / "node", shared, ignore=shutil.ignore_patterns("node_modules"))
            words = [npm, "install", "--no-fund", "--no-audit"]
            done = subprocess.run(words, cwd=shared, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"npm install failed: {done.stderr.strip().splitlines()[-1:]}")
    return shared


@pytest.fixture
def environment(dsn):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SCHEDULER_", "PG"))}
    return {**clean, "SCHEDULER_DSN": dsn}


@pytest.fixture
def begin(environment, tmp_path):
    """Start programs with the database of this test in their environment."""
    started = []

    def begin(words, folder, **more):
        log = tmp_path / f"program-{len(started)}.log"
        started.append(Program(words, folder, {**environment, **more}, log))
        return started[-1]

    yield begin
    for program in started:
        program.end()


@pytest.fixture
def launch(request, begin):
    """Start a worker, in Python or in Node, which runs the same kinds; numbers are seconds."""

    def launch(language, *, lease=30, grace=5, address=None):
        more = {"SCHEDULER_LEASE": str(lease), "SCHEDULER_GRACE": str(grace)}
        if address:
            more["SCHEDULER_DSN"] = address
        if language == "node":
            folder = request.getfixturevalue("node_example")
            return begin([tool("node"), "worker.mjs", Path(__file__).with_name("jobs.mjs")], folder, **more)
        command = Path(sys.executable).with_name("scheduler-worker")
        words = [command, "--app", "jobs", "--async", "10", "--threads", "1", "--processes", "0"]
        return begin([*words, "--lease", str(lease), "--grace", str(grace)], WORKER_TESTS, **more)

    return launch


@pytest.fixture
def gate(tmp_path):
    """Make gates, by name; all are open at the end, so that no handler waits for ever."""
    made = []

    def gate(name="gate"):
        made.append(Gate(tmp_path / name))
        return made[-1]

    yield gate
    for one in made:
        one.open()
