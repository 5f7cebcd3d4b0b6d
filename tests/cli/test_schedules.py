"""`scheduler schedules`: list, add, preview, pause, resume, run and delete."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from .commands import column, declare, usage


@pytest.fixture
def schedules(run):
    return lambda *arguments, **environment: run("schedules", *arguments, **environment)


async def test_a_schedule_is_added_and_listed(installed, db):
    await declare(db, "report")

    done = installed("schedules", "add", "nightly", "report", '{"n": 1}', "--cron", "0 3 * * *", "--time-zone",
                     "Europe/Berlin", "--overlap", "queue_one", "--misfire", "backfill", "--backfill-limit", "7",
                     "--jitter", "5m", "--priority", "high", "--tenant", "t", "--unique-key", "u",
                     "--starts-at", "2030-01-01T00:00Z", "--ends-at", "2031-01-01T00:00Z")  # fmt: skip

    assert (done.code, done.out, done.err) == (0, "schedule nightly: created\n", "")
    row = await db.fetchrow("SELECT * FROM scheduler.schedules")
    assert (row["payload"], row["jitter"], row["priority"], row["backfill_limit"]) == (
        '{"n": 1}',
        timedelta(minutes=5),
        2,
        7,
    )
    assert row["ends_at"] == datetime(2031, 1, 1, tzinfo=UTC)
    listed = installed("schedules", COLUMNS="160")
    assert column(listed.out, "name") == ["nightly"]
    assert column(listed.out, "when") == ["0 3 * * * Europe/Berlin"]
    assert json.loads(installed("schedules", "--json").out)[0]["misfire"] == "backfill"


async def test_rates_and_delays_and_what_stands_still(schedules, db):
    assert schedules("add", "rate", "k", "--every", "5m").code == 0
    assert schedules("add", "delay", "k", "--every", "90s", "--mode", "fixed_delay").code == 0
    schedules(
        "add", "over", "k", "--cron", "@daily", "--starts-at", "2020-01-01T00:00Z", "--ends-at", "2021-01-01T00:00Z"
    )
    schedules("pause", "rate")
    await db.execute("UPDATE scheduler.schedules SET error = 'it is broken' WHERE name = 'delay'")

    listed = schedules("list", COLUMNS="140").out

    assert column(listed, "name") == ["delay", "over", "rate"]
    assert column(listed, "when") == ["90s after its job", "@daily UTC", "every 5m"]
    assert column(listed, "note") == ["stopped: it is broken", "ended", "paused"]


def test_an_empty_list_says_what_to_do(schedules):
    said = "scheduler: there are no schedules yet: `scheduler schedules add --help` tells how to make one\n"
    assert vars(schedules()) == {"code": 0, "out": "", "err": said}


async def test_pause_resume_run_and_delete(schedules, db):
    schedules("add", "s", "k", "--every", "5m")

    assert schedules("pause", "s").out == "schedule s is paused; its jobs go on\n"
    assert await db.fetchval("SELECT paused FROM scheduler.schedules")
    assert schedules("resume", "s").out == "schedule s fires again\n"
    assert schedules("resume", "s").out == "schedule s did not stand still\n"
    job_id = int(schedules("run", "s").out)
    assert await db.fetchval("SELECT fire_time IS NOT NULL FROM scheduler.jobs WHERE id = $1", job_id)
    assert schedules("delete", "s").out == "schedule s is deleted; its jobs stay\n"
    assert await db.fetchval("SELECT count(*) FROM scheduler.schedules") == 0
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 1


def test_a_run_that_meets_a_taken_key_says_so(schedules):
    schedules("add", "s", "k", "--every", "5m", "--unique-key", "u")
    schedules("run", "s")

    assert schedules("run", "s").out == "its unique_key is taken: no job was made\n"


def test_a_dry_run_prints_the_next_20_fires_and_changes_nothing(schedules):
    words = (
        "add",
        "s",
        "k",
        "--cron",
        "30 2 * * *",
        "--time-zone",
        "Europe/Berlin",
        "--starts-at",
        "2030-03-30T00:00Z",
    )

    dry = schedules(*words, "--dry-run").out.splitlines()

    assert len(dry) == 20
    assert dry[:2] == ["Sat 2030-03-30 02:30:00 +0100 Europe/Berlin", "Sun 2030-03-31 03:00:00 +0200 Europe/Berlin"]
    assert schedules("--json").out == "[]\n"
    schedules(*words)
    assert schedules("preview", "s").out.splitlines() == dry
    assert len(json.loads(schedules("preview", "s", "--json").out)) == 20


def test_a_dry_run_of_a_rate(schedules):
    shown = schedules(
        "add", "s", "k", "--every", "12h", "--starts-at", "2030-01-01T00:00Z", "--dry-run"
    ).out.splitlines()

    assert shown[1] == "Tue 2030-01-01 12:00:00 +0000 UTC"


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "delete", "preview"])
def test_a_name_that_no_schedule_has_is_refused(schedules, verb):
    schedules("add", "nightly", "k", "--every", "5m")

    refused = schedules(verb, "nigthly")

    assert (refused.code, refused.err) == (1, "scheduler: no schedule is named 'nigthly': did you mean 'nightly'?\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--cron", "61 * * * *"), 1, "cron: '61 * * * *': bad minute"),
        (("--cron", "0 0 30 2 *"), 1, "bad day-of-month"),
        (("--cron", "@daily", "--time-zone", "Berlin"), 1, "time_zone: 'Berlin' is no IANA zone"),
        ((), 1, "cron: must be given, or every, and not both"),
        (("--every", "5 minutes"), 2, "must be a number with s, m, h or d"),
        (("--every", "5m", "--starts-at", "2030-01-01"), 2, "has no time zone"),
        (("--every", "5m", "--overlap", "wait"), 2, "'wait' is not one of"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_in_one_sentence(schedules, words, code, said):
    refused = schedules("add", "s", "k", *words)

    assert (refused.code, refused.out) == (code, "")
    assert said in refused.err


def test_help_lists_the_commands_and_an_unknown_one_is_named():
    told = usage("schedules", "--help")
    assert (told.code, [word in told.out for word in ("add", "preview", "pause", "resume", "run", "delete")]) == (
        0,
        [True] * 6,
    )
    assert "No such command 'ad'" in usage("schedules", "ad").err
