"""Queues, kinds and workers at a glance; pause and resume; what a role without rights is told."""

import getpass
import json
import os
import re
import secrets
import socket
import subprocess
import uuid
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from .commands import PROGRAM, claim, column, declare, insert

YOU = f"{getpass.getuser()}@{socket.gethostname()}"
LONG = "shop.reports.monthly_report_of_all_customers"


async def register(db, host="db-1", queues=("default",), kinds=("k",), seen="0 s", **facts):
    facts = {
        "host": host, "pid": 4711, "version": "0.1.0", "queues": queues, "kinds": kinds,
        "slots": {"async": 100, "thread": 10}, "channel": f"c{secrets.token_hex(4)}", "draining": False,
    } | facts  # fmt: skip
    worker = uuid.uuid4()
    await db.execute("SELECT scheduler.register($1, $2)", worker, json.dumps(facts))
    moment = "UPDATE scheduler.workers SET seen_at = now() - $2::text::interval WHERE id = $1"
    await db.execute(moment, worker, seen)
    return str(worker)


async def paused(db, table="queues"):
    """Return what is left of the only pause, None for one without an end, and by whom; None where there is no pause."""
    row = await db.fetchrow(
        "SELECT CASE WHEN paused_until < 'infinity' THEN paused_until - now() END AS left, paused_by"
        f" FROM scheduler.{table} WHERE paused_until > now()"
    )
    return row and tuple(row)


# Pause and resume.


async def test_a_queue_is_paused_until_it_is_resumed(installed, db):
    await declare(db, "k")
    await insert(db, 1, queue="mail")

    done = installed("pause", "--queue", "mail")

    said = "queue mail is paused until `scheduler resume --queue mail`; its running jobs go on\n"
    assert (done.code, done.out, done.err) == (0, said, "")
    assert await paused(db) == (None, YOU)
    assert column(installed("queues", COLUMNS="120").out, "note") == ["", f"no worker, paused by {YOU}"]
    assert installed("resume", "--queue", "mail").out == "queue mail goes on\n"
    assert await paused(db) is None
    again = installed("resume", "--queue", "mail")
    assert (again.code, again.out) == (0, "queue mail was not paused\n")


async def test_a_kind_is_paused_for_a_while_by_somebody(run, db):
    await declare(db, "k", "other")
    await insert(db, 1), await insert(db, 1, "other")

    done = run("pause", "--kind", "k", "--for", "10m", "--by", "ann")

    until = re.fullmatch(r"kind k is paused until (.{19}) UTC; its running jobs go on\n", done.out)[1]
    assert timedelta(0) < datetime.fromisoformat(f"{until}Z") - datetime.now(UTC) <= timedelta(minutes=10)
    left, by = await paused(db, "kinds")
    assert (timedelta(0) < left <= timedelta(minutes=10), by) == (True, "ann")
    assert (await claim(db, "k"))["id"] is None
    assert (await claim(db, "other"))["id"] is not None
    assert run("resume", "--kind", "k").out == "kind k goes on\n"
    assert (await claim(db, "k"))["id"] is not None


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_name_that_nothing_has_is_refused_with_the_nearest_one(run, db, verb):
    await declare(db, "send_email")
    await insert(db, 1, "send_email", queue="mail")

    for words, said in (
        (["--queue", "mial"], "no queue is named 'mial': did you mean 'mail'?"),
        (["--queue", "zzz"], "no queue is named 'zzz': `scheduler queues` lists what there is"),
        (["--queue", ""], "no queue is named '': `scheduler queues` lists what there is"),
        (["--kind", "sendemail"], "no kind is named 'sendemail': did you mean 'send_email'?"),
        (["--kind", "mail"], "no kind is named 'mail'"),
    ):
        refused = run(verb, *words)

        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith(f"scheduler: {said}")
        assert refused.err.count("\n") == 1
    assert await paused(db) is await paused(db, "kinds") is None
    assert await db.fetchval("SELECT count(*) FROM scheduler.queues WHERE queue IN ('mial', 'zzz')") == 0


