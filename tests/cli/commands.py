"""Running the command as a user does, and setting up what it is to find."""

import asyncio
import json
import re
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from click.testing import CliRunner

from scheduler.cli import command

PROGRAM = Path(sys.executable).parent / "scheduler"
WORKER = uuid.UUID(int=7)
UNREACHABLE = "postgresql://u:hush@127.0.0.1:1/x"


class Answer:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


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


async def insert(db, count, kind="k", **columns):
    """Insert equal jobs in one statement; return their ids."""
    columns = {"kind": kind, **columns}
    marks = ", ".join(f"${n}" for n, _ in enumerate(columns, 2))
    statement = f"INSERT INTO scheduler.jobs ({', '.join(columns)}) SELECT {marks} FROM generate_series(1, $1)"
    return [row["id"] for row in await db.fetch(f"{statement} RETURNING id", count, *columns.values())]


async def fail(db, count, kind="k", error="gone", **columns):
    """Insert jobs and have them fail for good; return their ids."""
    ids = await insert(db, count, kind, **columns)
    call = "SELECT * FROM scheduler.claim($1, $2, $3, $4, $5, '30 s')"
    rows = await db.fetch(call, WORKER, uuid.uuid4(), [columns.get("queue", "default")], [kind], count)
    for row in rows:
        await settle(db, row, "failed", retryable=False, error_type="OSError", error=error)
    assert sorted(row["id"] for row in rows) == ids
    return ids


async def statuses(db, ids):
    """Return how many of these jobs have which status."""
    call = "SELECT status::text, count(*) FROM scheduler.jobs WHERE id = ANY ($1) GROUP BY 1"
    return {row["status"]: row["count"] for row in await db.fetch(call, ids)}


async def until(true, patience=60):
    """Wait for an event in the database."""
    deadline = time.monotonic() + patience
    while not await true():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)
