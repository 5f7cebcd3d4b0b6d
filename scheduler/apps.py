"""Import the modules that define a service's job classes, from the folder the command is run in."""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Mapping

from scheduler.error_text import safe_str
from scheduler.errors import ConfigurationError
from scheduler.job import KINDS

IMPORTING: list[str] = []  # the module that is being imported for its job classes, here or in a child process

_OURS = ("scheduler", "worker", "leasework")


def load(app: str | None, environment: Mapping[str, str] = os.environ) -> None:
    """Import the modules named in `app`, or in SCHEDULER_APP, separated by commas; their job classes enter KINDS.

    Raises ConfigurationError when none is named, one cannot be imported, or no job class is among them.
    """
    names = [name.strip() for name in (app or environment.get("SCHEDULER_APP") or "").split(",") if name.strip()]
    if not names:
        raise ConfigurationError(
            "no application is named: pass --app (or set SCHEDULER_APP) to the module with your job classes,"
            " as in --app myservice.jobs"
        )
    # Now, and not before: our own packages are imported, so a scheduler.py or worker.py in this folder is no trap.
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path has plain strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    for name in names:
        _check_name(name)
        _import(name)
    if not KINDS:
        raise ConfigurationError(
            f"--app {','.join(names)}: no job class is defined there;"
            " derive one with a run method from AsyncJob, BlockingJob or CpuBoundJob"
        )


def _check_name(name: str) -> None:
    if name.endswith(".py") or "/" in name:
        module = re.sub(r"[/.]+", ".", name.removesuffix(".py")).strip(".")
        raise ConfigurationError(f"--app {name}: this is a file, and a module is meant: --app {module}")
    if name.partition(".")[0] in _OURS:
        raise ConfigurationError(f"--app {name}: this is a package of leasework, which hides yours: rename your module")


def _import(name: str) -> None:
    IMPORTING.append(name)
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"--app {name}: no module {error.name!r} in {os.getcwd()} or on the path:"  # noqa: PTH109
                " run the command in the folder that contains it, or set PYTHONPATH"
            ) from error
        words = str(error) if isinstance(error, ConfigurationError) else _failure(error)
        raise ConfigurationError(f"--app {name}: {words}") from error
    finally:
        IMPORTING.pop()


def _failure(error: BaseException) -> str:
    """Return what failed in the user's module and what to do, and below it the traceback from their first line on."""
    way_out = "mend it where it stands"
    if isinstance(error, SystemExit):
        way_out = 'put what ends the program under `if __name__ == "__main__":`'
    elif isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _OURS:
        way_out = f"{error.name} is leasework's own, and a module of yours that is called so needs another name"
    elif isinstance(error, ModuleNotFoundError):
        way_out = f"install it with {sys.executable} -m pip"
    frames = error.__traceback__
    while frames and re.search(rf"^{re.escape(__file__)}$|importlib\b", frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    trace = "".join(traceback.format_exception(error.with_traceback(frames))).rstrip()
    return f"importing it raises {type(error).__name__}: {safe_str(error)}: {way_out}\n{trace}"
