"""A new user: an empty folder, the installed commands, files of their own; what they type, and what they read."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

PATIENCE = 60  # seconds


class Answer:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"

    @property
    def sentence(self):
        """The one line that was said on stderr."""
        (line,) = self.err.splitlines()
        return line


class User:
    """What `run` runs comes from the environment in `programs`, in `folder`, and knows no setting but those given."""

    def __init__(self, folder, dsn=None, programs=Path(sys.executable).parent):
        self.folder, self.programs = folder, programs
        kept = {name: value for name, value in os.environ.items() if name[:10] != "SCHEDULER_" and name != "PYTHONPATH"}
        self.environment = kept | {"COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment |= {} if dsn is None else {"SCHEDULER_DSN": dsn}

    def writes(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    def run(self, program, *arguments, **environment):
        done = subprocess.run(
            [self.programs / program, *map(str, arguments)],
            cwd=self.folder, env=self.environment | environment, stdin=subprocess.DEVNULL,
            capture_output=True, check=False, text=True, timeout=PATIENCE,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def runs(self, program, *arguments, until=" runs ", **environment):
        """Run a program beside the test, from the moment it says so on stderr; it is ended at the end of the block."""
        log = self.folder / f"{program}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [self.programs / program, *map(str, arguments)],
                cwd=self.folder, env=self.environment | environment, stdin=subprocess.DEVNULL, stderr=file,
            )  # fmt: skip
        process.log = log
        try:
            deadline = time.monotonic() + PATIENCE
            while until not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
