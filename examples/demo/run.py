"""The demo: a graph of jobs over Python's standard library, on two workers, one of which is killed while it works.

    make demo                          or, in an environment that has leasework[embedded]: python examples/demo/run.py
    make demo DEMO_FLAGS=--corrupt     falsifies one result, to show that the check at the end would notice

Exit code 0 only if every job completed, a lease of the killed worker was reclaimed, and a second program, recount.py,
finds in the files themselves exactly what the jobs found. All it makes is in .demo/; all it starts, it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
from display import Bars, Rows, console, show_jobs, show_workers
from jobs import LIBRARY, CountNodes, Totals
from processes import FOLDER, HERE, Worker, alone, check_alive, command, database, workers

from scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

    Database = asyncpg.Connection[asyncpg.Record]

TOTALS = FOLDER / "totals.json"
LEASE = 3  # seconds; short, so that the killed worker's jobs are seen to come back
PATIENCE = 150  # seconds for the whole graph
ACTIVE = {"BLOCKED", "DELAYED", "PENDING", "RUNNING"}
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
}  # Python's own tests: too long

INSERT_CHECKSUMS = """
INSERT INTO scheduler.jobs (kind, payload)
SELECT 'Checksum', jsonb_build_object('path', path) FROM unnest($1::text[]) AS path
RETURNING id
"""
INSERT_FOLDER = """
INSERT INTO scheduler.jobs (kind, payload, depends_on)
VALUES ('FolderChecksum', jsonb_build_object('folder', $1::text), $2)
RETURNING id
"""
PROGRESS = """
SELECT j.kind, j.status::text, count(*) AS jobs, sum(j.attempt) AS attempts, coalesce(sum(a.lost), 0) AS reclaimed
FROM scheduler.jobs j
LEFT JOIN (SELECT job_id, count(*) AS lost FROM scheduler.attempts WHERE outcome = 'lost' GROUP BY job_id) a
  ON a.job_id = j.id
GROUP BY 1, 2 ORDER BY 1, 2
"""
HELD = """
SELECT j.kind, count(*) AS jobs FROM scheduler.jobs j JOIN scheduler.workers w ON w.id = j.worker_id
WHERE w.pid = $1 AND j.status = 'RUNNING' GROUP BY 1 ORDER BY 2 DESC
"""
DONE = "SELECT (result ->> 'worker')::uuid AS worker, count(*) AS jobs FROM scheduler.jobs GROUP BY 1"
FALSIFY = """
UPDATE scheduler.jobs_finished SET result = jsonb_set(result, '{nodes,Module}', '2')
WHERE id = (SELECT max(id) FROM scheduler.jobs_finished WHERE kind = 'CountNodes')
RETURNING payload ->> 'path'
"""


class Outcome(NamedTuple):
    """How it went. `done`: completed jobs by pid; `held`: jobs that a killed worker ran, by pid."""

    jobs: Rows
    done: dict[int, int]
    held: dict[int, int]
    seconds: float


def main() -> int:
    arguments = argparse.ArgumentParser(description="A graph of jobs on two workers, one of which is killed.")
    arguments.add_argument(
        "--corrupt", action="store_true", help="falsify one result: the check must notice, exit code 1"
    )
    corrupt = arguments.parse_args().corrupt
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))  # every way to stop it ends like Ctrl-C
    try:
        with alone():
            return demo(corrupt=corrupt)
    except KeyboardInterrupt:
        console.print("\nInterrupted; what was started has been ended.", style="yellow")
        return 130


def demo(*, corrupt: bool) -> int:
    started = time.monotonic()
    TOTALS.unlink(missing_ok=True)
    folders = library()
    console.print(f"Input      {LIBRARY}: {sum(map(len, folders.values())):,} files in {len(folders)} folders")
    with database() as folder:
        console.print(f"Database   PostgreSQL in {folder}")
        with workers(2, LEASE) as pair:
            console.print(f"Workers    pid {pair[0].pid} and pid {pair[1].pid}, leases of {LEASE} s")
            outcome = asyncio.run(run(folders, pair, corrupt=corrupt))
    jobs = sum(row["jobs"] for row in outcome.jobs)
    show_jobs(outcome.jobs)
    show_workers(outcome.done, outcome.held)
    console.print(f"Pace       {jobs:,} jobs in {outcome.seconds:.1f} s, {jobs / outcome.seconds:,.0f} a second")
    failures = [*judge(outcome), *recount()]
    for failure in failures:
        console.print(f"FAILED     {failure}", style="bold red")
    if not failures:
        console.print(f"PASSED     in {time.monotonic() - started:.0f} s", style="bold green")
    return 1 if failures else 0


def judge(outcome: Outcome) -> Iterator[str]:
    """Say what went otherwise than it should."""
    for row in outcome.jobs:
        if row["status"] != "COMPLETED":
            yield f"{row['jobs']} jobs of kind {row['kind']} are {row['status']}, not COMPLETED"
    if not sum(row["reclaimed"] for row in outcome.jobs):
        yield "no lease of the killed worker was reclaimed"


def recount() -> Iterator[str]:
    """Let a program that knows nothing of the scheduler count again; its own words go to the terminal."""
    console.print("Check      recount.py reads the files again, without the scheduler:")
    if not TOTALS.exists():
        yield "the last job wrote no totals"
    elif subprocess.call([sys.executable, "-I", "-S", HERE / "recount.py", TOTALS]) != 0:
        yield "the jobs and recount.py do not agree"


def library() -> dict[str, list[str]]:
    """Return the paths of Python's own source files, by folder, relative to the standard library."""
    folders: dict[str, list[str]] = {}
    for folder, inside, files in os.walk(LIBRARY):
        inside[:] = [name for name in inside if name not in LEFT_OUT]
        here = Path(folder).relative_to(LIBRARY)
        if scripts := [str(here / name) for name in files if name.endswith(".py")]:
            folders[str(here)] = scripts
    return folders


