"""Real worker processes, each behind a proxy of its own, started again whenever they end."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path

from .jobs import LEDGER
from .pooler import Pooler
from .proxy import Proxy
from .servers import is_alive

COMMAND = Path(sys.executable).with_name("scheduler-worker")
LEASE = 3.0  # seconds
GRACE = 1.0
OPTIONS = {"async": 20, "threads": 4, "processes": 1, "lease": LEASE, "grace": GRACE, "app": "chaos.jobs"}
NO_DATABASE = 4  # the exit code of a worker that found none when it started
STOPPED = {0, 6}


class Slot:
    """One place for a worker; the process in it changes. `proxy`: the wire before it; `link`: before the server.

    `actor` is what events call it: the process, named in its address; behind a pooler, which has one name, the place.
    """

    def __init__(self, number: int, proxy: Proxy, login: str, folder: Path, pooler: Pooler | None = None) -> None:
        self.number = number
        self.proxy = proxy
        self.pooler = pooler
        self.link = proxy if pooler is None else pooler.link
        self._login = login
        self._folder = folder
        self._starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._expected: set[int] = set()
        self._closing = False
        self.surprises: list[str] = []

    @property
    def name(self) -> str:
        return f"worker-{self.number}.{self._starts}"

    @property
    def actor(self) -> str:
        return self.name if self.pooler is None else f"worker-{self.number}"

    @property
    def log(self) -> Path:
        return self._folder / f"{self.name}.log"

    @property
    def is_ready(self) -> bool:
        """Tell whether the worker claims, and minds its signals."""
        is_running = self._process is not None and self._process.returncode is None
        return is_running and " runs " in self.log.read_text(errors="replace")

    async def keep(self) -> None:
        """Start the worker, and again whenever it has ended, until `close`."""
        while not self._closing:
            self._process = await self._start()
            code = await self._process.wait()
            if code == NO_DATABASE and " runs " not in self.log.read_text(errors="replace"):
                await asyncio.sleep(0.2)
            elif code not in self._expected:
                self.surprises.append(f"{self.name} ended by itself with exit code {code}: see {self.log}")

    async def _start(self) -> asyncio.subprocess.Process:
        self._starts += 1
        self._expected = set()
        dsn = f"postgresql://{self._login}@127.0.0.1:{self.proxy.port}/postgres?sslmode=disable"
        if self.pooler is None:
            dsn += f"&chaos.actor={self.actor}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDULER_")}
        environment |= {"SCHEDULER_DSN": dsn, LEDGER: str(self._folder / "ledger")}
        arguments = [part for name, value in OPTIONS.items() for part in (f"--{name}", str(value))]
        with self.log.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                COMMAND, *arguments, cwd=Path(__file__).parents[1], env=environment, stderr=log
            )

    def megabytes(self) -> float:
        """Return the most memory that the process in it has had; 0 when there is none."""
        if self._process is None:
            return 0.0
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
            return int(found[1]) / 1024 if found else 0.0
        return 0.0

    def kill(self) -> None:
        self._expected = {-signal.SIGKILL}
        self._send(signal.SIGKILL)

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    async def stop(self, patience: float) -> None:
        """Ask the worker to stop, and wait until it has."""
        assert self._process is not None
        self._expected = STOPPED
        process, name = self._process, self.name
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience):
                await process.wait()
        except TimeoutError:
            self.surprises.append(f"{name} did not stop within {patience} s: see {self.log}")
            self.kill()

    def _send(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ready(self, patience: float = 20) -> None:
        """Wait for a worker that claims; without a database there may be none for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not self.is_ready:
                    await asyncio.sleep(0.05)

    async def close(self) -> None:
        self._closing = True
        self.go_on()
        if self.is_ready:
            await self.stop(GRACE + 10)
        else:
            self.kill()
        if self._process is not None:
            await self._process.wait()


def processes_of(ledger: Path) -> list[int]:
    """Return the living processes that note into `ledger`: workers and their children."""
    mark = f"{LEDGER}={ledger}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                folder.name.isdigit()
                and mark in (folder / "environ").read_bytes().split(b"\0")
                and is_alive(int(folder.name))
            ):
                found.append(int(folder.name))
    return found


def refused_outcomes(folder: Path) -> list[int]:
    """Return the jobs whose outcomes were refused, by what the workers say: an id for each time."""
    said = "".join(log.read_text(errors="replace") for log in folder.glob("worker-*.log"))
    return [int(job) for job in re.findall(r"the outcome of job (\d+) was refused", said)]
