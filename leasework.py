"""Where the commands start: once it is known that `scheduler` and `worker` are the packages of this distribution.

Another distribution called scheduler writes into the same folder, and takes a file of ours along when it is removed; a
scheduler.py on PYTHONPATH stands before ours. Neither package is imported before that is looked at.
"""

import sys
from functools import cache
from importlib import import_module, util
from pathlib import Path

_REFUSED = 3  # the exit code of scheduler.errors.ConfigurationError, which may be what is missing
_HERE = Path(__file__).resolve().parent


@cache
def complaint() -> str | None:
    """Return what is wrong with the installed packages, and how to mend it, in one sentence; None when all is well."""
    record = [line for path in _HERE.glob("leasework-*.dist-info/RECORD") for line in path.read_text().splitlines()]
    for name, _, size in (line.rsplit(",", 2) for line in record):
        path = _HERE / name
        if path.suffix == ".py" and not (path.exists() and path.stat().st_size == int(size)):
            pip = f"{sys.executable} -m pip"
            return (
                f"another package has replaced or removed {path}, as the one called scheduler does: run"
                f" `{pip} uninstall -y scheduler`, then `{pip} install --force-reinstall --no-deps leasework`"
            )
    for name in ("scheduler", "worker"):
        found = util.find_spec(name)
        origin = Path((found and found.origin) or ".").resolve()
        if origin.parent != _HERE / name:
            return f"{origin} stands before leasework's package {name}: rename it, or take its folder off PYTHONPATH"
    return None


def scheduler() -> None:
    """Run the command scheduler."""
    _run("scheduler", "scheduler.cli")


def scheduler_worker() -> None:
    """Run the command scheduler-worker."""
    _run("scheduler-worker", "worker.cli")


def _run(command: str, module: str) -> None:
    if wrong := complaint():
        sys.stderr.write(f"{command}: {wrong}\n")
        sys.exit(_REFUSED)
    import_module(module).main()
