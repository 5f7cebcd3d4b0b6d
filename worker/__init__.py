"""What runs jobs: `async with Worker(dsn): ...` in code, or the command `scheduler-worker`."""

from typing import TYPE_CHECKING, Any

from leasework import complaint

if TYPE_CHECKING:
    from worker.runner import Worker
    from worker.transitions import Transition

__all__ = ["Transition", "Worker"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute
    """Import the worker when it is asked for: a child process needs this package, and little of it."""
    if name == "Worker":
        if wrong := complaint():
            raise ImportError(wrong)
        from worker.runner import Worker  # noqa: PLC0415

        return Worker
    if name == "Transition":
        from worker.transitions import Transition  # noqa: PLC0415

        return Transition
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