async def run(folders: dict[str, list[str]], pair: list[Worker], *, corrupt: bool) -> Outcome:
    db = await asyncpg.connect(command("db", "url").stdout.strip())
    try:
        async with asyncio.timeout(PATIENCE), Scheduler.connect() as scheduler:
            pids = await started(db, pair)
            await submit(scheduler, db, folders)
            start = time.monotonic()
            held = await watch(db, pair, corrupt=corrupt)
            seconds = time.monotonic() - start
            done = {pids[row["worker"]]: row["jobs"] for row in await db.fetch(DONE) if row["worker"]}
            return Outcome([dict(row) for row in await db.fetch(PROGRESS)], done, held, seconds)
    except TimeoutError:
        sys.exit(f"demo: not finished after {PATIENCE} s: see the logs of the workers in {FOLDER}")
    finally:
        await db.close()


async def started(db: Database, pair: list[Worker]) -> dict[object, int]:
    """Wait until both workers are there; return their pids by worker id."""
    while len(rows := await db.fetch("SELECT id, pid FROM scheduler.workers")) < len(pair):
        check_alive(pair)
        await asyncio.sleep(0.05)
    return {row["id"]: row["pid"] for row in rows}


async def submit(scheduler: Scheduler, db: Database, folders: dict[str, list[str]]) -> None:
    """Submit all or nothing, in one transaction: about half through the client, half as rows of a table."""
    parents: list[int] = []
    async with db.transaction():
        for folder, files in folders.items():
            counts = [await scheduler.submit(CountNodes(path=path), connection=db) for path in files]
            checksums = [row["id"] for row in await db.fetch(INSERT_CHECKSUMS, files)]
            joined = await db.fetchval(INSERT_FOLDER, folder, checksums)
            parents += [*(count.id for count in counts), *checksums, joined]
        await scheduler.submit(Totals(file=str(TOTALS)), depends_on=parents, connection=db)
    inserted = sum(map(len, folders.values())) + len(folders)
    console.print(
        f"Jobs       {len(parents) + 1:,} submitted in one transaction, {inserted:,} of them by plain INSERT\n"
    )


async def watch(db: Database, pair: list[Worker], *, corrupt: bool) -> dict[int, int]:
    """Show progress until all has ended; in full swing, kill a worker. Return what it held, by pid."""
    held: dict[int, int] = {}
    with Bars() as bars:
        while True:
            rows = [dict(row) for row in await db.fetch(PROGRESS)]
            bars.show(rows)
            if not any(row["status"] in ACTIVE for row in rows):
                return held
            if not held and in_full_swing(rows):
                held = {pair[0].pid: await kill(db, pair[0])}
                if corrupt:
                    console.print(
                        f"--corrupt  {await db.fetchval(FALSIFY)} has 2 nodes of type Module now", style="yellow"
                    )
            check_alive(pair[1:] if held else pair)
            await asyncio.sleep(0.2)


def in_full_swing(rows: Rows) -> bool:
    """Tell whether a third of all is done, and the long jobs, which start last, are on their way."""
    done = [row for row in rows if row["status"] == "COMPLETED"]
    nodes = sum(row["jobs"] for row in done if row["kind"] == "CountNodes")
    return bool(nodes > 10 and sum(row["jobs"] for row in done) > sum(row["jobs"] for row in rows) / 3)


async def kill(db: Database, victim: Worker) -> int:
    """Kill a worker while it runs jobs, and return how many. No signal warns it, nothing is handed over."""
    held: list[asyncpg.Record] = []
    try:
        while not held:
            victim.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)
            victim.send_signal(signal.SIGSTOP)  # what it holds while we look is what it holds when it dies
            await asyncio.sleep(0.1)  # until the server has done what had been sent
            held = await db.fetch(HELD, victim.pid)
    finally:
        victim.kill()
    jobs = sum(int(row["jobs"]) for row in held)
    what = ", ".join(f"{row['jobs']} {row['kind']}" for row in held)
    console.print(f"SIGKILL    to pid {victim.pid} while it runs {jobs} jobs\n           ({what})", style="bold yellow")
    return jobs


if __name__ == "__main__":
    sys.exit(main())
