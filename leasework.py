"""Where the commands start: our packages are looked at, and put before whatever else is called scheduler or worker.

Another distribution called scheduler writes into the same folder, and takes a file of ours along when it is removed. A
scheduler.py or worker.py on PYTHONPATH is no trap: it is looked for only after ours have been imported.
"""

import os
import signal
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

_HERE = Path(__file__).resolve().parent


@cache
def complaint() -> str | None:
    """Return what is wrong with the installed files, and how to mend it, in one sentence; None when all is well."""
    record = [line for path in _HERE.glob("leasework-*.dist-info/RECORD") for line in path.read_text().splitlines()]
    for name, _, size in (line.rsplit(",", 2) for line in record):
        path = _HERE / name
        if path.suffix == ".py" and size and not (path.exists() and path.stat().st_size == int(size)):
            pip = f"{sys.executable} -m pip"
            return (
                f"another package has replaced or removed {path}, as the one called scheduler does: run"
                f" `{pip} uninstall -y scheduler`, then `{pip} install --force-reinstall --no-deps leasework`"
            )
    return None


def scheduler() -> None:
    """Run the command scheduler."""
    _run("scheduler", "scheduler.cli")


def scheduler_worker() -> None:
    """Run the command scheduler-worker."""
    for number in (signal.SIGTERM, signal.SIGINT):  # until the worker listens to them nothing has begun
        signal.signal(number, lambda *_: os._exit(0))
    _run("scheduler-worker", "worker.cli")


def _run(command: str, module: str) -> None:
    if wrong := complaint():
        sys.stderr.write(f"{command}: {wrong}\n")
        sys.exit(3)  # as for any ConfigurationError, which may be what is missing
    sys.path.insert(0, str(_HERE))
    main = import_module(module).main
    sys.path.remove(str(_HERE))
    main()
