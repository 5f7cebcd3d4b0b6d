"""Numbers and their relations: read once, checked against each other, with the reason in the message."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from scheduler.errors import ConfigurationError
from scheduler.options import check_name

_HOST = re.compile(r"(\[[^\]@]*\]|[^\[\]:,@]*)(:\d+)?")
LEAST_MEMORY = 64  # MB; a child that has imported next to nothing has 30
_MOST = 1_000_000_000
NO_DATABASE = (
    "no database is named: set SCHEDULER_DSN (or pass dsn) to postgresql://user@host/database,"
    " or to embedded: for a private PostgreSQL to try things with"
)


def dsn_from(dsn: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the DSN given or that of SCHEDULER_DSN; raises ConfigurationError naming both ways in.

    It never quotes what it cannot read: somewhere in there is a password.
    """
    found = dsn or environment.get("SCHEDULER_DSN")
    if not found:
        raise ConfigurationError(NO_DATABASE)
    if not found.startswith("embedded:") and not _is_readable(found):
        raise ConfigurationError(
            "the DSN cannot be read: it must be embedded: or postgresql://user:password@host:port/database, where"
            " special characters in the password are %-encoded, as in %40 for @ and %2F for /"
        )
    return found


def _is_readable(dsn: str) -> bool:
    """Tell whether the driver will find in the DSN what its author meant."""
    try:
        parts = urlsplit(dsn)
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        return False
    hosts = parts.netloc.partition("@")[2] or parts.netloc
    return parts.scheme in {"postgresql", "postgres"} and all(_HOST.fullmatch(host) for host in hosts.split(","))


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process is set to. Slots are attempts at once, per executor; 0 switches an executor off.

    `child_memory` is how many MB (1,048,576 bytes) of private memory a child process may have, on Linux; after
    `child_jobs` jobs it is replaced; 0: no limit. `lease` is how long an attempt is safe without a renewal, `grace` how
    long a stopping worker lets attempts finish, `poll` the longest an idle worker waits when no notice reaches it.
    Raises ConfigurationError when two disagree.
    """

    queues: tuple[str, ...] = ()
    async_slots: int = 100
    threads: int = 10
    processes: int = 2
    child_memory: int = 0
    child_jobs: int = 0
    lease: timedelta = timedelta(seconds=30)
    renew_every: timedelta | None = None
    grace: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        for queue in self.queues:
            check_name("worker", "queues", queue)
        for name in ("async_slots", "threads", "processes"):
            _check_whole(name, getattr(self, name), 10_000)
        _check_whole("child_memory", self.child_memory, _MOST, least=LEAST_MEMORY)
        _check_whole("child_jobs", self.child_jobs, _MOST, least=1)
        for name in ("lease", "renew_every", "grace", "poll"):
            value = getattr(self, name)
            if (value, name) != (None, "renew_every") and (not isinstance(value, timedelta) or value < timedelta(0)):
                raise ConfigurationError(f"{name} must be a timedelta of 0 or more")
        if not timedelta(seconds=1) <= self.lease <= timedelta(hours=1):
            raise ConfigurationError(f"lease ({_words(self.lease)}) must lie between 1 s and 1 hour")
        if self.heartbeat < timedelta(milliseconds=100):
            raise ConfigurationError(
                f"renew_every ({_words(self.heartbeat)}) must be at least 100 ms: every worker does it"
            )
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


def _check_whole(name: str, value: Any, most: int, *, least: int = 0) -> None:  # noqa: ANN401 - it is what the caller wrote
    if not isinstance(value, int) or isinstance(value, bool) or (value != 0 and not least <= value <= most):
        zero = "0 (no limit) or " if least else ""
        raise ConfigurationError(f"{name} must be {zero}a whole number from {least} to {most:,}")


def _words(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