async def test_a_pause_out_of_range_is_refused(run, db):
    await declare(db, "k")

    for words in (["--for", "0s"], ["--for", "400d"]):
        refused = run("pause", "--kind", "k", *words)

        assert (refused.code, refused.out) == (1, "")
        assert refused.err == (
            "scheduler: for: must be over 0 and at most 366 days: leave it out to pause until it is resumed\n"
        )


# Lists.


def test_empty_lists_say_what_to_do(run):
    for words, said in (
        ("queues", "there are no queues yet: submit a job, or run `scheduler declare --app MODULE`"),
        ("kinds", "there are no kinds yet: run `scheduler declare --app MODULE`, or a worker with your job classes"),
        ("workers", "no worker runs: start one with `scheduler-worker --app MODULE`"),
    ):
        assert vars(run(words)) == {"code": 0, "out": "", "err": f"scheduler: {said}\n"}
        assert run(words, "--json").out == "[]\n"


async def fill(db):
    """Something of everything: served and not, paused and not, declared and not, busy, draining and dead."""
    await declare(db, "k", LONG)
    await register(db, queues=["default"], kinds=["k"])
    await register(db, "a-host-with-a-long-name.example.org", ["mail", "default"], ["k", LONG], "3 m", pid=7)
    await register(db, "db-2", draining=True)
    await insert(db, 3)
    await claim(db, "k")
    await insert(db, 2, LONG, queue="reports.nightly.europe-west")
    await insert(db, 1, queue="mail", run_at=datetime.now(UTC) + timedelta(hours=2))
    await insert(db, 1, "unheard_of")
    await db.execute("SELECT scheduler.pause('mail', NULL, NULL, 'ann')")
    await db.execute("SELECT scheduler.pause(NULL, 'k', '2 h 5 min', 'ann\x1b[31m')")
    await db.execute("UPDATE scheduler.jobs_active SET run_at = now() - interval '5 min' WHERE kind = $1", LONG)
    await db.execute("UPDATE scheduler.jobs_active SET submitted_at = run_at WHERE kind = $1", LONG)


@pytest.mark.parametrize("columns", [80, 120])
async def test_queues_show_depth_age_and_what_holds_them(installed, db, columns):
    await fill(db)

    table = installed("queues", COLUMNS=str(columns)).out

    assert table.splitlines()[0].split() == ["queue", "pending", "running", "delayed", "blocked", "oldest", "note"]
    rows = {row.split()[0]: row.split() for row in table.splitlines()[1:] if len(row.split()) > 5}
    assert rows["default"][1:5] == ["2", "1", "0", "0"]
    assert rows["mail"][1:] == ["0", "0", "1", "0", "-", "paused", "by", "ann"]
    assert rows["-"][1:3] + rows["-"][6:] == ["1", "0", "not", "declared"]
    (reports,) = (row for name, row in rows.items() if name.startswith("reports"))
    assert reports[1:] == ["2", "0", "0", "0", "5m", "no", "worker"]
    assert max(map(len, table.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 120])
async def test_kinds_show_what_waits_and_what_holds_them(installed, db, columns):
    await fill(db)

    table = installed("kinds", COLUMNS=str(columns)).out

    assert table.splitlines()[0].split() == ["kind", "queue", "executor", "waiting", "running", "note"]
    rows = {row.split()[0]: row.split() for row in table.splitlines()[1:] if len(row.split()) > 4}
    assert rows["k"][:7] == ["k", "default", "async", "3", "1", "paused", "by"]
    assert "ann\ufffd[31m, 2h left" in " ".join(" ".join(row.split()[-3:]) for row in table.splitlines())
    assert rows["unheard_of"][1:] == ["-", "-", "1", "0", "not", "declared"]
    assert max(map(len, table.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 120])
async def test_workers_show_where_they_run_and_who_is_dead(installed, db, columns):
    await fill(db)

    table = installed("workers", COLUMNS=str(columns)).out

    heads = ["worker", "host", "pid", "version", "queues", "running", "age", "seen", "state"]
    assert table.splitlines()[0].split() == heads
    rows = [row.split() for row in table.splitlines()[1:] if row.split()[-1] in {"up", "dead", "draining"}]
    assert [row[-1] for row in rows] == ["up", "dead", "draining"]
    assert [row[2] for row in rows] == ["4711", "7", "4711"]
    assert rows[1][-2] == "3m"
    assert rows[0][-4] == "0/110"
    assert max(map(len, table.splitlines())) <= columns


