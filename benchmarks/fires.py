"""How soon schedules fire, and what many that are due at once do to everybody else's jobs.

    python benchmarks/fires.py [--repeats 3] [--schedules 10000] [--debian 15]

One worker process, a durable PostgreSQL of its own, both on this machine. First an idle system: how long after its fire
time a job has started, and, beside it, a job that was delayed until then. Then jobs inserted one by one, 50 a second:
how long each waits for its claim, in turn without and with so many schedules due in the same second, whose jobs this
worker does not run.
"""

import argparse
import asyncio
import statistics
from datetime import UTC, datetime, timedelta

import asyncpg
from drain import server, start_workers

from scheduler.schema import migrate

MANY = """
SELECT scheduler.upsert_schedule('many' || n, jsonb_build_object('kind', 'elsewhere', 'every', 86400, 'starts_at',
  $2::timestamptz)) FROM generate_series(1, $1::int) AS n"""
LATE = """
SELECT extract(epoch FROM started_at - {})::float8 * 1000 AS ms FROM scheduler.jobs
WHERE started_at IS NOT NULL AND {}"""
FIRED = """
SELECT count(*), extract(epoch FROM max(submitted_at) - min(fire_time))::float8 FROM scheduler.jobs
WHERE kind = 'elsewhere'"""
IDLE = """
SELECT scheduler.upsert_schedule('s', '{"kind": "noop", "payload": {"n": 1}, "every": 1, "overlap": "allow"}')"""
DELAYED = """
INSERT INTO scheduler.jobs (kind, payload, run_at)
SELECT 'noop', '{"n": 1}', scheduler.clock() + n * interval '1 s' + interval '0.5 s' FROM generate_series(1, 30) AS n"""


def told(what: str, rows: list[asyncpg.Record]) -> list[float]:
    found = sorted(row["ms"] for row in rows)
    p99 = found[int(len(found) * 0.99)]
    print(
        f"{what}: median {statistics.median(found):.1f} ms, p99 {p99:.1f}, worst {found[-1]:.1f}, of {len(found)}",
        flush=True,
    )
    return found


async def probe(db: asyncpg.Connection, seconds: float) -> list[int]:
    ids = []
    for _ in range(int(seconds * 50)):
        ids.append(
            await db.fetchval("INSERT INTO scheduler.jobs (kind, payload) VALUES ('noop', '{\"n\": 1}') RETURNING id")
        )
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    return ids


async def measure(dsn: str, options: argparse.Namespace) -> None:
    await migrate(dsn)
    db = await asyncpg.connect(dsn)
    print(await db.fetchval("SELECT version()"))
    worker = start_workers(dsn, 1, 100)[0]
    try:
        while not await db.fetchval("SELECT EXISTS (SELECT FROM scheduler.workers WHERE sleeping)"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await db.execute(IDLE)
        await db.execute(DELAYED)
        await asyncio.sleep(32)
        await db.execute("SELECT scheduler.delete_schedule('s')")
        fired = await db.fetch(LATE.format("fire_time", "fire_time IS NOT NULL"))
        told("idle, a schedule, from its time to its start", fired)
        told("idle, a delayed job, likewise", await db.fetch(LATE.format("run_at", "fire_time IS NULL")))
        await db.execute("""SELECT scheduler.declare('[{"kind": "elsewhere", "queue": "elsewhere"}]')""")
        without, with_many = [], []
        for _ in range(options.repeats):
            where = "id = ANY ($1)"
            without += told("  without", await db.fetch(LATE.format("submitted_at", where), await probe(db, 8)))
            start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=options.schedules / 400)
            await db.execute(MANY, options.schedules, start)
            await asyncio.sleep((start - datetime.now(UTC)).total_seconds() - 2)  # their times have been computed
            with_many += told("  with", await db.fetch(LATE.format("submitted_at", where), await probe(db, 12)))
            count, seconds = await db.fetchrow(FIRED)
            print(f"  {count} fired within {seconds:.1f} s of their time", flush=True)
            await db.execute("TRUNCATE scheduler.schedules, scheduler.jobs")
        told(f"without {options.schedules} schedules", [{"ms": ms} for ms in without])
        told(f"with {options.schedules} schedules", [{"ms": ms} for ms in with_many])
    finally:
        worker.terminate()
        worker.wait()
        await db.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--debian", type=int)
    options = parser.parse_args()
    with server(options.debian) as dsn:
        asyncio.run(measure(dsn, options))


if __name__ == "__main__":
    main()
