"""The command submit: what it stores, prints and refuses."""

import asyncio
import json
import time
from datetime import datetime

import pytest

from .commands import claim, declare, settle


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
    assert submit("k", "--unique-key", "u") == job_id


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
