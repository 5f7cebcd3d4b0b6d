"""One attempt: a claimed job while this process has it, and the words for how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from scheduler.error_text import clean_text, describe_exception
from scheduler.errors import InvalidJob, NonRetryableError, RetryAfter, Snooze
from scheduler.payload import encode_result

if TYPE_CHECKING:
    from scheduler.context import Context
    from scheduler.job import Job

Verdict = Literal["timed_out", "cancelled", "lost", "released"]

_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds on a clock that runs while the machine is suspended, as leases do."""
    return time.clock_gettime(_SUSPEND_AWARE)


NOT_COMMITTED = "NotCommitted"
_WHY_NOT = "complete() was called and has not committed: await it, and let its transaction commit before you return"
NO_RESULT = msgspec.Raw(b"null")


class Settlement(msgspec.Struct, omit_defaults=True):
    """How an attempt ended, in the shape that the verb settle takes. `delay` in seconds."""

    id: int
    fence: int
    outcome: str
    result: msgspec.Raw = NO_RESULT
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None
    delay: float | None = None
    retryable: bool = True


@dataclass(eq=False, slots=True)
class Attempt:
    """A claimed job. Owned by the event loop of the worker; the keeper's thread reads it, and writes `leased_at`.

    `leased_at` is when the claim or the newest renewal was sent: a lease counts from there. `deadline` is the job's
    own timeout, from its start here. `verdict` is set when the worker decided the end; then it outweighs what the
    handler returns.
    """

    context: Context
    payload: str
    executor: Any  # an Executor
    leased_at: float
    id: int = field(init=False)
    fence: int = field(init=False)
    deadline: float = field(init=False)
    job: Job = field(init=False)  # decoded, but for a child
    verdict: Verdict | None = None
    begun: bool = False
    open: bool = True  # until its outcome is known
    duration: float = 0.0  # in seconds, once it is
    handle: Any = None  # what the executor stops it by

    def __post_init__(self) -> None:
        self.id, self.fence = self.context.job_id, self.context.fence
        self.deadline = now() + self.context.timeout


class Leases(dict[int, Attempt]):
    """The attempts whose leases are to be renewed, by job: those that run, and those not yet settled."""

    def forget(self, attempt: Attempt) -> None:
        """Renew the attempt no more; a newer attempt of the same job, claimed meanwhile, stays."""
        if self.get(attempt.id) is attempt:
            del self[attempt.id]


def returned(attempt: Attempt, value: Any) -> Settlement:  # noqa: ANN401 - whatever the handler returned
    """Describe the return of a handler; a result that cannot be stored fails the attempt for good.

    Once complete() has been called only its transaction completes the job: a failure changes nothing if that has
    committed; the settlement `completed` might count where a failover has lost it.
    """
    if now() >= attempt.deadline:  # the clock decides: a blocked loop may have told nobody in time
        return _timed_out(attempt)
    if attempt.context.completing:
        return failure(attempt, NOT_COMMITTED, _WHY_NOT)
    try:
        encoded = encode_result(value)
    except InvalidJob as error:
        return failure(attempt, "InvalidResult", str(error), retryable=False)
    return Settlement(
        attempt.id, attempt.fence, "completed", result=NO_RESULT if encoded is None else msgspec.Raw(encoded)
    )


def raised(attempt: Attempt, error: BaseException) -> Settlement:
    """Describe what a handler raised. Nothing a handler raises leaves this function as an exception."""
    if now() >= attempt.deadline:
        return _timed_out(attempt)
    delay = getattr(error, "delay", None) if isinstance(error, Snooze | RetryAfter) else None
    if not isinstance(delay, timedelta):
        delay = None  # a subclass of theirs that never set it
    if isinstance(error, Snooze) and delay is not None:
        return Settlement(attempt.id, attempt.fence, "snoozed", delay=delay.total_seconds())
    name, message, traceback = describe_exception(error)
    if isinstance(error, SystemExit):
        message = f"the handler called sys.exit({message})"
    return Settlement(
        attempt.id, attempt.fence, "failed", error_type=name, error=message, traceback=traceback,
        delay=None if delay is None else delay.total_seconds(), retryable=not isinstance(error, NonRetryableError),
    )  # fmt: skip


def failure(attempt: Attempt, kind: str, words: str, *, retryable: bool = True) -> Settlement:
    """Describe a failure that is not the handler's exception."""
    return Settlement(
        attempt.id, attempt.fence, "failed", error_type=kind, error=clean_text(words), retryable=retryable
    )


def decided(attempt: Attempt) -> Settlement:
    """Describe the end that the worker decided by `verdict`; for a lost or released attempt nobody reads it."""
    return _timed_out(attempt) if attempt.verdict == "timed_out" else Settlement(attempt.id, attempt.fence, "cancelled")


def _timed_out(attempt: Attempt) -> Settlement:
    words = f"the attempt ran longer than its timeout of {attempt.context.timeout:g} s"
    return Settlement(attempt.id, attempt.fence, "timed_out", error_type="TimedOut", error=words)
