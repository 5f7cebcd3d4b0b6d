"""What runs jobs: `async with Worker(dsn): ...` in code, or the command `scheduler-worker`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasework import complaint

if TYPE_CHECKING:
    from worker.runner import Worker
    from worker.transitions import Transition

__all__ = ["Transition", "Worker"]

_HOMES = {"Transition": "worker.transitions", "Worker": "worker.runner"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute
    """Import the worker when it is asked for: a child process needs this package, and little of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Worker" and (wrong := complaint()):
        raise ImportError(wrong)
    return getattr(import_module(_HOMES[name]), name)
