"""The examples for psql, Node and PHP: their jobs exist if and only if their own transaction commits.

What is run is what their README pages say, with other values in place of the order 17 over 9.50.
"""

import re
import shlex
import signal
import subprocess
from datetime import timedelta

import pytest
from programs import EXAMPLES, tool
from witness import ended, has_status

from worker import Worker

LANGUAGES = ["psql", "node", "php"]


def commands(language):
    """Return the lines of the only block of commands in a README."""
    text = (EXAMPLES / language / "README.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return block.splitlines()


@pytest.fixture(params=LANGUAGES)
def place(request, environment):
    """Place an order, as the README of a language says; return the exit code and what was written."""
    language = request.param
    folder = request.getfixturevalue("node_example") if language == "node" else EXAMPLES / language
    tool(language)
    if language == "php" and "pgsql" not in subprocess.check_output(["php", "-m"], text=True).split():
        pytest.skip("php has no pgsql extension")
    (line,) = [line for line in commands(language) if "submit." in line]

    def place(order="17", amount="9.50", priority=None):
        words = line.replace("17", order).replace("9.50", amount)
        words += {None: ""}.get(priority, f" -v priority={priority}" if language == "psql" else f" {priority}")
        done = subprocess.run(
            words, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return place


async def count(db, table):
    return await db.fetchval(f"SELECT count(*) FROM {table}")


async def test_jobs_of_a_committed_transaction_run_on_a_python_worker(db, dsn, place):
    from receipts import AskForReview, SendReceipt

    code, said = place("1-7", "9.50")

    job_id = await db.fetchval("SELECT receipt FROM orders WHERE id = '1-7' AND amount = 9.50")
    assert (code, said.strip()) == (0, f"order 1-7 is placed, job {job_id} will send its receipt")
    async with Worker(dsn, kinds=[SendReceipt, AskForReview]):
        assert (await ended(db, job_id))["result"] == '"receipt of order 1-7"'
        review = await db.fetchval("SELECT id FROM scheduler.jobs WHERE kind = 'ask_for_review'")
        job = await has_status(db, review, "DELAYED")
    assert (job["depends_on"], job["idempotency_key"]) == ([job_id], "review of 1-7")
    assert job["run_at"] - job["submitted_at"] > timedelta(days=6)


async def test_a_transaction_that_is_rolled_back_leaves_no_job(db, place):
    code, said = place(amount="-1")  # the orders' own CHECK, after the jobs were inserted

    assert code != 0
    assert 'violates check constraint "orders_amount_check"' in said
    assert (await count(db, "orders"), await count(db, "scheduler.jobs")) == (0, 0)
    assert await count(db, "scheduler.idempotency_keys") == 0


async def test_a_refused_job_is_told_by_its_field_and_its_rule_and_takes_the_order_with_it(db, place):
    code, said = place(priority=1000)

    assert code != 0
    assert "priority must lie between -100 and 100" in said
    assert "LOW is 0, MEDIUM 1, HIGH 2, CRITICAL 3" in said
    assert (await count(db, "orders"), await count(db, "scheduler.jobs")) == (0, 0)


async def test_the_priority_given_is_the_priority_stored(db, place):
    code, _ = place(priority=3)

    assert code == 0
    assert await db.fetchval("SELECT priority FROM scheduler.jobs WHERE kind = 'send_receipt'") == 3


async def test_the_commands_of_the_node_readme_run_the_job_that_they_submit(db, environment, node_example, begin):
    install, submit, work = commands("node")
    assert install == "npm install"  # done by the fixture

    subprocess.run(shlex.split(submit), cwd=node_example, env=environment, check=True)
    worker = await begin(shlex.split(work), node_example).ready()
    (job_id,) = await db.fetchrow("SELECT receipt FROM orders")

    assert (await ended(db, job_id))["result"] == '{"order": "17", "attempt": 1}'
    worker.send(signal.SIGTERM)
    assert await worker.exits() == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_readme_of_an_example_is_short(language):
    assert len((EXAMPLES / language / "README.md").read_text().splitlines()) <= 25


def test_the_node_worker_stays_small_enough_to_copy():
    lines = (EXAMPLES / "node" / "worker.mjs").read_text().splitlines()

    assert len([line for line in lines if line.strip() and not line.strip().startswith("//")]) <= 95
