"""Recurring schedules: how they are declared, and when they fire. Pure: the moment is an argument.

The rule of daylight saving: a fixed local time fires once on each local day that it names; in a gap of the clock at the
gap's end, in an overlap at its first occurrence; a day that the zone leaves out has no fire. Where the hour field names
all 24 hours, the expression runs through real time: it fires whenever the clock on the wall shows a time that it names.

cronsim reads the expressions, and counts on a wall clock without a zone; what is above is done here.
"""

from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from scheduler.errors import ConfigurationError, InvalidSchedule
from scheduler.payload import encode_json, encode_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.job import Job

Mode = Literal["cron", "fixed_rate", "fixed_delay"]

ALIASES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_FIELDS = "five fields (minute hour day month weekday), six with seconds before them, or @daily and its kin"
_EVERY_HOUR = set(range(24))
_TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)  # from any day on, a cron expression that matches at all does in 28 years


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule fires; `every` in seconds. A fixed rate counts from `starts_at`."""

    mode: Mode = "cron"
    cron: str | None = None
    time_zone: str = "UTC"
    every: float | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def following(self, moment: datetime) -> datetime:
        """Return the first fire time after `moment`, in UTC. Raises InvalidSchedule when there is none."""
        moment = moment.astimezone(UTC)
        if self.cron is not None:
            return _of_cron(self.cron, _zone(self.time_zone), moment)
        every, anchor = timedelta(seconds=self.every or 0), self.starts_at or moment
        if self.mode == "fixed_delay":  # after a job that ended at `moment`
            return moment + every
        return anchor + max((moment - anchor) // every + 1, 0) * every

    def fires(self, moment: datetime) -> "Iterator[datetime]":
        """Yield the fire times after `moment`; of a fixed delay, those of jobs that take no time."""
        while True:
            moment = self.following(moment)
            yield moment

    def preview(self, now: datetime, count: int = 20) -> list[datetime]:
        """Return the next fire times from `now` on, if nothing is edited."""
        fires = self.fires(max(now, self.starts_at or now) - _TICK)
        return list(islice(takewhile(lambda fire: self.ends_at is None or fire < self.ends_at, fires), count))

    def due(self, first: datetime, until: datetime, wanted: int) -> list[datetime]:
        """Return the newest `wanted` fire times from `first`, which is one, to `until`, oldest first."""
        if self.mode == "fixed_delay" or first >= until:
            return [first]
        window = _SECOND  # looked through from its end: there may have been millions
        while True:
            start = max(until - window, first)
            found = list(takewhile(lambda fire: fire <= until, self.fires(start - _TICK if start > first else first)))
            if start == first:
                return [first, *found][-wanted:]
            if len(found) >= wanted:
                return found[-wanted:]
            window *= 4


class Coming(Timing, frozen=True, kw_only=True):
    """A schedule that is due or soon will be, as the verb `fire` tells of it."""

    id: int
    version: int
    next_fire: datetime | None
    after: datetime
    until: datetime
    wanted: int

    def fire(self) -> dict[str, Any]:
        """Return what `fire` takes: what is due and what follows. Whatever goes wrong is the error of this schedule."""
        fire: dict[str, Any] = {"id": self.id, "version": self.version, "fire_time": self.next_fire}
        try:
            if self.next_fire is not None:
                fire["times"] = self.due(self.next_fire, self.until, self.wanted)
            if self.next_fire is None or self.mode != "fixed_delay":  # which follows the end of its job
                fire["next"] = self.following(max(self.after, self.until) if self.next_fire else self.after)
        except Exception as error:  # noqa: BLE001 - one schedule must not stop all the others
            return fire | {"error": str(error) or type(error).__name__}
        return fire


class Fired(msgspec.Struct):
    """What the verb `fire` answers."""

    fired: int
    now: datetime
    schedules: list[Coming]


@cache
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        rule = f"{str(name)[:100]!r} is no IANA zone: write it as in Europe/Berlin"
        raise InvalidSchedule("time_zone", rule) from None


def _of_cron(expression: str, zone: ZoneInfo, moment: datetime) -> datetime:
    if not isinstance(expression, str) or len(expression) > 200:
        raise InvalidSchedule("cron", f"must be text of at most 200 characters: {_FIELDS}")
    expression = ALIASES.get(expression.strip().lower(), expression)
    try:
        wall = _walk(expression, moment.astimezone(zone))
        if wall.hours == _EVERY_HOUR:
            return _through_real_time(expression, zone, moment.replace(microsecond=0))
        return next(fire for local in wall if (fire := _instant(local, zone)) and fire > moment)
    except CronSimError as error:
        raise InvalidSchedule("cron", f"{expression!r}: {str(error).lower()}; it has {_FIELDS}") from None
    except (StopIteration, OverflowError):
        raise InvalidSchedule("cron", f"{expression!r} matches no time in the next 50 years: mend it") from None


@lru_cache(1024)
def _parsed(expression: str) -> CronSim:
    return CronSim(expression, _SOME_DAY.replace(tzinfo=None))


def _walk(expression: str, wall: datetime) -> CronSim:
    """Return what yields the times after one on a clock without a zone; to read the expression takes the longest."""
    walk = copy(_parsed(expression))
    walk.dt = wall.replace(tzinfo=None, microsecond=0)
    return walk


def _instant(local: datetime, zone: ZoneInfo) -> datetime | None:
    """Return when a clock of the zone first shows a time, or the end of the gap it lies in; None on a missing day."""
    instant = local.replace(tzinfo=zone).astimezone(UTC)  # of a time in a gap: after its end, as its offset is older
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    end = _change(zone, local.replace(tzinfo=zone, fold=1).astimezone(UTC), instant)
    is_missing = (end - _SECOND).astimezone(zone).date() < local.date() < end.astimezone(zone).date()
    return None if is_missing else end


def _through_real_time(expression: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Follow the clock on the wall from one change of its offset to the next."""
    offset = _offset(zone, moment)
    while True:
        fire = next(_walk(expression, moment + offset)).replace(tzinfo=UTC) - offset
        end = min(fire, moment + _DAY)
        if _offset(zone, end) != offset:
            change = _change(zone, moment, end)
            moment, offset = change - _SECOND, _offset(zone, change)
        elif end == fire:
            return fire
        else:  # whatever the offset will be, two days before there is none
            moment = max(end, fire - 2 * _DAY)
            offset = _offset(zone, moment)


