"""What scheduler-worker says when it cannot start, and how it exits."""

from urllib.parse import urlsplit

import pytest
from witness import ended, insert

OUT_OF_REACH = "postgresql://nobody@127.0.0.1:1/nowhere"


async def refusal(process, code):
    """Return the one line that a worker refused to start with."""
    assert await process.exits() == code, process.log
    (line,) = process.log.splitlines()
    return line


async def test_no_application(launch):
    line = await refusal(launch(app=""), 3)

    assert line.startswith("scheduler-worker: no application is named: pass --app")


async def test_an_application_that_does_not_exist(launch):
    line = await refusal(launch(app="no.such.thing"), 3)

    assert line.startswith("scheduler-worker: --app no.such.thing: no module 'no'")


async def test_no_database(launch):
    line = await refusal(launch(environment={"SCHEDULER_DSN": ""}), 3)

    assert "SCHEDULER_DSN" in line
    assert "embedded:" in line


async def test_a_database_out_of_reach(launch):
    line = await refusal(launch(address=OUT_OF_REACH), 4)

    assert "PostgreSQL cannot be reached" in line


@pytest.mark.parametrize("wrong", ["no_such_database", "user"])
async def test_a_database_or_user_that_does_not_exist(launch, dsn, wrong):
    parts = urlsplit(dsn)
    if wrong == "user":
        address = parts._replace(netloc=f"nobody:wrong@{parts.hostname}:{parts.port}").geturl()
    else:
        address = parts._replace(path=f"/{wrong}").geturl()

    line = await refusal(launch(address=address), 4)

    assert "no_such_database" in line or "nobody" in line


async def test_an_address_that_is_none(launch):
    process = launch(address="not an address")

    assert await process.exits() in {3, 4}
    assert "Traceback" not in process.log


async def test_a_database_without_our_schema(launch, server_dsn):
    line = await refusal(launch(address=server_dsn), 5)

    assert "run `scheduler migrate`" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lease": 0}, "lease (0 s) must lie between 1 s and 1 hour"),
        ({"threads": -1}, "threads must be a whole number"),
        ({"queues": "default,two words"}, "queues"),
        ({"grace": -1}, "grace"),
        ({"grace": "inf"}, "--grace inf: must be a number of seconds"),
        ({"lease": "nan"}, "--lease nan: must be a number of seconds"),
    ],
)
async def test_a_setting_that_cannot_be(launch, options, words):
    assert words in await refusal(launch(**options), 3)


async def test_an_option_that_does_not_exist(launch):
    process = launch(no_such_option=1)

    assert await process.exits() == 2
    assert "No such option" in process.log


async def test_options_may_come_from_the_environment(db, launch):
    environment = {"SCHEDULER_QUEUES": "first, second", "SCHEDULER_LOG": "warning"}
    process = launch(environment=environment)

    job = await ended(db, await insert(db, "Echo", queue="second"))

    assert job["status"] == "COMPLETED"
    assert await db.fetchval("SELECT queues FROM scheduler.workers") == ["first", "second"]
    assert " INFO " not in process.log  # it may warn: of a slow machine, say
