"""Transitions: what this worker's verbs did to jobs, read off their answers.

A verb is told once it has answered, which is after its commit. A stale outcome changed nothing and is not told; neither
is what nobody can know: an answer lost with its connection, unless the verb is asked again (claim and settle are).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.states import Status
from scheduler.store import Store
from worker.attempt import Settlement

if TYPE_CHECKING:
    from uuid import UUID

    import asyncpg

    from scheduler.answers import Missed, Promoted, Reaped, Resolved
    from scheduler.calls import Caller, Facts
    from worker.attempt import Leases

FROM = {
    "claim": Status.PENDING, "settle": Status.RUNNING, "release": Status.RUNNING, "reap": Status.RUNNING,
    "resolve": Status.BLOCKED, "promote": Status.DELAYED,
}  # fmt: skip
OF_THE_JOB = ("kind", "queue", "tenant", "attempt")


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb of this worker did to one job; neither payload nor result is in it.

    `queue` is None while nobody has declared the kind; `attempt` counts claims so far; `verb` is claim, settle,
    release, reap, resolve or promote; `worker_id` is the worker that called it; `at`, in UTC, when it was answered. Of
    the end of an attempt also its `outcome` (completed, failed, timed_out, cancelled, snoozed, released, lost), its
    `duration` in seconds, and type and text of the error. What others do, the cancellation of a waiting job by a
    command say, is no transition of this worker.
    """

    job_id: int
    kind: str
    queue: str | None
    tenant: str
    attempt: int
    verb: str
    from_status: Status
    to_status: Status
    worker_id: UUID
    at: datetime
    outcome: str | None = None
    duration: float | None = None
    error_type: str | None = None
    error: str | None = None


Callback = Callable[[Transition], object]


def _claimed(_: Leases, rows: list[asyncpg.Record], *_call: object) -> Iterator[Facts]:
    for row in rows:
        if row["id"] is not None:  # else it has hints
            yield {"job_id": row["id"], "to_status": Status.RUNNING, **{name: row[name] for name in OF_THE_JOB}}


def _settled(leases: Leases, answer: Missed, _worker: UUID, sent: list[Settlement]) -> Iterator[Facts]:
    return _ended(leases, answer, sent, Status.COMPLETED)


def _released(leases: Leases, answer: Missed, _worker: UUID, ids: list[int], fences: list[int]) -> Iterator[Facts]:
    return _ended(leases, answer, map(Settlement, ids, fences, repeat("released")), Status.PENDING)


def _ended(leases: Leases, answer: Missed, sent: Iterable[Settlement], usual: Status) -> Iterator[Facts]:
    missed = {*answer.lost, *answer.busy}
    for end in sent:
        attempt = leases.get(end.id)
        if end.id in missed or attempt is None or attempt.fence != end.fence:
            continue
        status, outcome, error_type, error = answer.became.get(end.id, usual), end.outcome, end.error_type, end.error
        if status == Status.COMPLETED:  # whatever was sent: the handler's own transaction may have done it before
            outcome, error_type, error = "completed", None, None
        elif outcome == "completed":  # the database writes numbers out
            outcome, error_type = "failed", "ResultTooLarge"
        yield {
            "job_id": end.id, "to_status": status, "outcome": outcome, "duration": attempt.duration,
            "error_type": error_type, "error": error,
            **{name: getattr(attempt.context, name) for name in OF_THE_JOB},
        }  # fmt: skip


def _moved(_: Leases, answer: Promoted | Resolved | Reaped, *_call: object) -> Iterator[Facts]:
    for group in answer.jobs:
        facts = msgspec.structs.asdict(group)
        status, ids = facts.pop("status"), facts.pop("ids")
        yield from ({"job_id": job_id, "to_status": status, **facts} for job_id in ids)


def _told(verb: str, read: Callable[..., Iterator[Facts]], method: str | None = None) -> Any:  # noqa: ANN401 - a method
    """Return a method of the store that is told; `read` finds in leases, answer and arguments what it did."""

    async def call(self: TellingStore, *arguments: Any) -> Any:  # noqa: ANN401 - as the method it calls
        answer = await getattr(Store, method or verb)(self, *arguments)
        made = partial(Transition, verb=verb, from_status=FROM[verb], worker_id=self.worker, at=datetime.now(UTC))
        self.tell([made(**facts) for facts in read(self.leases, answer, *arguments)])
        return answer

    return call


class TellingStore(Store):
    """A store whose verbs are told. `leases` has the attempts of the worker that are not settled yet."""

    def __init__(self, caller: Caller, worker: UUID, leases: Leases, tell: Callable[[list[Transition]], None]) -> None:
        super().__init__(caller)
        self.worker = worker
        self.leases = leases
        self.tell = tell

    claim = _told("claim", _claimed)
    claimed_by = _told("claim", _claimed, "claimed_by")
    settle = _told("settle", _settled)
    release = _told("release", _released)
    reap = _told("reap", _moved)
    resolve = _told("resolve", _moved)
    promote = _told("promote", _moved)