def _change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """Return the second between two instants at which the offset becomes that of `high`."""
    offset = _offset(zone, high)
    while (seconds := (high - low) // _SECOND) > 1:
        middle = low + seconds // 2 * _SECOND
        low, high = (low, middle) if _offset(zone, middle) == offset else (middle, high)
    return high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


class ScheduleOptions(TypedDict, total=False):
    """What may be said of a schedule; None is as good as left out.

    cron: on the clock of `time_zone` (UTC), five fields, six with seconds before them, or @daily and its kin. Or every:
    from fire to fire, with mode="fixed_delay" from the end of a job to the next fire. starts_at, ends_at: from then on,
    and before then (aware). jitter: its jobs run up to so much later. priority, tenant, unique_key: of its jobs.
    overlap, while a job of it is unfinished: "skip" (default), "queue_one" or "allow". misfire, when fires were missed:
    "coalesce" into one (default), "skip", or "backfill" the newest `backfill_limit` (100).
    """

    cron: str | None
    time_zone: str | None
    every: timedelta | None
    mode: Mode | None
    starts_at: datetime | None
    ends_at: datetime | None
    jitter: timedelta | None
    priority: int | None
    tenant: str | None
    unique_key: str | None
    overlap: Literal["skip", "queue_one", "allow"] | None
    misfire: Literal["coalesce", "skip", "backfill"] | None
    backfill_limit: int | None


class Schedule:
    """Declare a schedule beside its job: it enters SCHEDULES, and workers that run the job declare it at the start.

    Raises InvalidSchedule naming the option and its rule, ConfigurationError when a name is declared twice.
    """

    def __init__(self, name: str, job: "Job", **options: Unpack[ScheduleOptions]) -> None:
        self.name, self.definition = name, definition(job, options)
        if SCHEDULES.setdefault(name, self).definition != self.definition:
            raise ConfigurationError(f"schedule {name} is declared twice, with different settings: keep one of the two")


SCHEDULES: dict[str, Schedule] = {}


def definition(job: "Job", options: ScheduleOptions) -> dict[str, Any]:
    """Return what the verb `upsert_schedule` takes, which has all other rules. Raises InvalidSchedule, InvalidJob."""
    said = {name: value for name, value in options.items() if value is not None}
    check_timing(said)
    for name, value in said.items():
        if isinstance(value, str):
            encode_json(name, value, 1000)
    return {"kind": job.options.kind, "payload": msgspec.Raw(encode_payload(job)), **said}


def check_timing(said: dict[str, Any]) -> None:
    """Raise InvalidSchedule unless the calendar can make something of the options `cron` and `time_zone`."""
    zone, cron = _zone(said.get("time_zone", "UTC")), said.get("cron")
    if cron is not None:
        _of_cron(cron, zone, _SOME_DAY)
