"""The promises made to type checkers, checked by running them on typing_sample.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SAMPLE = Path(__file__).with_name("typing_sample.py")
PROJECT = SAMPLE.parents[2]


def run(*command, cwd):
    python = [sys.executable, "-m", *map(str, command)]
    return subprocess.run(python, cwd=cwd, capture_output=True, text=True, check=False)


def run_mypy(sample, cache):
    return run("mypy", "--strict", "--cache-dir", cache, sample, cwd=PROJECT)


def run_pyright(sample, folder):
    (folder / "sample.py").write_text(sample.read_text())
    config = folder / "pyrightconfig.json"
    settings = {"enableTypeIgnoreComments": False, "reportUnnecessaryTypeIgnoreComment": True, "pythonVersion": "3.11"}
    config.write_text(json.dumps({"include": ["sample.py"], "extraPaths": [str(PROJECT)], **settings}))
    done = run("pyright", "--project", config, "--pythonpath", sys.executable, "--outputjson", cwd=PROJECT)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout).strip()[-300:]}")
    assert report["summary"]["filesAnalyzed"] == 1
    return [f"{entry['range']['start']['line'] + 1}: {entry['message']}" for entry in report["generalDiagnostics"]]


def without_ignores(tmp_path, mark):
    copy = tmp_path / "sample_without_ignores.py"
    copy.write_text("\n".join(line.partition(mark)[0] for line in SAMPLE.read_text().splitlines()) + "\n")
    return copy


def test_mypy_strict_accepts_job_classes_and_their_use(tmp_path):
    done = run_mypy(SAMPLE, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict_sees_every_mistake_of_the_sample(tmp_path):
    mistakes = SAMPLE.read_text().count("# type: ignore")

    done = run_mypy(without_ignores(tmp_path, "  # type: ignore"), tmp_path)

    assert done.stdout.count(": error:") == mistakes, done.stdout + done.stderr


def test_pyright_strict_accepts_job_classes_and_their_use(tmp_path):
    assert run_pyright(SAMPLE, tmp_path) == []


def test_pyright_strict_sees_every_mistake_of_the_sample(tmp_path):
    lines = [n for n, line in enumerate(SAMPLE.read_text().splitlines(), 1) if "# pyright: ignore" in line]

    errors = run_pyright(without_ignores(tmp_path, "  # pyright: ignore"), tmp_path)

    assert sorted({int(error.partition(":")[0]) for error in errors}) == lines, errors
