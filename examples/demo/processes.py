"""What the demo starts, a database and workers; all of it is ended again, whatever happens."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / ".demo"
PROGRAMS = Path(sys.executable).parent  # where pip put `scheduler` and `scheduler-worker`
CONFIGURATION = 3  # exit code

Worker = subprocess.Popen[bytes]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Refuse to run beside another demo of this checkout: they would take each other's database away."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("demo: another one is running in this folder")
        yield


@contextlib.contextmanager
def database() -> Iterator[Path]:
    """Run a fresh embedded PostgreSQL. SCHEDULER_DSN names it, for the commands, the workers and us alike."""
    with contextlib.ExitStack() as stack:
        folder = FOLDER / "database"
        migrated = prepare(folder, stack)
        if migrated.returncode == CONFIGURATION and os.geteuid() == 0:
            # PostgreSQL never runs as root, and the account that it runs as may be unable to enter this checkout.
            folder = Path(tempfile.mkdtemp(prefix="leasework-demo-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.chmod(0o755)
            migrated = prepare(folder / "database", stack)
        if migrated.returncode:
            sys.exit(f"demo: {migrated.stderr.strip()}")
        yield folder


def prepare(folder: Path, stack: contextlib.ExitStack) -> subprocess.CompletedProcess[str]:
    os.environ["SCHEDULER_DSN"] = f"embedded:{folder}"
    command("db", "stop")  # a killed demo may have left it running
    shutil.rmtree(folder, ignore_errors=True)
    stack.callback(command, "db", "stop")
    return command("migrate")  # starts it, too


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the scheduler."""
    return subprocess.run([PROGRAMS / "scheduler", *words], capture_output=True, text=True, check=False)


@contextlib.contextmanager
def workers(number: int, lease: int) -> Iterator[list[Worker]]:
    """Run workers as a service would, by their command; `lease` is in seconds. Their logs are in .demo/."""
    words = [str(PROGRAMS / "scheduler-worker"), "--app", "jobs", "--lease", str(lease), "--grace", "5"]
    running: list[Worker] = []
    try:
        for one in range(1, number + 1):
            with (FOLDER / f"worker-{one}.log").open("wb") as log:
                running.append(subprocess.Popen(words, cwd=HERE, stderr=log))
        yield running
    finally:
        for worker in running:
            worker.terminate()
        for worker in running:
            try:
                worker.wait(timeout=15)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def check_alive(running: Sequence[Worker]) -> None:
    for worker in running:
        if worker.poll() is not None:
            sys.exit(f"demo: worker {worker.pid} ended by itself: see its log in {FOLDER}")
