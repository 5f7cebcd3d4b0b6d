"""The one table of states: which verb moves a job from where to where.

The engine's constraints, the documents and the tests of every (status, verb) pair are compared with it.
A status missing from a verb's row means the verb leaves such a job unchanged. A status in the row may also
stay as it is when the verb's condition does not hold: not due, parents unfinished, lease still alive. A job that
a verb moves to no status is gone.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType


class Status(StrEnum):
    BLOCKED = "BLOCKED"
    DELAYED = "DELAYED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"


WAITING = frozenset({Status.BLOCKED, Status.DELAYED, Status.PENDING})
ACTIVE = WAITING | {Status.RUNNING}
FINISHED = frozenset(Status) - ACTIVE


class Outcome(StrEnum):
    """How a worker says an attempt ended, when it settles it."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"


class AttemptEnd(StrEnum):
    """How an attempt that did not complete is remembered."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"
    SNOOZED = "snoozed"


Moves = Mapping[Status, frozenset[Status]]


def _from_running(*targets: Status) -> Moves:
    return MappingProxyType({Status.RUNNING: frozenset(targets)})


def _from_waiting(status: Status, *targets: Status) -> Moves:
    return MappingProxyType({status: frozenset(targets)})


# Every end of an attempt except completion may become CANCELLED: a cancel request waits for it on the row.
TRANSITIONS: Mapping[str, Moves] = MappingProxyType(
    {
        "resolve": _from_waiting(Status.BLOCKED, Status.PENDING, Status.DELAYED, Status.CANCELLED),
        "promote": _from_waiting(Status.DELAYED, Status.PENDING),
        "claim": _from_waiting(Status.PENDING, Status.RUNNING),
        "renew": _from_running(Status.RUNNING),
        "settle_completed": _from_running(Status.COMPLETED),
        "settle_failed": _from_running(Status.DELAYED, Status.FAILED, Status.CANCELLED),
        "settle_timed_out": _from_running(Status.DELAYED, Status.TIMED_OUT, Status.CANCELLED),
        "settle_snoozed": _from_running(Status.DELAYED, Status.CANCELLED),
        "settle_cancelled": _from_running(Status.CANCELLED),
        "complete": _from_running(Status.COMPLETED),
        "release": _from_running(Status.PENDING, Status.CANCELLED),
        "reap": _from_running(Status.PENDING, Status.FAILED, Status.CANCELLED),
        "cancel": MappingProxyType(
            {
                **{waiting: frozenset({Status.CANCELLED}) for waiting in Status if waiting in WAITING},
                Status.RUNNING: frozenset({Status.RUNNING}),  # the request is noted; the attempt's end decides
            }
        ),
        # A job that ran was due; it waits again for a parent that runs again.
        "retry": MappingProxyType(
            {
                Status.FAILED: frozenset({Status.BLOCKED, Status.PENDING}),
                Status.TIMED_OUT: frozenset({Status.BLOCKED, Status.PENDING}),
                Status.CANCELLED: frozenset(WAITING),
            }
        ),
        "prune": MappingProxyType({ended: frozenset[Status]() for ended in Status if ended in FINISHED}),
    }
)


def transitions_markdown() -> str:
    """Render TRANSITIONS as a Markdown table, one row per verb and status, statuses in their order of life."""
    rows = ["| verb | from | to |", "|---|---|---|"]
    for verb, moves in TRANSITIONS.items():
        rows += [
            f"| {verb} | {status} | {', '.join(_in_order(moves[status])) or 'gone'} |" for status in _in_order(moves)
        ]
    return "\n".join(rows) + "\n"


def _in_order(statuses: Iterable[Status]) -> list[Status]:
    chosen = set(statuses)
    return [status for status in Status if status in chosen]
