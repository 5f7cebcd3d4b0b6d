"""What the verbs answer, as the database sends it: JSON, so that a later version may add to it."""

import msgspec


class Missed(msgspec.Struct):
    """What a worker's verb did not get hold of, and whose children to resolve. `cancel` comes from renew alone."""

    lost: list[int] = []
    busy: list[int] = []
    parents: list[int] = []
    cancel: list[int] = []


class Reaped(msgspec.Struct):
    reaped: list[int]
    parents: list[int]


class Promoted(msgspec.Struct):
    promoted: int
    next_in: float | None


class Resolved(msgspec.Struct):
    parents: list[int]
    busy: list[int]
    more: bool


class Cancelled(msgspec.Struct):
    """What cancel did with each id: ended it, asked its worker, found it ended, or did not find it."""

    cancelled: list[int]
    requested: list[int]
    ended: list[int]
    missing: list[int]
    parents: list[int]


class Declared(msgspec.Struct):
    changed: list[str]
    superseded: list[str]


class Reason(msgspec.Struct):
    """Why a verb left one job as it is, and what to do."""

    id: int
    reason: str


class Retried(msgspec.Struct):
    """What retry did with each id, and with the descendants whom a failure had cancelled."""

    retried: list[int] = []
    revived: list[int] = []
    not_ended: list[int] = []
    missing: list[int] = []
    busy: list[int] = []
    refused: list[Reason] = []


class GoOn(msgspec.Struct):
    """Where revive stopped: whose children are still to be looked at, and which children somebody held."""

    parents: list[int]
    after: int
    children: list[int]


class RetryStep(Retried):
    """The answer of one call of retry or revive; `go_on` goes to the next call of revive."""

    go_on: GoOn | None = None


class Pruned(msgspec.Struct):
    pruned: list[int]
    kept: list[Reason]
    missing: list[int]


class Retained(msgspec.Struct):
    pruned: int
    more: bool


class Paused(msgspec.Struct):
    """`paused_for`: seconds, or None: until it is resumed."""

    queue: str | None
    kind: str | None
    paused_for: float | None
    paused_by: str


class Resumed(msgspec.Struct):
    """`resumed`: whether it was paused."""

    queue: str | None
    kind: str | None
    resumed: bool


class QueueFacts(msgspec.Struct):
    """A queue at a glance; durations in seconds. No name: jobs whose kind nobody has declared."""

    queue: str | None
    blocked: int
    delayed: int
    pending: int
    running: int
    oldest: float | None
    workers: int
    ordering: str
    keep_completed: float
    keep_failed: float
    paused: bool
    paused_for: float | None
    paused_by: str | None


class KindFacts(msgspec.Struct):
    """A kind at a glance; durations in seconds. `seen` is None while nobody has declared it."""

    kind: str
    queue: str | None
    executor: str | None
    seen: float | None
    waiting: int
    running: int
    workers: int
    paused: bool
    paused_for: float | None
    paused_by: str | None


class WorkerFacts(msgspec.Struct):
    """A worker process at a glance; `age` and `seen` are seconds since its start and its last sign of life."""

    id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    kinds: int
    slots: dict[str, int]
    running: int
    age: float
    seen: float
    sleeping: bool
    draining: bool
    dead: bool
