"""docker-compose.yml is read, and its commands are run; there is no Docker here to build or start it."""

import re
import subprocess
import sys
from pathlib import Path

import click
from documents import ROOT
from ruamel.yaml import YAML

from scheduler.settings import WorkerSettings, dsn_from
from worker.cli import command

FILE = ROOT / "docker-compose.yml"
COMPOSE = YAML(typ="safe").load(FILE)
SERVICES = COMPOSE["services"]
AFTER_GRACE = 5  # seconds in which a worker gives back what has not finished


def filled_in(value):
    """Put defaults in the place of ${NAME:-default}."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_the_file_follows_the_compose_specification():
    check = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", FILE]

    done = subprocess.run(check, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_comes_after_a_healthy_server_and_before_the_workers():
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["worker"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert SERVICES["migrate"]["command"] == ["scheduler", "migrate"]
    assert SERVICES["migrate"]["restart"] == "no"
    assert SERVICES["postgres"]["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]


def test_workers_scale_and_may_drain():
    worker = SERVICES["worker"]

    assert worker["deploy"]["replicas"] > 1
    assert not {"container_name", "hostname", "ports"} & worker.keys()  # there can be only one of each
    grace = int(worker["environment"]["SCHEDULER_GRACE"])
    assert grace == WorkerSettings().grace.total_seconds()
    assert int(worker["stop_grace_period"].removesuffix("s")) > grace + AFTER_GRACE


def test_the_environment_is_one_that_the_commands_read():
    known = {
        option.envvar or f"SCHEDULER_{option.name.upper()}"
        for option in command.params
        if isinstance(option, click.Option)
    }

    for name in ("migrate", "worker"):
        environment = SERVICES[name]["environment"]
        assert environment.keys() <= known
        assert dsn_from(filled_in(environment["SCHEDULER_DSN"])) == (
            "postgresql://scheduler:for-trying-only@postgres:5432/scheduler"
        )


def test_the_server_is_of_a_version_that_is_tested():
    image, major = SERVICES["postgres"]["image"].split(":")

    assert image == "postgres"
    assert re.search(rf"Tested on PostgreSQL [^.]*\b{major}\b", (ROOT / "README.md").read_text())


def test_the_job_modules_that_are_mounted_are_there():
    folder, target, mode = filled_in(SERVICES["worker"]["volumes"][0]).split(":")

    assert (ROOT / folder / f"{filled_in(SERVICES['worker']['environment']['SCHEDULER_APP'])}.py").exists()
    assert (target, mode) == ("/app", "ro")
    assert f"WORKDIR {target}\n" in (ROOT / "Dockerfile").read_text()


def test_workers_have_the_healthcheck_of_the_image_and_what_is_no_worker_has_none():
    assert "healthcheck" not in SERVICES["worker"]
    assert SERVICES["migrate"]["healthcheck"] == {"disable": True}
    assert "SCHEDULER_HTTP" not in SERVICES["worker"]["environment"]
