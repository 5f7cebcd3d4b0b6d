"""What goes wrong in the first five minutes ends in one sentence that says what to do."""

import signal
import sys
from urllib.parse import urlsplit

import pytest
from newcomer import User

JOBS = """
    from scheduler import AsyncJob, BlockingJob, CpuBoundJob

    class Greet(AsyncJob, queue="mail"):
        name: str = "you"
        async def run(self, ctx):
            return f"hello {self.name}"

    class Sum(CpuBoundJob):
        upto: int
        def run(self, ctx):
            return sum(range(self.upto))
"""
SCRIPTS = {
    "client.py": """
        import asyncio
        from scheduler import Scheduler
        async def main():
            async with Scheduler.connect(): ...
        asyncio.run(main())
    """,
    "runner.py": """
        import asyncio
        import jobs
        from worker import Worker
        async def main():
            async with Worker(): ...
        asyncio.run(main())
    """,
}
WAYS_IN = [
    ("scheduler", "jobs"),
    ("scheduler", "submit", "Greet"),
    ("scheduler", "migrate"),
    ("scheduler-worker", "--app", "jobs"),
    ("python", "client.py"),
    ("python", "runner.py"),
]
ONE_OF_EACH = [WAYS_IN[0], WAYS_IN[3], WAYS_IN[4]]


@pytest.fixture
def user(tmp_path):
    """A user with a module of job classes and two scripts, and no database yet."""
    user = User(tmp_path)
    user.writes("jobs.py", JOBS)
    for name, text in SCRIPTS.items():
        user.writes(name, text)
    return user


@pytest.fixture
def served(user, dsn):
    """The user, with a database."""
    user.environment["SCHEDULER_DSN"] = dsn
    return user


def told(user, way, code):
    """The sentence a command ends with, or the error a script does, which has no exit code of ours."""
    answer = user.run(*way)
    if way[0] == "python":
        assert answer.code == 1, answer
        return answer.err.splitlines()[-1].partition(": ")[2]
    assert answer.code == code, answer
    return answer.sentence.removeprefix(f"{way[0]}: ")


# The database.


@pytest.mark.parametrize("way", WAYS_IN, ids=" ".join)
def test_without_a_database_both_ways_to_name_one_are_said(user, way):
    assert told(user, way, 3) == (
        "no database is named: set SCHEDULER_DSN (or pass dsn) to postgresql://user@host/database,"
        " or to embedded: for a private PostgreSQL to try things with"
    )


@pytest.mark.parametrize("way", ONE_OF_EACH, ids=" ".join)
def test_a_server_that_is_not_there_is_looked_for_at_the_dsn(user, way):
    user.environment["SCHEDULER_DSN"] = "postgresql://postgres:secret@127.0.0.1:1/postgres"

    sentence = told(user, way, 4)

    assert sentence.startswith("PostgreSQL cannot be reached: ")
    assert sentence.endswith(": see that it runs, and that host and port of the DSN are right")
    assert "secret" not in sentence


@pytest.mark.parametrize("way", ONE_OF_EACH, ids=" ".join)
def test_a_wrong_password_or_database_is_named_with_the_way_out(user, way, dsn):
    parts = urlsplit(dsn)
    netloc = f"postgres:wrong@{parts.hostname}:{parts.port}"

    user.environment["SCHEDULER_DSN"] = parts._replace(netloc=netloc).geturl()
    password = told(user, way, 4)
    user.environment["SCHEDULER_DSN"] = parts._replace(path="/no_such_database").geturl()
    database = told(user, way, 4)

    assert 'user "postgres": see that user and password of the DSN are right' in password
    assert 'database "no_such_database" does not exist: create it, or name another in the DSN' in database


@pytest.mark.parametrize("way", ONE_OF_EACH, ids=" ".join)
def test_a_database_without_the_schema_is_to_be_migrated(user, way, empty_dsn):
    user.environment["SCHEDULER_DSN"] = empty_dsn

    assert told(user, way, 5) == "the database has no schema of this version: run `scheduler migrate`"


@pytest.mark.parametrize("way", ONE_OF_EACH, ids=" ".join)
async def test_an_older_schema_is_to_be_migrated_and_a_newer_one_wants_a_newer_version(served, db, way):
    for revision, way_out in (("0000", "run `scheduler migrate`"), ("9999", "install a newer leasework on this host")):
        await db.execute("UPDATE scheduler.alembic_version SET version_num = $1", revision)

        sentence = told(served, way, 5)

        assert sentence.startswith(f"the schema is at revision {revision}, this version needs ")
        assert sentence.endswith(f": {way_out}")


async def test_a_newer_schema_is_not_migrated(served, db):
    await db.execute("UPDATE scheduler.alembic_version SET version_num = '9999'")

    assert "the schema is newer: install a newer leasework" in told(served, ("scheduler", "migrate"), 5)


# The application.


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("", "no application is named: pass --app (or set SCHEDULER_APP) to the module with your job classes"),
        ("jobs.py", "--app jobs.py: this is a file, and a module is meant: --app jobs"),
        ("./sub/jobs.py", "--app ./sub/jobs.py: this is a file, and a module is meant: --app sub.jobs"),
        (
            "job",
            "--app job: no module 'job' in {folder} or on the path: run the command in the folder that",
        ),
        ("empty", "--app empty: no job class is defined there; derive one with a run method from AsyncJob"),
        ("worker", "--app worker: this is a package of leasework, which hides yours: rename your module"),
        ("scheduler", "--app scheduler: this is a package of leasework, which hides yours: rename your module"),
    ],
)
def test_an_application_that_is_none_is_named_with_the_way_out(served, app, sentence):
    served.writes("empty.py", "answer = 42\n")
    served.writes("worker.py", JOBS)
    served.writes("scheduler.py", JOBS)

    assert sentence.format(folder=served.folder) in told(served, ("scheduler-worker", "--app", app), 3)


