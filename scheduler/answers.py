"""What the verbs answer, as the database sends it: JSON, so that a later version may add to it."""

import msgspec

from scheduler.states import Status


class Missed(msgspec.Struct):
    """What a worker's verb did not get hold of, and whose children to resolve. `cancel` comes from renew alone.

    `became`: where jobs went, by id, if not where the verb usually takes them: settle to COMPLETED, release to PENDING.
    """

    lost: list[int] = []
    busy: list[int] = []
    parents: list[int] = []
    cancel: list[int] = []
    became: dict[int, Status] = {}


class Moved(msgspec.Struct):
    """Jobs that a duty moved to `status`, those that are alike together; of a lost attempt also how it ended."""

    ids: list[int]
    kind: str
    queue: str | None
    tenant: str
    attempt: int
    status: Status = Status.PENDING
    outcome: str | None = None
    duration: float | None = None
    error_type: str | None = None
    error: str | None = None


class Reaped(msgspec.Struct):
    reaped: list[int]
    parents: list[int]
    jobs: list[Moved]


class Submitted(msgspec.Struct):
    """The jobs of a call, in its order; `older`: those that were there before, for a key; `running`: of these."""

    ids: list[int]
    older: list[int]
    running: list[int]


class Promoted(msgspec.Struct):
    promoted: int
    next_in: float | None
    jobs: list[Moved]


class Resolved(msgspec.Struct):
    parents: list[int]
    busy: list[int]
    more: bool
    jobs: list[Moved]


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
    """What retry did with each id; `revived` are descendants whom the failure of these had cancelled."""

    retried: list[int] = []
    revived: list[int] = []
    not_ended: list[int] = []
    missing: list[int] = []
    busy: list[int] = []
    refused: list[Reason] = []


class RetryLevel(Retried):
    """The answer of one call: with `children` to call again, and with `more` for the same ids, too."""

    children: list[int] = []
    more: bool = False


class Pruned(msgspec.Struct):
    pruned: list[int] = []
    kept: list[Reason] = []
    missing: list[int] = []


class Retained(msgspec.Struct):
    pruned: int
    more: bool
