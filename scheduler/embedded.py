"""`SCHEDULER_DSN=embedded:`: a private PostgreSQL for trying and testing, shared by the processes that hold it.

Who uses the server holds a shared lock on DIR/holders.lock; the kernel drops it with the process, kill -9 included.
A monitor, one detached process, stops the server when nobody has held that lock for a while, and starts it again when
it dies under its holders. What changes the server happens under DIR/start.lock. DIR/wanted says whether it should run:
`held` while somebody holds it, `pinned` until `stop`, absent when it should not.
Everything may be killed at any point: the next `hold` repairs what it finds.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from scheduler.cluster import SYSTEM_FOLDER, Cluster, make_folder, wheel_binaries, write
from scheduler.errors import ConfigurationError

with contextlib.suppress(ImportError):  # absent on Windows, which is refused below
    import fcntl

PREFIX = "embedded:"
LINGER = timedelta(seconds=10)  # a pause between two commands should not cost a start
_open_locks: set[int] = set()


class Held(contextlib.AbstractContextManager["Held"]):
    """The promise that the server runs, until it is closed or this process ends; without a lock, the address alone."""

    def __init__(self, url: str, lock: int | None = None) -> None:
        self.url = url
        self._lock = lock
        self._process = os.getpid()

    def close(self) -> None:
        """Let go; harmless when repeated, and in a forked child, which holds nothing."""
        if self._lock is not None and self._process == os.getpid():
            _unlock(self._lock)
        self._lock = None

    def __exit__(self, *_: object) -> None:
        self.close()


def is_embedded(dsn: str) -> bool:
    """Tell whether the DSN asks for the embedded PostgreSQL."""
    return dsn.startswith(PREFIX)


def hold(dsn: str, *, linger: timedelta = LINGER) -> Held:
    """Make sure that the server runs, and keep it running while held; blocks for a second where it must be created.

    `linger` is how long it outlives its last holder; who starts the monitor decides.
    Raises ConfigurationError when folder or binaries are unusable, DatabaseUnavailable when it does not start.
    """
    directory = _prepared(dsn)
    with _alone(directory):
        address = _run(directory, linger)  # safe before we hold it: to stop it one has to be alone
        return Held(address, _lock(directory / "holders.lock", fcntl.LOCK_SH))


def start(dsn: str, *, linger: timedelta = LINGER) -> str:
    """Start the server, to run until `stop`; return its address. Raises what `hold` raises."""
    directory = _prepared(dsn)
    with _alone(directory):
        address = _run(directory, linger)
        write(directory / "wanted", "pinned")
        return address


def stop(dsn: str) -> bool:
    """Stop the server, whoever holds it; return whether it ran."""
    directory = directory_of(dsn)
    if not (directory / "start.lock").exists():
        return False
    with _alone(directory):
        return _halt(directory)


def url(dsn: str) -> str:
    """Return the address of the running server, or raise ConfigurationError."""
    directory = directory_of(dsn)
    if (directory / "start.lock").exists():
        with _alone(directory):  # a server on its way up is waited for
            if (cluster := Cluster(Path(), directory)).is_running():
                return cluster.url
    raise ConfigurationError(f"no embedded PostgreSQL runs in {directory}: start it with `scheduler db start`")


def psql(dsn: str, arguments: Sequence[str] = ()) -> int:
    """Run psql on the running server, in this terminal; return its exit code."""
    address = url(dsn)
    password = urlsplit(address).password or ""  # not as an argument: every user of the machine reads those
    command = [str(wheel_binaries() / "psql"), "-d", address.replace(f":{password}@", "@"), *arguments]
    return subprocess.call(command, env=os.environ | {"PGPASSWORD": password})  # noqa: S603 - our own program


def directory_of(dsn: str) -> Path:
    """Return the folder of the server. Raises ConfigurationError for another DSN, a relative path and on Windows."""
    if sys.platform == "win32":
        raise ConfigurationError("the embedded PostgreSQL needs Linux or macOS: set SCHEDULER_DSN=postgresql://...")
    if not is_embedded(dsn):
        raise ConfigurationError("not the embedded PostgreSQL, which is SCHEDULER_DSN=embedded: or embedded:/path")
    if path := dsn.removeprefix(PREFIX):
        directory = Path(path).expanduser()
        if not directory.is_absolute():
            raise ConfigurationError(f"embedded:{path} is not absolute, and would be another folder in every process")
        return directory.resolve()
    if os.geteuid() == 0:
        return SYSTEM_FOLDER / "embedded"
    shared = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".local" / "share") / "leasework" / "embedded"


def watch(folder: str, linger: str) -> None:
    """Be the monitor until the server is not wanted; stop it when nobody has held it for `linger` seconds."""
    directory, patience = Path(folder), float(linger)
    last_use, idle_since = 0, time.monotonic()
    while (directory / "start.lock").exists():
        with _alone(directory):  # a holder that comes now waits, and starts the server again
            use = (directory / "holders.lock").stat().st_mtime_ns  # somebody may have come and left between two looks
            if use != last_use or _wanted(directory) == "pinned" or _is_held(directory):
                last_use, idle_since = use, time.monotonic()
            elif time.monotonic() - idle_since >= patience:
                _halt(directory)
            if not _wanted(directory):
                return
            _serve(directory)
        time.sleep(min(1.0, 0.01 + patience / 4))


def _prepared(dsn: str) -> Path:
    """Return the folder, made and ours; nothing is made where it could not work."""
    directory = directory_of(dsn)
    try:
        if not (directory / "start.lock").exists():
            if directory.exists() and any(directory.iterdir()):
                raise ConfigurationError(f"{directory} is not empty and not ours: choose an empty or a new folder")
            Cluster(wheel_binaries(), directory).account()
            make_folder(directory)
        for name in ("start.lock", "holders.lock", "monitor.lock"):
            (directory / name).touch(mode=0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot keep an embedded PostgreSQL in {directory}: {error}") from error
    return directory


def _run(directory: Path, linger: timedelta) -> str:
    address = _serve(directory)
    write(directory / "wanted", _wanted(directory) or "held")
    _ensure_monitor(directory, linger)
    return address


def _serve(directory: Path) -> str:
    if not Cluster(Path(), directory).is_running():
        Cluster(wheel_binaries(), directory).start()
    return Cluster(Path(), directory).url


def _halt(directory: Path) -> bool:
    (directory / "wanted").unlink(missing_ok=True)  # first: killed in between, we leave no monitor that starts it again
    ran = (cluster := Cluster(Path(), directory)).is_running()
    cluster.stop()
    return ran


def _wanted(directory: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (directory / "wanted").read_text()
    return ""


def _ensure_monitor(directory: Path, linger: timedelta) -> None:
    """Start the monitor unless one lives: it inherits the lock, so there is no moment without it."""
    try:
        lock = _lock(directory / "monitor.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    # -P: no module of the current folder. Appended: our package where only that folder, or its caller, had it.
    package = str(Path(__file__).resolve().parent.parent)
    program = f"import sys; sys.path.append({package!r}); from scheduler.embedded import watch; watch(*sys.argv[1:])"
    command = [sys.executable, "-P", "-c", program, str(directory), str(linger.total_seconds())]
    with (directory / "server.log").open("ab") as log:
        subprocess.run(  # noqa: S603 - our own words
            ["/bin/sh", "-c", '"$@" &', "sh", *command],  # its parent is gone at once: nobody has to wait for it
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            pass_fds=(lock,),
        )
    _open_locks.discard(lock)
    os.close(lock)  # closed, not unlocked: it is the monitor's now


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Change the server while no other process does."""
    try:
        lock = _lock(directory / "start.lock", fcntl.LOCK_EX)
        try:
            yield
        finally:
            _unlock(lock)
    except OSError as error:
        raise ConfigurationError(f"cannot keep an embedded PostgreSQL in {directory}: {error}") from error


def _is_held(directory: Path) -> bool:
    try:
        _unlock(_lock(directory / "holders.lock", fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False


def _lock(path: Path, kind: int) -> int:
    handle = os.open(path, os.O_RDWR)  # close-on-exec, as all of Python's; not made again in a folder being removed
    _open_locks.add(handle)
    try:
        fcntl.flock(handle, kind)
    except BaseException:
        _unlock(handle)
        raise
    return handle


def _unlock(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough while a forked child has a copy
    _open_locks.discard(handle)
    os.close(handle)


def _forget_locks() -> None:
    """In a forked child: its copies would keep the parent's locks after the parent's death."""
    while _open_locks:
        os.close(_open_locks.pop())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_locks)
