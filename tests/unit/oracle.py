"""An oracle for cron in a time zone: it reads the offset every quarter of an hour, and then counts seconds.

It knows nothing of cronsim, nor of what Python says about gaps and folds.
"""

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import product
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS = {
    "Europe/Berlin": 2025, "America/New_York": 2025, "Australia/Lord_Howe": 2025, "Pacific/Chatham": 2025,
    "Pacific/Apia": 2011,
}  # fmt: skip
QUARTER = 900  # seconds; no zone changes its offset at another time in these years
LIMITS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def seconds(moment):
    return int((moment.replace(tzinfo=UTC) - EPOCH).total_seconds())


def midnight_of(day):
    return seconds(datetime(day.year, day.month, day.day, tzinfo=UTC))


def instant(number):
    return EPOCH + timedelta(seconds=number)


@lru_cache
def segments(zone):
    """Return (start, end, offset), in seconds: the two years and some days, cut where the offset changes."""
    tz, year = ZoneInfo(zone), YEARS[zone]
    begin, end = (seconds(datetime(year + n, 1, 1, tzinfo=UTC)) + days * 86400 for n, days in ((0, -10), (2, 10)))
    cut = []
    for at in range(begin, end, QUARTER):
        offset = int(instant(at).astimezone(tz).utcoffset().total_seconds())
        if not cut or cut[-1][1] != offset:
            cut.append((at, offset))
    return [
        (start, following[0] if following else end, offset)
        for (start, offset), following in zip(cut, [*cut[1:], None], strict=True)
    ]


def changes(zone):
    return [instant(start) for start, _, _ in segments(zone)[1:]]


def parse(field, low, high):
    """Return the numbers that one field names: *, 5, 1-5, */2, 1-9/2, and lists of these."""
    found = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        numbers = range(low, high + 1) if span == "*" else range(int(first), int(last or first) + 1)
        found |= set(numbers[:: int(step or 1)])
    return found


class Expression:
    def __init__(self, text):
        fields = text.split()
        fields = fields if len(fields) == 6 else ["0", *fields]
        self.second, self.minute, self.hour, self.day, self.month, self.weekday = (
            sorted(parse(field, *limits)) for field, limits in zip(fields, LIMITS, strict=True)
        )
        self.both_days = fields[3].startswith("*") or fields[5].startswith("*")
        self.all_day = self.hour == list(range(24))

    def names(self, day):
        of_month, of_week = day.day in self.day, not {day.isoweekday(), day.isoweekday() % 7}.isdisjoint(self.weekday)
        right = of_month and of_week if self.both_days else of_month or of_week
        return right and day.month in self.month

    def times(self, day):
        """Yield the local seconds of a day that the expression names."""
        midnight = midnight_of(day)
        for hour, minute, second in product(self.hour, self.minute, self.second):
            yield midnight + hour * 3600 + minute * 60 + second


def shown(zone, local):
    """Return the instants at which a clock of the zone shows a local second."""
    return [local - offset for start, end, offset in segments(zone) if start <= local - offset < end]


@lru_cache(20_000)
def exists(zone, day):
    midnight = midnight_of(day)
    return any(shown(zone, midnight + quarter) for quarter in range(0, 86400, QUARTER))


def fires(text, zone, begin, end):
    """Return all fire times of an expression from begin up to end, by the written rule."""
    expression, first, last = Expression(text), seconds(begin), seconds(end)
    found, day = set(), (begin - timedelta(days=2)).date()
    while day <= (end + timedelta(days=2)).date():
        if expression.names(day) and exists(zone, day):
            for local in expression.times(day):
                at = shown(zone, local)
                if expression.all_day:
                    found.update(at)
                else:
                    gap_ends = (start for start, _, offset in segments(zone) if start + offset > local)
                    found.add(min(at) if at else min(gap_ends))
        day = date.fromordinal(day.toordinal() + 1)
    return [instant(at) for at in sorted(found) if first <= at < last]
