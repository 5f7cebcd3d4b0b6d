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
