"""Fixtures of the commands: run in this process, or as it is installed."""

import os
import subprocess

import pytest

from .commands import PROGRAM, Answer, invoke
from .terminal import Terminal


def environment_of_users():
    return {name: value for name, value in os.environ.items() if not name.startswith("SCHEDULER_")}


@pytest.fixture
def run(request):
    """Run the command in this process, on this test's database, at 80 columns."""

    def run(*arguments, stdin="", **environment):
        dsn = environment.pop("SCHEDULER_DSN", None) or request.getfixturevalue("dsn")
        return invoke(*arguments, stdin=stdin, SCHEDULER_DSN=dsn, **environment)

    return run


@pytest.fixture
def installed(request, tmp_path):
    """Run the installed command, in a folder of its own."""

    def run(*arguments, **environment):
        dsn = {} if "SCHEDULER_DSN" in environment else {"SCHEDULER_DSN": request.getfixturevalue("dsn")}
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)],
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env=environment_of_users() | {"COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1"} | dsn | environment,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def submit(run):
    def submit(*arguments, **options):
        answer = run("submit", *arguments, **options)
        assert answer.code == 0, answer
        return int(answer.out)

    return submit


@pytest.fixture
def terminal(dsn):
    """Start the installed command in a terminal."""
    opened = []

    def start(*arguments, **options):
        environment = environment_of_users() | {"SCHEDULER_DSN": dsn}
        environment.pop("COLUMNS", None)
        opened.append(Terminal(*arguments, environment=environment, **options))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()
