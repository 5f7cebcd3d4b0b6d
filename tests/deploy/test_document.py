"""docs/deploy.md is compared with the code: settings, exit codes, numbers, files."""

import re

import click
from documents import DEPLOY, ROOT, table

from scheduler.settings import WorkerSettings
from worker.cli import command
from worker.listener import listen
from worker.runner import CONNECTIONS


def test_the_settings_are_those_of_the_worker_with_their_defaults():
    options = {
        option.envvar or f"SCHEDULER_{option.name.upper()}": option.default
        for option in command.params
        if isinstance(option, click.Option) and option.show_envvar
    }

    documented = {variable.strip("`"): default for variable, default, _ in table("variable")}

    assert documented.keys() == options.keys()
    for variable, default in options.items():
        if isinstance(default, int | float) or variable == "SCHEDULER_LOG":
            assert documented[variable] == str(default), variable
    assert WorkerSettings().lease.total_seconds() == options["SCHEDULER_LEASE"]
    assert WorkerSettings().grace.total_seconds() == options["SCHEDULER_GRACE"]


def test_the_numbers_are_those_of_the_code():
    environment = (ROOT / "migrations" / "env.py").read_text()

    assert f"A worker holds up to {CONNECTIONS + 2}: {CONNECTIONS} for claims" in DEPLOY
    assert 'LOCK_TIMEOUT = "200ms"' in environment
    assert "TRIES = 100\n" in environment
    assert WorkerSettings().poll.total_seconds() * 1.2 == 1.2
    assert listen.__doc__


def test_every_file_that_is_pointed_to_is_there():
    for target in re.findall(r"\]\(([^)#:]+)\)", DEPLOY):
        assert (ROOT / "docs" / target).resolve().exists(), target