@pytest.mark.parametrize(
    ("source", "sentence", "trace"),
    [
        ("import not_there\n", "ModuleNotFoundError: No module named 'not_there': install it with {python} -m pip",
         ["line 1, in <module>", "import not_there"]),
        ("import jobs\nfrom jobs import Nope\n", "ImportError: cannot import name 'Nope' from 'jobs'",
         ["line 2, in <module>", "from jobs import Nope"]),
        ("class A:\n    def f(:\n", "SyntaxError: invalid syntax (mine.py, line 2): mend it where it stands",
         ["line 2", "    def f(:"]),
        ("def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError: division by zero: mend it where it stands",
         ["line 3, in <module>", "line 2, in f", "return 1 / 0"]),
        ("import sys\nsys.exit('bye')\n", "SystemExit: bye: put what ends the program under `if __name__ ==",
         ["line 2, in <module>"]),
        ("from worker import Mine\n", "worker is leasework's own, and a module of yours that is called so needs",
         ["line 1, in <module>"]),
    ],
)  # fmt: skip
def test_a_module_that_fails_is_told_with_the_users_own_lines_and_none_of_ours(served, source, sentence, trace):
    mine = served.writes("mine.py", source)

    answer = served.run("scheduler-worker", "--app", "mine")

    first, *rest = answer.err.splitlines()
    assert answer.code == 3
    assert first.startswith("scheduler-worker: --app mine: importing it raises ")
    assert sentence.format(python=sys.executable) in first
    assert [line for line in rest if line.lstrip().startswith("File ")] == [line for line in rest if str(mine) in line]
    for words in trace:
        assert words in "\n".join(rest)


def test_declare_says_what_a_worker_says_of_an_application_that_fails(served):
    served.writes("mine.py", "1 / 0\n")

    assert "--app mne: no module 'mne' in" in told(served, ("scheduler", "declare", "--app", "mne"), 3)
    said = served.run("scheduler", "declare", "--app", "mine").err.splitlines()
    assert said[0].startswith("scheduler: --app mine: importing it raises ZeroDivisionError: division by zero: mend")
    assert "    1 / 0" in said


# Names that nobody knows. A job of such a kind waits: a worker that has it may come tomorrow.


async def test_a_kind_that_nobody_runs_is_accepted_and_told_with_the_name_that_may_be_meant(served, db):
    served.run("scheduler", "declare", "--app", "jobs")
    by_insert = await db.fetchval("INSERT INTO scheduler.jobs (kind) VALUES ('greet') RETURNING id")

    submitted = served.run("scheduler", "submit", "Gret", "{}")
    listed = served.run("scheduler", "jobs")
    looked_at = served.run("scheduler", "job", by_insert)
    strange = served.run("scheduler", "submit", "Unlike_any", "{}")

    wait = "scheduler: jobs of the kind {!r} wait, for no worker has had it yet: {}"
    assert (submitted.code, submitted.sentence) == (0, wait.format("Gret", "did you mean 'Greet'?"))
    assert listed.err.splitlines() == [
        wait.format("Gret", "did you mean 'Greet'?"),
        wait.format("greet", "did you mean 'Greet'?"),
    ]
    assert looked_at.sentence == wait.format("greet", "did you mean 'Greet'?")
    assert strange.sentence == wait.format("Unlike_any", "start a scheduler-worker whose --app has it")


async def test_a_kind_is_served_only_where_a_live_worker_has_slots_for_it_in_its_queue(served, db):
    with served.runs("scheduler-worker", "--app", "jobs", "--processes", 0) as worker:
        assert served.run("scheduler", "submit", "Greet").err == ""
        elsewhere = served.run("scheduler", "submit", "Greet", "--queue", "mial")
        no_slots = served.run("scheduler", "submit", "Sum", '{"upto": 3}')
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    gone = served.run("scheduler", "submit", "Greet")

    assert elsewhere.sentence == (
        "scheduler: jobs of the kind 'Greet' wait in the queue 'mial', which no live worker serves for it:"
        " did you mean 'mail'?"
    )
    nobody = (
        "scheduler: jobs of the kind {!r} wait, for no live worker runs it: start a scheduler-worker whose --app has it"
    )
    assert no_slots.sentence == nobody.format("Sum")
    assert gone.sentence == nobody.format("Greet")


async def test_jobs_that_have_ended_or_are_served_are_listed_without_a_word(served, db):
    with served.runs("scheduler-worker", "--app", "jobs"):
        assert served.run("scheduler", "submit", "Greet", "--wait", "30").code == 0
        assert served.run("scheduler", "jobs").err == ""

    assert served.run("scheduler", "jobs").err == ""


def test_a_worker_that_serves_a_misspelt_queue_says_so_once_and_goes_on(served):
    with served.runs("scheduler-worker", "--app", "jobs", "--queues", "default,mial,reports") as worker:
        log = worker.log.read_text()

    (warning,) = [line for line in log.splitlines() if "WARNING" in line]
    assert warning.endswith(
        "no job class of this application is in the queue 'mial': did you mean 'mail'? If not, declare it:"
        " Queue('mial')"
    )
