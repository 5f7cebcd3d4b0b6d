"""Numbers and their relations: read once, checked against each other, with the reason in the message."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from scheduler.errors import ConfigurationError
from scheduler.options import check_name

NO_DATABASE = (
    "no database is named: set SCHEDULER_DSN (or pass dsn) to postgresql://user@host/database,"
    " or to embedded: for a private PostgreSQL to try things with"
)


def dsn_from(dsn: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the DSN given or that of SCHEDULER_DSN; raises ConfigurationError naming both ways in."""
    found = dsn or environment.get("SCHEDULER_DSN")
    if not found:
        raise ConfigurationError(NO_DATABASE)
    return found


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process is set to. Slots are attempts at once, per executor; 0 switches an executor off.

    `lease` is how long an attempt is safe without a renewal, `grace` how long a stopping worker lets attempts finish,
    `poll` the longest an idle worker waits when no notice reaches it. Raises ConfigurationError when two disagree.
    """

    queues: tuple[str, ...] = ()
    async_slots: int = 100
    threads: int = 10
    processes: int = 2
    lease: timedelta = timedelta(seconds=30)
    renew_every: timedelta | None = None
    grace: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        for queue in self.queues:
            check_name("worker", "queues", queue)
        for name in ("async_slots", "threads", "processes"):
            _check_slots(name, getattr(self, name))
        for name in ("lease", "grace", "poll"):
            if not isinstance(value := getattr(self, name), timedelta) or value < timedelta(0):
                raise ConfigurationError(f"{name} must be a timedelta of 0 or more")
        if not timedelta(seconds=1) <= self.lease <= timedelta(hours=1):
            raise ConfigurationError(f"lease ({_words(self.lease)}) must lie between 1 s and 1 hour")
        if self.heartbeat * 3 > self.lease:
            raise ConfigurationError(
                f"renew_every ({_words(self.heartbeat)}) must fit three times in lease ({_words(self.lease)}):"
                " one missed renewal is not a lost job"
            )
        if self.poll < timedelta(milliseconds=10):
            raise ConfigurationError(f"poll ({_words(self.poll)}) must be at least 10 ms: the database is shared")

    @property
    def heartbeat(self) -> timedelta:
        return self.renew_every if self.renew_every is not None else self.lease // 3


def _check_slots(name: str, value: Any) -> None:  # noqa: ANN401 - it is what the caller wrote
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10_000:
        raise ConfigurationError(f"{name} must be a whole number from 0 to 10,000")


def _words(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
