"""The lines of the Dockerfile are run in a fresh folder, with its context and nothing else; there is no Docker here."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from documents import ROOT
from witness import ended, insert, until

TEXT = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
LINES = [tuple(line.split(None, 1)) for line in TEXT.splitlines() if line and not line.startswith("#")]
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def test_the_image_runs_the_worker_itself_and_not_as_root():
    final = dict(LINES[[name for name, _ in LINES].index("FROM", 1) :])

    assert json.loads(final["CMD"]) == ["scheduler-worker"]  # the exec form: no shell between it and SIGTERM
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final["USER"])  # numbers, which an orchestrator can check
    assert "PYTHONUNBUFFERED=1" in final["ENV"].split()
    assert {name for name, _ in LINES} == {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "HEALTHCHECK",
        "CMD",
    }  # all tried below


def test_nothing_but_what_is_copied_is_sent_to_the_daemon():
    copied = {word.removeprefix("./") for name, rest in LINES if name == "COPY" and "--from" not in rest
              for word in rest.split()[:-1]}  # fmt: skip

    assert IGNORED[0] == "*"
    assert {line[1:] for line in IGNORED if line.startswith("!")} == copied


class Image:
    """What the lines make, below a folder that stands for / in both stages: COPY --from copies to the same path."""

    def __init__(self, root):
        self.root = root
        self.folder = root
        self.programs = {}
        self.environment = {"PATH": f"{root / 'bin'}:/usr/bin:/bin", "HOME": str(root), "LANG": "C.UTF-8"}
        for name in ("PIP_INDEX_URL", "PIP_CACHE_DIR", "PIP_CERT", "SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy"):
            if name in os.environ:
                self.environment[name] = os.environ[name]
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")

    def inside(self, text):
        """Return the words with the paths of the image put below the folder."""
        return re.sub(r"(?<![\w.])/(opt|src|app)\b", rf"{self.root}/\1", text)

    def do(self, name, rest):
        if name == "FROM":
            self.folder = self.root
        elif name == "WORKDIR":
            self.folder = Path(self.inside(rest))
            self.folder.mkdir()
        elif name == "COPY" and rest.startswith("--from=build"):
            _, source, target = rest.split()
            assert source == target
            assert Path(self.inside(target)).is_dir()
        elif name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(ROOT / source, self.folder / target)
        elif name == "RUN":
            subprocess.run(["/bin/sh", "-c", self.inside(rest)], cwd=self.folder, env=self.environment, check=True)
        elif name == "ENV":
            for word in shlex.split(rest):
                variable, value = self.inside(word).split("=", 1)
                self.environment[variable] = value.replace("$PATH", self.environment["PATH"])
        elif name in {"CMD", "HEALTHCHECK"}:
            self.programs[name] = json.loads(rest[rest.index("[") :])

    def start(self, command, **environment):
        program = shutil.which(command[0], path=self.environment["PATH"])
        environment = self.environment | environment
        return subprocess.Popen(
            [program, *command[1:]],
            cwd=self.folder,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def is_healthy(image):
    check = image.start(image.programs["HEALTHCHECK"])
    check.communicate()
    return check.returncode == 0


def copy(source, target):
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


@pytest.mark.slow
async def test_what_the_lines_build_migrates_a_database_runs_a_job_and_drains(empty_dsn, connect, tmp_path):
    image = Image(tmp_path / "image")
    for name, rest in LINES:
        image.do(name, rest)
    shutil.copy(jobs.__file__, image.folder / "jobs.py")  # what is mounted at /app

    migrate = image.start(["scheduler", "migrate"], SCHEDULER_DSN=empty_dsn)
    assert migrate.communicate()[0].startswith("the schema is now at revision")
    worker = image.start(image.programs["CMD"], SCHEDULER_DSN=empty_dsn, SCHEDULER_APP="jobs")
    try:
        db = await connect(empty_dsn)
        ids = [await insert(db, kind, {"value": 1}) for kind in ("Echo", "EchoInThread", "EchoInProcess")]
        assert {job["status"] for job in (await ended(db, *ids, seconds=60)).values()} == {"COMPLETED"}
        assert is_healthy(image)
        worker.send_signal(signal.SIGTERM)
        await until(lambda: worker.poll() is not None, "the worker should end", 60)
        assert not is_healthy(image)
        log = worker.stderr.read()
    finally:
        worker.kill()
        worker.communicate()

    assert worker.returncode == 0, log
    assert "stopping: running jobs may finish" in log
