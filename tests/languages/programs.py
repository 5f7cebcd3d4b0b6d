"""Programs that tests start: where they are, and one that runs."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WORKER_TESTS = ROOT / "tests" / "worker"
sys.path.append(str(WORKER_TESTS))

from witness import until  # noqa: E402 - what the tests of our own worker look with


def tool(name):
    """Return the path of a program; skip the test where it is not installed."""
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


class Program:
    """A running program, and what it writes to stderr."""

    def __init__(self, words, folder, environment, log):
        self._log = log
        with log.open("wb") as file:
            self.popen = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stderr=file)
        self.pid = self.popen.pid

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def send(self, number):
        self.popen.send_signal(number)

    async def says(self, words, seconds=20):
        await until(lambda: words in self.log, f"the program should have said {words!r}", seconds)

    async def ready(self):
        """Wait until it claims, and its signal handlers stand."""
        await until(lambda: " runs " in self.log or self.popen.poll() is not None, "the worker should have started", 60)
        assert self.popen.poll() is None, self.log
        return self

    async def stops_claiming(self, db):
        """Tell whether it has noticed its first signal: both workers then say so, each in its own way."""
        draining = await db.fetchval("SELECT draining FROM scheduler.workers WHERE pid = $1", self.pid)
        return draining or "draining" in self.log

    async def exits(self):
        """Wait for its end; return the exit code."""
        await until(lambda: self.popen.poll() is not None, "the program should have ended")
        return self.popen.returncode

    def end(self):
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
        self.popen.wait()
