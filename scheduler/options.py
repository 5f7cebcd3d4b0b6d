"""What a job class or a queue may set, and the check of each value.

Unset means: the engine's default, or what an operator chose. Defaults are not repeated here, except in Retry,
whose five numbers belong together.
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import IntEnum
from typing import Any, Literal, TypedDict

import msgspec

from scheduler.errors import ConfigurationError

Executor = Literal["async", "thread", "process"]
Ordering = Literal["aging", "fifo", "strict"]

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_MONTH = timedelta(days=30)
_YEAR = timedelta(days=366)
_TEN_YEARS = timedelta(hours=87660)
_CENTURY = timedelta(days=36525)
_MOST = 1_000_000  # attempts or crashes: beyond any use, and far from the end of an int


class Priority(IntEnum):
    """The named priorities; any whole number from -100 to 100 is one too."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    CRITICAL = 3


class Retry(msgspec.Struct, frozen=True):
    """When a failed attempt is followed by another, after min(cap, base * 2^(failures-1)).

    `max_attempts` failures end the job (1: never retried); more than `max_crashes` lost leases do too.
    `jitter` draws the delay between 0 and the value above, so that failures of one moment do not return as one.
    """

    max_attempts: int = 5
    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(hours=1)
    jitter: bool = True
    max_crashes: int = 3


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a job class set. None: not set here."""

    kind: str
    executor: Executor
    queue: str | None = None
    priority: int | None = None
    timeout: timedelta | None = None
    retry: Retry | None = None
    idempotency_window: timedelta | None = None


class JobKeywords(TypedDict, total=False):
    """The class keywords of ours, as checkers and editors see them; `Options` is what becomes of them."""

    kind: str | None
    queue: str | None
    priority: int | None
    timeout: timedelta | None
    retry: Retry | None
    idempotency_window: timedelta | None


class ClassKeywords(JobKeywords, total=False):
    """All class keywords of a job: ours, and those handed on to msgspec."""

    tag: bool | str | int | Callable[[str], str | int] | None
    tag_field: str | None
    rename: Literal["lower", "upper", "camel", "pascal", "kebab"] | Mapping[str, str] | Callable[[str], str | None]
    omit_defaults: bool
    forbid_unknown_fields: bool
    eq: bool
    order: bool
    kw_only: bool
    repr_omit_defaults: bool
    gc: bool
    weakref: bool
    dict: bool
    cache_hash: bool
    frozen: Literal[True]
    array_like: Literal[False]


class Queue(msgspec.Struct, frozen=True):
    """Declare a queue; it enters QUEUES. `step` is what one level of priority is worth under aging.

    Jobs that completed are kept for `keep_completed` (7 days by default), those that failed, timed out or were
    cancelled for `keep_failed` (30 days).
    Raises ConfigurationError on a bad value, and when one name is declared twice with different settings.
    """

    name: str
    ordering: Ordering = "aging"
    step: timedelta | None = None
    keep_completed: timedelta | None = None
    keep_failed: timedelta | None = None

    def __post_init__(self) -> None:
        check_name("queue", "name", self.name)
        owner = f"queue {self.name}"
        if self.ordering not in ("aging", "fifo", "strict"):
            raise ConfigurationError(f"{owner}: ordering must be 'aging', 'fifo' or 'strict'")
        if self.step is not None:
            check_duration(owner, "step", self.step, _TEN_YEARS, "10 years (87660 hours)")
            if self.ordering != "aging":
                raise ConfigurationError(f"{owner}: step belongs to ordering 'aging'; '{self.ordering}' fixes its own")
        for option, value in (("keep_completed", self.keep_completed), ("keep_failed", self.keep_failed)):
            if value is not None:
                check_duration(owner, option, value, _CENTURY, "36525 days")
        if QUEUES.setdefault(self.name, self) != self:
            raise ConfigurationError(f"{owner} is declared twice, with different settings: keep one declaration")


QUEUES: dict[str, Queue] = {}


def check_options(owner: str, options: Options) -> None:
    """Raise ConfigurationError naming `owner`, the option and its rule."""
    check_name(owner, "kind", options.kind)
    if options.queue is not None:
        check_name(owner, "queue", options.queue)
    if options.priority is not None:
        _check_whole(owner, "priority", options.priority, -100, 100)
    if options.timeout is not None:
        check_duration(owner, "timeout", options.timeout, _MONTH, "30 days")
    if options.retry is not None:
        _check_retry(owner, options.retry)
    if options.idempotency_window is not None:
        check_duration(owner, "idempotency_window", options.idempotency_window, _YEAR, "366 days")


def _check_retry(owner: str, retry: Any) -> None:  # noqa: ANN401 - it is what the caller wrote
    if not isinstance(retry, Retry):
        raise ConfigurationError(f"{owner}: retry must be a Retry(...), not {type(retry).__name__}")
    _check_whole(owner, "retry.max_attempts", retry.max_attempts, 1, _MOST)
    _check_whole(owner, "retry.max_crashes", retry.max_crashes, 0, _MOST)
    check_duration(owner, "retry.base", retry.base, _MONTH, "30 days")
    check_duration(owner, "retry.cap", retry.cap, _MONTH, "30 days")
    if retry.base > retry.cap:
        raise ConfigurationError(f"{owner}: retry.base must not exceed retry.cap")
    if not isinstance(retry.jitter, bool):
        raise ConfigurationError(f"{owner}: retry.jitter must be True or False")


def check_name(owner: str, option: str, value: Any) -> None:  # noqa: ANN401 - it is what the caller wrote
    """Raise ConfigurationError unless `value` can name a kind or a queue."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigurationError(f"{owner}: {option} must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -")


def check_duration(owner: str, option: str, value: Any, longest: timedelta, words: str) -> None:  # noqa: ANN401
    """Raise ConfigurationError unless `value` is a timedelta above 0 and at most `longest`."""
    if not isinstance(value, timedelta):
        raise ConfigurationError(f"{owner}: {option} must be a timedelta, not {type(value).__name__}")
    if not timedelta(0) < value <= longest:
        raise ConfigurationError(f"{owner}: {option} must be more than 0 and at most {words}")


def _check_whole(owner: str, option: str, value: Any, least: int, most: int) -> None:  # noqa: ANN401
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(f"{owner}: {option} must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise ConfigurationError(f"{owner}: {option} must be from {least} to {most}")
