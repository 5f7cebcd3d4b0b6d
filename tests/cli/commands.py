"""Running the command as a user does, and setting up what it is to find."""

import json
import re
import sys
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
