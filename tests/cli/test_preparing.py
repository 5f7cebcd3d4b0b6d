"""Commands that prepare the database: migrate, declare."""

import re
import uuid
from urllib.parse import urlsplit

import pytest

from .commands import UNREACHABLE

APP = """
from scheduler import AsyncJob, Queue
Queue("mail", ordering="strict")
class SendEmail(AsyncJob, kind="send_email", queue="mail"):
    async def run(self, ctx): ...
class Resize(AsyncJob, kind="resize"{options}):
    async def run(self, ctx): ...
"""


@pytest.fixture
async def plain_account(connect, empty_dsn):
    """The address for an account that may neither create roles nor use those that exist."""
    superuser = await connect(empty_dsn)
    name = f"plain_{uuid.uuid4().hex[:12]}"
    await superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'hush'")
    parts = urlsplit(empty_dsn)
    yield parts._replace(netloc=f"{name}:hush@{parts.hostname}:{parts.port}").geturl()
    await superuser.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


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
