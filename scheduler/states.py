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


Moves = Mapping[Status, frozenset[Status]]


# Every end of an attempt except completion may become CANCELLED: a cancel request waits for it on the row.
_MOVES: Mapping[str, Mapping[Status, Iterable[Status]]] = {
    "resolve": {Status.BLOCKED: (Status.PENDING, Status.DELAYED, Status.CANCELLED)},
    "close_batch": {Status.BLOCKED: (Status.PENDING, Status.DELAYED)},
    "promote": {Status.DELAYED: (Status.PENDING,)},
    "claim": {Status.PENDING: (Status.RUNNING,)},
    "renew": {Status.RUNNING: (Status.RUNNING,)},
    "settle_completed": {Status.RUNNING: (Status.COMPLETED,)},
    "settle_failed": {Status.RUNNING: (Status.DELAYED, Status.FAILED, Status.CANCELLED)},
    "settle_timed_out": {Status.RUNNING: (Status.DELAYED, Status.TIMED_OUT, Status.CANCELLED)},
    "settle_snoozed": {Status.RUNNING: (Status.DELAYED, Status.CANCELLED)},
    "settle_cancelled": {Status.RUNNING: (Status.CANCELLED,)},
    "complete": {Status.RUNNING: (Status.COMPLETED,)},
    "release": {Status.RUNNING: (Status.PENDING, Status.CANCELLED)},
    "reap": {Status.RUNNING: (Status.PENDING, Status.FAILED, Status.CANCELLED)},
    # submit, where a waiting job has the unique_key and is to be replaced.
    "replace": dict.fromkeys((Status.DELAYED, Status.PENDING), (Status.DELAYED, Status.PENDING)),
    # Of a running job the request is noted; the attempt's end decides.
    "cancel": {**dict.fromkeys(WAITING, (Status.CANCELLED,)), Status.RUNNING: (Status.RUNNING,)},
    # A job that ran was due; it waits again for a parent that runs again.
    "retry": {
        **dict.fromkeys((Status.FAILED, Status.TIMED_OUT), (Status.BLOCKED, Status.PENDING)),
        Status.CANCELLED: WAITING,
    },
    "prune": dict.fromkeys(FINISHED, ()),
}
TRANSITIONS: Mapping[str, Moves] = MappingProxyType(
    {verb: MappingProxyType({start: frozenset(ends) for start, ends in of.items()}) for verb, of in _MOVES.items()}
)
