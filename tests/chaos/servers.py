"""A primary and its asynchronous standby, and what happens to them: a crash, a promotion."""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from scheduler.cluster import Cluster, make_folder, write

from .history import Promotion
from .proxy import Proxy

SETTINGS = {
    "fsync": "off",  # processes are killed here, not machines: what they wrote is kept
    "full_page_writes": "off",
    "max_connections": "120",
    "wal_keep_size": "512MB",
    "wal_retrieve_retry_interval": "100ms",
    "deadlock_timeout": "200ms",
}


class Server(Cluster):
    """A cluster that may also be a copy of another, and follow it."""

    def is_running(self) -> bool:
        return self._postmaster() is not None and self._pid_file()[7:8] in (["ready"], ["standby"])

    def copy(self, other: "Server", follow: str) -> None:
        """Fill the folder from a running server; once started it streams from the address `follow`."""
        account = other.account()
        make_folder(self.directory)
        write(self.directory / "password", (other.directory / "password").read_text())
        self.data.mkdir(mode=0o700)
        if account.user is not None:
            shutil.chown(self.data, account.user, account.group)
        self._must("pg_basebackup", "-d", other.url, "-D", str(self.data), "-c", "fast", "-X", "stream")
        (self.data / "standby.signal").touch()
        self.settings["primary_conninfo"] = follow

    def promote(self) -> int:
        """Make the standby a primary; return the position where its history leaves that of the old one.

        More exact than what it had received when asked before: replication goes on until the promotion.
        """
        self._must("pg_ctl", "promote", "-w", "-D", str(self.data))
        newest = max((self.data / "pg_wal").glob("*.history"))
        return position(newest.read_text().strip().splitlines()[-1].split("\t")[1])

    def kill(self) -> None:
        """Kill all processes of the server, and wait until they are gone."""
        postmaster = self._postmaster()
        assert postmaster is not None, f"{self.directory.name} does not run"
        os.kill(postmaster, signal.SIGSTOP)  # it shall start no others meanwhile
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in [*map(int, children), postmaster]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(is_alive(int(pid)) for pid in children):
            time.sleep(0.005)

    def _must(self, program: str, *options: str) -> None:
        if failure := self._run(program, *options):
            raise RuntimeError(f"{program}: {failure}")


class Pair:
    """The primary, whose address changes, and the standby behind a wire of its own; `promotions` so far."""

    def __init__(self, bin_dir: Path, folder: Path) -> None:
        self._bin_dir = bin_dir
        self._folder = folder
        self._made = 0
        self.promotions: list[Promotion] = []
        self._wire = Proxy(self.address)

    async def start(self) -> None:
        self.primary = self._server()
        await asyncio.to_thread(self.primary.start)
        await self._wire.open()
        await self.add_standby()

    def address(self) -> tuple[str, int]:
        """Return where the primary listens."""
        parts = urlsplit(self.primary.url)
        return str(parts.hostname), int(parts.port or 0)

    async def add_standby(self) -> None:
        self.standby = self._server()
        password = urlsplit(self.primary.url).password
        follow = f"host=127.0.0.1 port={self._wire.port} user=postgres password={password} sslmode=disable"
        await asyncio.to_thread(self.standby.copy, self.primary, follow)
        await asyncio.to_thread(self.standby.start)

    async def crash_primary(self) -> None:
        await asyncio.to_thread(self.primary.kill)
        await asyncio.to_thread(self.primary.start)

    async def fail_over(self, lag: float) -> None:
        """Let the standby fall behind for `lag` seconds, kill the primary, promote the standby, make a new one."""
        self._wire.silence()
        await asyncio.sleep(lag)
        at = time.time()
        await asyncio.to_thread(self.primary.kill)
        self._wire.cut()
        self._wire.speak()
        self.promotions.append(Promotion(at, await asyncio.to_thread(self.standby.promote)))
        await asyncio.to_thread(shutil.rmtree, self.primary.directory)
        self.primary = self.standby
        await self.add_standby()

    async def split(self, lag: float, seconds: float, divide: Callable[[], None]) -> None:
        """Promote the standby while the primary goes on: who is not cut off by `divide` writes to the old one."""
        old = self.primary
        try:
            self._wire.silence()
            await asyncio.sleep(lag)
            at = time.time()
            self.promotions.append(Promotion(at, await asyncio.to_thread(self.standby.promote)))
            self._wire.cut()
            self._wire.speak()
            self.primary = self.standby
            divide()
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(old.kill)
        await asyncio.to_thread(shutil.rmtree, old.directory)
        await self.add_standby()

    async def stop(self) -> None:
        await self._wire.close()
        for server in (self.primary, self.standby):
            await asyncio.to_thread(server.stop)

    def _server(self) -> Server:
        self._made += 1
        return Server(self._bin_dir, self._folder / f"server-{self._made}", SETTINGS)


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def position(text: str) -> int:
    """Return a position in the WAL, as in 0/3000148, as a number."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)
