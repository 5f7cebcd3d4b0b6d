"""Workers for tests, as fixtures: in the test's own event loop, or as real processes. Whatever was started is ended."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import jobs
import pytest
from witness import PATIENCE, Gate, children_of, until

from scheduler import Scheduler
from scheduler.job import KINDS
from worker import Worker

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("scheduler-worker")


@pytest.fixture
async def scheduler(dsn):
    """A client of this test's database."""
    async with Scheduler.connect(dsn) as client:
        yield client


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


@pytest.fixture
async def work(dsn, gate):
    """Start workers in this event loop; numbers are seconds where the setting is a duration."""
    started = []

    async def work(address=None, *, kinds=None, listen_dsn=None, **settings):
        settings = {"async_slots": 20, "threads": 4, "processes": 2, "lease": 20, "grace": 0, **settings}
        for name in {"lease", "renew_every", "grace", "poll"} & settings.keys():
            settings[name] = timedelta(seconds=settings[name])
        kinds = [kind for kind in KINDS.values() if kind.__module__ == jobs.__name__] if kinds is None else kinds
        worker = Worker(address or dsn, kinds=kinds, listen_dsn=listen_dsn, **settings)
        await worker.start()
        started.append(worker)
        return worker

    yield work
    for worker in started:
        await worker.stop(cancel_running=True)


class Process:
    """A real worker process, and what it writes to stderr."""

    def __init__(self, arguments, folder, environment, log):
        self.log_path = log
        with log.open("wb") as file:
            self.popen = subprocess.Popen(
                [str(COMMAND), *arguments], cwd=folder, env=environment, stderr=file, stdin=subprocess.DEVNULL
            )
        self.pid = self.popen.pid
        self.children = set()

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def send(self, number):
        self.popen.send_signal(number)

    async def says(self, words, seconds=PATIENCE):
        await until(lambda: words in self.log, f"the worker should have said {words!r}", seconds)

    async def ready(self):
        """Wait until it claims, and its signal handlers stand."""
        await until(lambda: " runs " in self.log or self.popen.poll() is not None, "the worker should have started")
        assert self.popen.poll() is None, self.log
        return self

    async def exits(self, seconds=PATIENCE):
        """Wait for its end; return the exit code."""
        await until(lambda: self.popen.poll() is not None, "the worker should have ended", seconds)
        return self.popen.returncode

    def end(self):
        """Kill it, and its children by their own ids should it have failed to take them along."""
        self.children |= children_of(self.pid)
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


@pytest.fixture
def launch(dsn, tmp_path, gate):
    """Start real worker processes: options as on the command line, `async=5` for --async 5."""
    started = []

    def launch(*, app="jobs", folder=HERE, environment=None, address=dsn, **options):
        given = {"async": 20, "threads": 4, "processes": 2, "lease": 20, "grace": 5, "app": app, **options}
        arguments = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDULER_")}
        log = tmp_path / f"worker-{len(started)}.log"
        environment = {**clean, "SCHEDULER_DSN": address, **(environment or {})}
        started.append(Process(arguments, folder, environment, log))
        return started[-1]

    yield launch
    for process in started:
        process.send(signal.SIGCONT)
        process.end()
