"""When schedules fire: held against an oracle that counts seconds, in zones whose clocks do all that clocks do."""

import contextlib
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile

import oracle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler import InvalidSchedule
from scheduler.schedules import Coming, Timing

ALWAYS_THE_SAME = settings(deadline=None, database=None, derandomize=True)  # a change that breaks them is to blame
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TICK = timedelta(microseconds=1)
ZONES = list(oracle.YEARS)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPARSE = [
    "30 2 * * *", "30 1 * * *", "0 0 * * *", "45 23 * * *", "*/20 2 * * *", "0 12 1,15 * *",
    "30 2 * * 0", "15 3 1-7 * 7", "0 30 2 * * *", "0 0 29 2 *", "0 0 30 12 *",
]  # fmt: skip
DENSE = [
    "0 * * * *", "*/15 * * * *", "* * * * *", "30 * * * *", "* 2 * * *", "*/15 1-3 * * *",
    "* 0-22 * * *", "*/20 * * * * *",
    "*/20 30 1-3 * * *", "59 59 1,2 * * *",
]  # fmt: skip


def cron(text, zone="UTC"):
    return Timing(mode="cron", cron=text, time_zone=zone)


def computed(text, zone, begin, end):
    return list(takewhile(lambda fire: fire < end, cron(text, zone).fires(begin - TICK)))


# The oracle.


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("text", SPARSE)
def test_f28_b45_a_local_time_fires_as_the_oracle_says_for_two_years(text, zone):
    begin, end = (datetime(oracle.YEARS[zone] + n, 1, 1, tzinfo=UTC) for n in (0, 2))

    assert computed(text, zone, begin, end) == oracle.fires(text, zone, begin, end)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("text", DENSE)
def test_f28_b45_around_every_change_of_the_clock_an_expression_fires_as_the_oracle_says(text, zone):
    for change in oracle.changes(zone):
        begin, end = change - 3 * HOUR, change + 4 * HOUR

        assert computed(text, zone, begin, end) == oracle.fires(text, zone, begin, end), change


def field(low, high):
    number = st.integers(low, high)
    span = st.tuples(number, number).filter(lambda ends: ends[0] < ends[1]).map("{0[0]}-{0[1]}".format)
    step = st.tuples(st.just("*") | span, st.integers(1, high)).map("{0[0]}/{0[1]}".format)
    return st.just("*") | st.lists(number.map(str) | span | step, min_size=1, max_size=2).map(",".join)


FIVE = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7)).map(" ".join)
SIX = st.tuples(st.sampled_from(["0", "30", "*/20", "59"]), FIVE).map(" ".join)


@given(text=FIVE | SIX, zone=st.sampled_from(ZONES), at=st.floats(0, 1), near=st.booleans())
@example(text="*/20 2 * * *", zone="Europe/Berlin", at=0.0, near=True)
@settings(ALWAYS_THE_SAME, max_examples=100)
def test_any_expression_fires_as_the_oracle_says(text, zone, at, near):
    """The next fires from any moment, often one in the hours around a change."""
    changes = oracle.changes(zone)
    if near:
        begin = changes[int(at * (len(changes) - 1))] - 30 * HOUR + timedelta(seconds=int(at * 7919) % 118_800)
    else:
        begin = datetime(oracle.YEARS[zone], 1, 1, tzinfo=UTC) + timedelta(seconds=int(at * 600 * 86400))
    expected = oracle.fires(text, zone, begin, begin + 2 * DAY)[:20]

    assert list(islice(cron(text, zone).fires(begin - TICK), len(expected))) == expected
    if not expected:
        assert cron(text, zone).following(begin) >= begin + 2 * DAY


MOMENTS = st.integers(0, 90 * 365 * 86400).map(lambda s: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=s))


@given(moment=MOMENTS, zone=st.sampled_from(ZONES), text=FIVE | SIX)
@settings(ALWAYS_THE_SAME, max_examples=60)
def test_the_next_fire_is_later_whatever_the_moment_and_from_any_moment_between_it_is_the_same(moment, zone, text):
    fire = cron(text, zone).following(moment)

    assert fire > moment
    assert fire.microsecond == 0
    assert cron(text, zone).following(moment + (fire - moment) / 2) == fire
    assert cron(text, zone).following(fire - TICK) == fire


# The rule in examples, for those who read.


def local(text, zone, begin, count):
    from zoneinfo import ZoneInfo

    fires = islice(cron(text, zone).fires(datetime.fromisoformat(begin).replace(tzinfo=ZoneInfo(zone))), count)
    return [fire.astimezone(ZoneInfo(zone)).isoformat() for fire in fires]


def test_a_time_in_the_gap_fires_at_its_end_and_one_that_comes_twice_at_its_first():
    spring = local("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", 2)
    autumn = local("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", 2)

    assert spring == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    assert autumn == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]


def test_several_times_in_the_gap_are_one_fire():
    assert local("*/20 2 * * *", "Europe/Berlin", "2026-03-29 00:00", 2) == [
        "2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00",
    ]  # fmt: skip


