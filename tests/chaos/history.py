"""What a campaign leaves behind: facts from four witnesses, and nothing that needs a database to be read.

The triggers in recorder.sql saw every change of a job; the submitters know what they were told; the handlers noted what
they did in a file; and the tables show how it all stands in the end.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

EXACTLY_ONCE = "Transfers"  # the kind of job that completes in a transaction of its own
FINISHED = frozenset({"COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED"})
RECURRING = -1  # the token of the jobs of schedules: nobody submits them


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one partition changed; a move between partitions is two events of one transaction.

    `attempt` and what follows: after the change, or before it where the row went away. `worker` and `lease` (seconds
    since 1970): of the claim that began, or that ended. `actor`: the process whose connection did it.
    """

    seq: int
    at: float
    xid: int
    actor: str
    job: int
    was: str | None
    now: str | None
    attempt: int
    fence: int | None
    worker: str | None
    lease: float | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the end. `token`: which submission it came from. `fire_time`, `finished`: microseconds since 1970."""

    id: int
    token: int
    kind: str
    status: str
    attempt: int
    failures: int
    crashes: int
    max_attempts: int
    max_crashes: int
    fence: int | None = None
    depends_on: tuple[int, ...] = ()
    on_parent_failure: str = "cancel"
    cancelled_by: int | None = None
    idempotency_key: str | None = None
    unique_key: str | None = None
    result_fence: int | None = None
    schedule: int | None = None
    fire_time: int | None = None
    finished: int | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in the end. Times in microseconds: what it names must be met exactly. `skipped`: as it counts."""

    id: int
    mode: str
    overlap: str
    misfire: str
    cron: str | None = None
    every: int | None = None
    starts_at: int
    last_fire: int | None = None
    skipped: int = 0
    error: str | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that did not complete. `error_fence`: the fence that the handler wrote into its error."""

    job: int
    attempt: int
    outcome: str
    error_fence: int | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What a submitter asked for, and what it was told: acknowledged, refused, or unknown (the reply was lost).

    `ends`: the statuses in which such a job may end. `timeline` and `written`: the server that acknowledged it, and how
    far its WAL had come by then; null when it did not live to tell. `call`: which call of submit_many it was part of.
    """

    token: int
    answer: str
    ends: tuple[str, ...]
    job: int | None = None
    timeline: int | None = None
    written: int | None = None
    call: int | None = None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A handler began, or came to its end."""

    what: str
    at: float
    job: int
    fence: int


class Promotion(msgspec.Struct, frozen=True):
    """The standby took over at `at`; what its primary had written up to `kept` lives on in it, and nothing later."""

    at: float
    kept: int


class Fault(msgspec.Struct, frozen=True):
    """`actor`: the worker it hit; None: all of them. `hit`: None when the events tell whether a job was running."""

    kind: str
    at: float
    actor: str | None = None
    hit: bool | None = None


class History(msgspec.Struct, kw_only=True):
    """All of it.

    `accepted`: stale writes not refused. `left_over`: what should be gone. `edges`: (parent, child), not applied.
    `members`: (member, batch), and of each batch (batch, batch). `closed`: (batch, seq), in the order of events.
    `written`: (job, fence) of what handlers wrote in the transaction that completed their job. `sizes`: what should
    stay small, as it was in the end. `setting`: on what it all ran.
    """

    events: list[Event] = []
    rows: list[Row] = []
    schedules: list[Schedule] = []
    members: list[tuple[int, int]] = []
    closed: list[tuple[int, int]] = []
    ended: list[Ended] = []
    submissions: list[Submission] = []
    effects: list[Effect] = []
    promotions: list[Promotion] = []
    faults: list[Fault] = []
    accepted: list[str] = []
    left_over: list[str] = []
    edges: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    refused: int = 0
    sizes: dict[str, float] = {}
    setting: str = ""


def moves(events: Iterable[Event]) -> dict[int, list[Event]]:
    """Return the changes of status of each job in their order; a move between partitions becomes one event."""
    found: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.seq):
        before = found[event.job][-1] if found[event.job] else None
        if before is not None and before.xid == event.xid and _is_one_move(before, event):
            found[event.job][-1] = msgspec.structs.replace(
                before, was=before.was or event.was, now=before.now or event.now, attempt=event.attempt
            )
        else:
            found[event.job].append(event)
    return found


def _is_one_move(first: Event, second: Event) -> bool:
    """Tell whether a row left one partition and entered another, in either order."""
    if first.now is None:
        return second.was is None
    return first.was is None and second.now is None and second.was in FINISHED
