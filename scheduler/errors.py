"""What can go wrong, as one tree.

SchedulerError
├── ConfigurationError      a setting is missing or contradicts another
├── DatabaseUnavailable     PostgreSQL cannot be reached
├── SchemaMismatch          the schema is absent, older or newer than this version supports
├── InvalidJob              what was submitted breaks a rule (also a ValueError)
│   └── InvalidSchedule     so does what is to be submitted again and again
├── JobNotFound             no job has this id
├── JobEnded                the job ended without a result
│   ├── JobFailed
│   ├── JobTimedOut
│   └── JobCancelled
├── ResultTimeout           the job has not ended yet (also a TimeoutError)
├── WaitsInJob              a handler would wait for another job
├── ParentsTooLarge         the parents of a job are more than a claim carries
└── LeaseLost               another attempt owns the job now

Raised by handlers to steer what happens next, and no failure of the scheduler:
NonRetryableError, RetryAfter, Snooze.

Errors carry facts as attributes. They pickle, because some cross a process boundary.
"""

from datetime import timedelta
from typing import ClassVar

_LONGEST_DELAY = timedelta(days=366)


class SchedulerError(Exception):
    """Anything the scheduler itself raises."""

    exit_code: ClassVar[int] = 1


class ConfigurationError(SchedulerError):
    """A setting is missing or contradicts another."""

    exit_code = 3


class DatabaseUnavailable(SchedulerError):  # noqa: N818 - reads as what happened
    """PostgreSQL cannot be reached."""

    exit_code = 4


class SchemaMismatch(SchedulerError):  # noqa: N818 - reads as what happened
    """The schema is absent, older or newer than this version supports."""

    exit_code = 5


class InvalidJob(SchedulerError, ValueError):  # noqa: N818 - reads as what happened
    """What was submitted breaks a rule; the message names the field, the rule and the way out.

    `index`: which of the jobs of submit_many it was, counted from 0; of submit_graph, the name of the node.
    """

    def __init__(self, field: str, rule: str, index: int | str | None = None) -> None:
        super().__init__(field, rule)
        self.field = field
        self.rule = rule
        self.index = index

    def __str__(self) -> str:
        place = "" if self.index is None else f"jobs[{self.index!r}] "
        return f"{place}{self.field}: {self.rule}"


class InvalidSchedule(InvalidJob):
    """A schedule breaks a rule; the message names the field, the rule and the way out."""


class _OfJob(SchedulerError):  # noqa: N818 - never raised itself
    words: ClassVar[str]

    def __init__(self, job_id: int, *facts: object) -> None:
        super().__init__(job_id, *facts)
        self.job_id = job_id

    def __str__(self) -> str:
        return self.words.format(*self.args)


class JobNotFound(_OfJob):
    """No job has this id."""

    words = "job {} does not exist"


class JobEnded(SchedulerError):  # noqa: N818 - reads as what happened
    """The job ended without a result; `status` says how, `error` why, when known."""

    def __init__(self, job_id: int, status: str, error: str | None = None) -> None:
        super().__init__(job_id, status, error)
        self.job_id = job_id
        self.status = status
        self.error = error

    def __str__(self) -> str:
        ended = f"job {self.job_id} ended {self.status}"
        return f"{ended}: {self.error}" if self.error else ended


class JobFailed(JobEnded):
    """Every attempt failed, or one failed for good."""


class JobTimedOut(JobEnded):
    """The last attempt ran longer than the job's timeout."""


class JobCancelled(JobEnded):
    """Someone cancelled the job before it completed."""


class ResultTimeout(_OfJob, TimeoutError):  # noqa: N818 - reads as what happened
    """The job has not ended within `timeout` seconds; it may still run, and can be waited for again."""

    words = "job {} has not ended within {:g} s; it may still run: wait again"

    def __init__(self, job_id: int, timeout: float) -> None:
        super().__init__(job_id, timeout)
        self.timeout = timeout


class WaitsInJob(_OfJob):
    """A handler would wait for another job: with all slots held by such jobs, none of them would ever end."""

    words = (
        "job {} would hold its slot while it waits for another job: submit what comes after that one with"
        " depends_on=[handle], or open a batch: `async with scheduler.batch(Next()) as batch`,"
        " scheduler.submit(job, member_of=batch); the next job finds the results in ctx.parents"
    )


class ParentsTooLarge(_OfJob):
    """What is known of the parents of a job is over 1 MB of JSON."""

    words = (
        "the results of the parents of job {0} are over 1 MB: read them page by page with scheduler.parents({0}),"
        " or let the parents return references"
    )


class LeaseLost(_OfJob):
    """The job was claimed again, or ended, while this attempt was running; nothing of its transaction is kept."""

    words = "attempt {1} of job {0} no longer owns the job: let the handler end"

    def __init__(self, job_id: int, attempt: int) -> None:
        super().__init__(job_id, attempt)
        self.attempt = attempt


class NonRetryableError(Exception):
    """Raise from a handler: the job fails now, whatever attempts are left."""


class _Later(Exception):  # noqa: N818 - never raised itself
    """A handler asks to be run again after `delay` (0 to 366 days)."""

    def __init__(self, delay: timedelta, reason: str = "") -> None:
        if not isinstance(delay, timedelta):
            raise TypeError(f"{type(self).__name__}: delay must be a timedelta, not {type(delay).__name__}")
        if not timedelta(0) <= delay <= _LONGEST_DELAY:
            raise ValueError(f"{type(self).__name__}: delay must be between 0 and 366 days")
        super().__init__(delay, reason)
        self.delay = delay
        self.reason = reason

    def __str__(self) -> str:
        again = f"again after {self.delay.total_seconds():g} s"
        return f"{again}: {self.reason}" if self.reason else again


class RetryAfter(_Later):
    """Raise from a handler: this attempt failed, and the next one starts after `delay`."""


class Snooze(_Later):
    """Raise from a handler: not yet; run again after `delay`, and count no failure."""

    def __init__(self, delay: timedelta) -> None:
        super().__init__(delay)
        self.args = (delay,)  # pickle calls the class with args
