"""Import the modules that define a service's job classes, from the folder the command is run in."""

import importlib
import os
import sys
from collections.abc import Mapping

from scheduler.errors import ConfigurationError
from scheduler.job import KINDS


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
        _import(name)
    if not KINDS:
        raise ConfigurationError(
            f"--app {','.join(names)}: no job class is defined there;"
            " derive one with a run method from AsyncJob, BlockingJob or CpuBoundJob"
        )


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"--app {name}: it imports {error.name}, which is not installed") from error
        raise ConfigurationError(
            f"--app {name}: no module {error.name!r} in {os.getcwd()} or on the path:"  # noqa: PTH109
            " run the command in the folder that contains it, or set PYTHONPATH"
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"--app {name}: {error}") from error
    except Exception as error:
        raise ConfigurationError(f"--app {name}: the module fails with {type(error).__name__}: {error}") from error
