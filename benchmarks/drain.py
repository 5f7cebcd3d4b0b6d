"""Drain a backlog of no-op async jobs with one and with two worker processes, on a durable PostgreSQL.

    python benchmarks/drain.py [--jobs 60000] [--repeats 3] [--dsn URL]

Without --dsn it starts a server of its own in a temporary folder: the binaries of the `embedded` extra, or Debian's
with --debian 15; fsync and synchronous_commit are on. Client and server share the machine. Time runs from the first
started_at to the last finished_at, so the start of the processes is not counted. One line per run, then the
medians. With --dsn: a database to waste, whose jobs are deleted.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from scheduler.cluster import Cluster, debian_binaries, wheel_binaries
from scheduler.schema import migrate

HERE = Path(__file__).parent
DURABLE = {"shared_buffers": "1GB", "max_wal_size": "4GB", "fsync": "on", "synchronous_commit": "on"}


@contextmanager
def server(debian: int | None) -> Iterator[str]:
    binaries = wheel_binaries() if debian is None else debian_binaries(debian)
    if binaries is None:
        sys.exit(f"PostgreSQL {debian} from Debian is not installed")
    folder = Path(tempfile.mkdtemp(prefix="leasework-bench-"))
    folder.chmod(0o755)
    cluster = Cluster(binaries, folder / "server", DURABLE)
    try:
        cluster.start()
        yield cluster.url
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def load(db: asyncpg.Connection, jobs: int) -> None:
    await db.execute("TRUNCATE scheduler.jobs, scheduler.attempts, scheduler.dependencies")
    await db.execute(
        """INSERT INTO scheduler.jobs (kind, payload)
           SELECT 'noop', jsonb_build_object('n', g) FROM generate_series(1, $1::int) g""",
        jobs,
    )
    await db.execute("ANALYZE scheduler.jobs_active")
    await db.execute("CHECKPOINT")


def start_workers(dsn: str, workers: int, slots: int) -> list[subprocess.Popen[bytes]]:
    program = Path(sys.executable).with_name("scheduler-worker")
    command = [program, "--app", "jobs", "--async", str(slots), "--log", "warning"]
    environment = os.environ | {"SCHEDULER_DSN": dsn}
    return [subprocess.Popen(command, cwd=HERE, env=environment) for _ in range(workers)]


async def drain(db: asyncpg.Connection, dsn: str, workers: int, slots: int, jobs: int) -> float:
    await load(db, jobs)
    before = await db.fetchrow(
        "SELECT pg_current_wal_lsn() AS lsn, xact_commit FROM pg_stat_database WHERE datname = current_database()"
    )
    processes = start_workers(dsn, workers, slots)
    try:
        while await db.fetchval("SELECT EXISTS (SELECT FROM scheduler.jobs_active)"):
            await asyncio.sleep(0.2)
            if any(process.poll() is not None for process in processes):
                sys.exit("a worker ended")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    after = await db.fetchrow(
        """SELECT pg_current_wal_lsn() - $1::pg_lsn AS wal, d.xact_commit - $2 AS transactions,
             extract(epoch FROM j.last - j.first)::float8 AS seconds, j.completed
           FROM pg_stat_database d, (SELECT min(started_at) AS first, max(finished_at) AS last,
             count(*) FILTER (WHERE status = 'COMPLETED') AS completed FROM scheduler.jobs_finished) j
           WHERE d.datname = current_database()""",
        before["lsn"], before["xact_commit"],
    )  # fmt: skip
    if after["completed"] != jobs:
        sys.exit(f"{after['completed']} of {jobs} jobs completed")
    rate = jobs / after["seconds"]
    print(
        f"{workers} worker process{'es' if workers > 1 else ''}: {rate:8,.0f} jobs/s"
        f"   {after['wal'] / jobs:6,.0f} B of WAL and {after['transactions'] / jobs:.3f} transactions a job",
        flush=True,
    )
    return rate


async def measure(dsn: str, options: argparse.Namespace) -> None:
    await migrate(dsn)
    db = await asyncpg.connect(dsn)
    print(await db.fetchval("SELECT version()"))
    rates: dict[int, list[float]] = {1: [], 2: []}
    await drain(db, dsn, 1, options.slots, min(options.jobs, 5000))  # declares the kind, warms the caches
    for _ in range(options.repeats):
        for workers, measured in rates.items():
            measured.append(await drain(db, dsn, workers, options.slots, options.jobs))
    await db.close()
    print("median: " + ", ".join(f"{w} -> {statistics.median(r):,.0f} jobs/s" for w, r in rates.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--dsn")
    parser.add_argument("--debian", type=int)
    options = parser.parse_args()
    if options.dsn:
        asyncio.run(measure(options.dsn, options))
        return
    with server(options.debian) as dsn:
        asyncio.run(measure(dsn, options))


if __name__ == "__main__":
    main()