async def test_workers_show_how_many_handlers_they_could_not_stop(installed, db):
    await register(db, abandoned=2)

    assert installed("workers", COLUMNS="120").out.rstrip().endswith(" up, 2 abandoned")


async def test_in_a_pipe_nothing_is_cut_and_nothing_is_coloured(dsn, db):
    await fill(db)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"SCHEDULER_DSN": dsn}

    piped = {
        words: subprocess.run([PROGRAM, words], env=environment, capture_output=True, text=True, check=True).stdout
        for words in ("queues", "kinds", "workers", "jobs")
    }

    assert "reports.nightly.europe-west " in piped["queues"]
    assert LONG in piped["kinds"]
    assert LONG in piped["jobs"]
    assert " a-host-with-a-long-name.example.org " in piped["workers"]
    assert not re.search("[\x1b…]", "".join(piped.values()))


async def test_on_a_terminal_a_pause_stands_out(terminal, db):
    await fill(db)

    shown = terminal("queues")
    code, text = shown.end()

    assert (code, shown.colours) == (0, True)
    assert "paused by ann" in text
    assert max(map(len, text.splitlines())) <= 80


async def test_programs_get_everything(run, db):
    await fill(db)

    queues, kinds, workers = (json.loads(run(words, "--json").out) for words in ("queues", "kinds", "workers"))

    (mail,) = (row for row in queues if row["queue"] == "mail")
    assert (mail["delayed"], mail["paused"], mail["paused_for"], mail["paused_by"]) == (1, True, None, "ann")
    (k,) = (row for row in kinds if row["kind"] == "k")
    assert (k["waiting"], k["running"], 0 < k["paused_for"] < 7500) == (3, 1, True)
    assert [len(row["id"]) for row in workers] == [36] * 3


# Who may not, and who is not there.


@pytest.fixture
async def without_rights(db, dsn):
    """The address for an account that may submit, and nothing else."""
    name = f"leasework_test_{secrets.token_hex(6)}"
    await db.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'hush' IN ROLE scheduler_submitter")
    parts = urlsplit(dsn)
    yield parts._replace(netloc=f"{name}:hush@{parts.hostname}:{parts.port}").geturl()
    await db.execute(f"DROP ROLE {name}")


def test_a_role_without_rights_is_told_in_one_sentence(run, without_rights):
    for words in (
        ["jobs"], ["queues"], ["kinds"], ["workers"], ["cancel", "1"], ["retry", "1"], ["prune", "1"],
        ["cancel", "--kind", "k", "--yes"], ["pause", "--queue", "mail"], ["resume", "--kind", "k"],
    ):  # fmt: skip
        refused = run(*words, SCHEDULER_DSN=without_rights)

        assert (refused.code, refused.out) == (3, "")
        assert re.fullmatch(r"scheduler: permission denied for function \w+: GRANT .* to this role\n", refused.err)


@pytest.mark.parametrize("words", [["queues"], ["kinds", "--json"], ["cancel", "--kind", "k", "--yes"]])
async def test_a_reader_that_goes_away_is_no_error(db, dsn, words):
    await fill(db)
    pipeline = f"{PROGRAM} {' '.join(words)} | true"

    environment = os.environ | {"SCHEDULER_DSN": dsn}
    done = subprocess.run(pipeline, shell=True, env=environment, capture_output=True, text=True, check=False)

    assert done.stderr == ""


async def test_a_locale_without_a_character_gets_a_question_mark(installed, db):
    await declare(db, "k")
    await db.execute("SELECT scheduler.pause(NULL, 'k', NULL, 'Zo\u2713')")

    latin_1 = {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}
    table, told = installed("kinds", **latin_1), installed("kinds", "--json", **latin_1)

    assert table.code == told.code == 0
    assert "paused by Zo?" in table.out
    assert json.loads(told.out)[0]["paused_by"] == "Zo\u2713"