def test_a_day_that_a_zone_left_out_has_no_fire():
    assert local("0 12 * * *", "Pacific/Apia", "2011-12-29 00:00", 2) == [
        "2011-12-29T12:00:00-10:00", "2011-12-31T12:00:00+14:00",
    ]  # fmt: skip


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Pacific/Chatham"])
def test_f28_hourly_fires_every_hour_of_real_time(zone):
    fires = list(islice(cron("15 * * * *", zone).fires(NOW), 24 * 365))

    assert {later - fire for fire, later in pairwise(fires)} == {HOUR}


@pytest.mark.parametrize(
    ("alias", "text"),
    [("@yearly", "0 0 1 1 *"), ("@annually", "0 0 1 1 *"), ("@monthly", "0 0 1 * *"), ("@weekly", "0 0 * * 0"),
     ("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"), (" @Hourly ", "0 * * * *")],
)  # fmt: skip
def test_daily_and_its_kin(alias, text):
    assert [*islice(cron(alias).fires(NOW), 9)] == [*islice(cron(text).fires(NOW), 9)]


def test_of_six_fields_the_first_is_the_seconds():
    assert cron("30 5 12 * * *").following(NOW) == NOW + timedelta(hours=12, minutes=5, seconds=30)


# What is refused.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "five fields"),
        ("60 * * * *", "bad minute"),
        ("* * * * MONDAY", "bad day-of-week"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("* * */20 * 1L", "matches no time in the next 50 years"),
        ("@reboot", "@daily and its kin"),
        ("0" * 201, "at most 200 characters"),
        (7, "must be text"),
    ],
)
def test_an_expression_that_cannot_be_read_or_never_matches_is_refused(text, words):
    with pytest.raises(InvalidSchedule, match=words) as refused:
        cron(text).following(NOW)

    assert refused.value.field == "cron"


@given(st.text(max_size=30) | st.lists(st.sampled_from("0159*/,-#L WMON@"), max_size=25).map("".join))
@settings(ALWAYS_THE_SAME, max_examples=200)
def test_any_text_is_a_schedule_or_is_refused(text):
    with contextlib.suppress(InvalidSchedule):
        assert cron(text).following(NOW) > NOW


@pytest.mark.parametrize("zone", ["", "../x", "/etc/passwd", "Europe", "Europe/Nowhere", "a\0b", "x" * 5000, 5])
def test_a_zone_that_does_not_exist_is_refused(zone):
    with pytest.raises(InvalidSchedule, match=r"time_zone: .* is no IANA zone: write it as in Europe/Berlin"):
        cron("@daily", zone).following(NOW)


# Rates and delays.


@settings(ALWAYS_THE_SAME)
@given(every=st.integers(1, 10**6), late=st.integers(0, 10**9))
def test_a_fixed_rate_counts_from_its_start_and_never_drifts(every, late):
    timing = Timing(mode="fixed_rate", every=every, starts_at=NOW)

    fire = timing.following(NOW + timedelta(milliseconds=late))

    assert (fire - NOW) % timedelta(seconds=every) == timedelta(0)
    assert timedelta(0) < fire - NOW - timedelta(milliseconds=late) <= timedelta(seconds=every)
    assert timing.following(NOW - DAY) == NOW


def test_a_fixed_delay_counts_from_the_moment():
    assert Timing(mode="fixed_delay", every=90).following(NOW) == NOW + timedelta(seconds=90)


# What is due.


@given(
    timing=st.sampled_from(
        [cron("*/7 * * * *"), cron("* * 3 * * *"), Timing(mode="fixed_rate", every=11, starts_at=NOW)]
    ),
    after=st.integers(0, 40_000), wanted=st.integers(1, 50),
)  # fmt: skip
@settings(ALWAYS_THE_SAME, max_examples=40)
def test_of_all_that_is_due_the_newest_are_found(timing, after, wanted):
    first = timing.following(NOW)
    until = first + timedelta(seconds=after)
    every_one = [first, *takewhile(lambda fire: fire <= until, timing.fires(first))]

    assert timing.due(first, until, wanted) == every_one[-wanted:]


def test_what_is_due_of_years_of_seconds_is_found_without_counting_them_all(monkeypatch):
    asked, real = [], Timing.following
    monkeypatch.setattr(Timing, "following", lambda self, moment: asked.append(moment) or real(self, moment))

    due = cron("* * * * * *").due(NOW, NOW + 3000 * DAY, 10)

    assert due == [NOW + 3000 * DAY - timedelta(seconds=n) for n in range(9, -1, -1)]
    assert len(asked) < 100


def test_whatever_goes_wrong_in_the_calendar_is_the_error_of_that_schedule():
    facts = {"id": 1, "version": 3, "next_fire": None, "after": NOW, "until": NOW, "wanted": 1}

    assert "is no IANA zone" in Coming(cron="@daily", time_zone="Nowhere", **facts).fire()["error"]
    assert Coming(cron="@daily", **facts).fire()["next"] == NOW + DAY
    far = facts | {"after": datetime(9999, 12, 31, tzinfo=UTC)}
    assert Coming(mode="fixed_rate", every=9e6, starts_at=NOW, **far).fire()["error"]


def test_a_preview_keeps_to_start_and_end():
    timing = Timing(mode="fixed_rate", every=3600, starts_at=NOW + HOUR, ends_at=NOW + 4 * HOUR)

    assert timing.preview(NOW) == [NOW + n * HOUR for n in (1, 2, 3)]
    assert cron("@hourly").preview(NOW) == [NOW + n * HOUR for n in range(20)]
