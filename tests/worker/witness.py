"""What a test does beside the worker: insert rows, look at them, wait for what others do."""

import asyncio
import inspect
import json
import os
import time
from pathlib import Path

PATIENCE = 60  # seconds until a test gives up waiting; only what hangs takes so long


async def until(condition, what, seconds=PATIENCE):
    """Ask `condition` again and again until it holds, and return what it returned; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.005)


async def insert(db, kind, payload=None, **columns):
    """Insert a row as any program would; return its id."""
    columns = {"kind": kind, "payload": json.dumps(payload or {}), **columns}
    marks = ", ".join(f"${n}" for n, _ in enumerate(columns, 1))
    statement = f"INSERT INTO scheduler.jobs ({', '.join(columns)}) VALUES ({marks}) RETURNING id"
    return await db.fetchval(statement, *columns.values())


async def insert_many(db, number, kind, payload=None, **columns):
    """Insert equal rows in one statement; return their ids."""
    columns = {"kind": kind, "payload": json.dumps(payload or {}), **columns}
    marks = ", ".join(f"${n}" for n, _ in enumerate(columns, 2))
    names = ", ".join(columns)
    statement = f"INSERT INTO scheduler.jobs ({names}) SELECT {marks} FROM generate_series(1, $1) RETURNING id"
    return [row["id"] for row in await db.fetch(statement, number, *columns.values())]


async def row(db, job_id):
    return await db.fetchrow("SELECT *, status::text AS status FROM scheduler.jobs WHERE id = $1", job_id)


async def rows(db, ids):
    found = await db.fetch("SELECT *, status::text AS status FROM scheduler.jobs WHERE id = ANY ($1)", list(ids))
    return {found_row["id"]: found_row for found_row in found}


async def attempts(db, job_id):
    return await db.fetch("SELECT * FROM scheduler.attempts WHERE job_id = $1 ORDER BY attempt", job_id)


async def ended(db, *ids, seconds=PATIENCE):
    """Wait until all jobs have ended; return the row of the only one, or all rows by id."""

    async def all_ended():
        count = "SELECT count(*) FROM scheduler.jobs_finished WHERE id = ANY ($1)"
        return await db.fetchval(count, list(ids)) == len(ids)

    await until(all_ended, "the jobs should have ended", seconds)
    found = await rows(db, ids)
    return found[ids[0]] if len(ids) == 1 else found


async def has_status(db, job_id, status, seconds=PATIENCE):
    """Wait until a job has a status; return its row."""

    async def reached():
        found = await row(db, job_id)
        return found if found["status"] == status else None

    return await until(reached, f"job {job_id} should have become {status}", seconds)


async def asleep(db, workers=1):
    """Wait until workers have marked themselves sleeping, all of them."""

    async def sleeping():
        return await db.fetchval("SELECT count(*) FROM scheduler.workers WHERE sleeping") == workers

    await until(sleeping, "the workers should have fallen asleep")


async def backends(db, name="scheduler-worker%"):
    """Return the process ids of a worker's connections, by the name they go by."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE $1"
    return {found["pid"] for found in await db.fetch(query, name)}


def is_alive(pid):
    """Tell whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def children_of(pid):
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()


def cpu_seconds(pid):
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Gate:
    """What a test and a waiting handler, perhaps in another process, tell each other by files."""

    def __init__(self, path):
        self.path = str(path)

    def open(self):
        Path(f"{self.path}.go").touch()

    def notes(self, what):
        """Return what handlers wrote under `what`: a pair (attempt, process id) each time."""
        try:
            lines = Path(f"{self.path}.{what}").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(int(number) for number in line.split()) for line in lines]

    async def noted(self, what, times=1, seconds=PATIENCE):
        await until(lambda: len(self.notes(what)) >= times, f"a handler should have noted {what!r}", seconds)
        return self.notes(what)

    def noted_at(self, what):
        """Return when a handler last wrote under `what`, in seconds since 1970."""
        return Path(f"{self.path}.{what}").stat().st_mtime

    async def begun(self, times=1):
        return await self.noted("began", times)
