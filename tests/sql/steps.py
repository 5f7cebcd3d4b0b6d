"""The verbs as a worker calls them, one function each, with what most tests do not care about filled in."""

import asyncio
import json
import time
from datetime import timedelta
from uuid import UUID, uuid4

WORKER = UUID(int=1)
LEASE = timedelta(seconds=30)
PATIENCE = 20  # seconds until a test gives up waiting for another session


async def verb(db, name, *arguments):
    """Call a verb that answers with one JSON document."""
    marks = ", ".join(f"${n}" for n, _ in enumerate(arguments, 1))
    return json.loads(await db.fetchval(f"SELECT scheduler.{name}({marks})", *arguments))


async def insert(db, kind="k", **columns):
    """Insert a row as any program would; return its id, or None when no row was inserted."""
    columns = {"kind": kind, **columns}
    marks = ", ".join(f"${n}" for n, _ in enumerate(columns, 1))
    statement = f"INSERT INTO scheduler.jobs ({', '.join(columns)}) VALUES ({marks}) RETURNING id"
    return await db.fetchval(statement, *columns.values())


async def insert_many(db, n, kind="k", **columns):
    """Insert n equal rows in one statement; return their ids."""
    columns = {"kind": kind, **columns}
    marks = ", ".join(f"${i}" for i, _ in enumerate(columns, 2))
    statement = (
        f"INSERT INTO scheduler.jobs ({', '.join(columns)}) SELECT {marks} FROM generate_series(1, $1) RETURNING id"
    )
    return [row["id"] for row in await db.fetch(statement, n, *columns.values())]


async def submit(db, kind="k", payload=None, **options):
    return await db.fetchval(
        "SELECT scheduler.submit($1, $2, $3)", kind, json.dumps(payload or {}), json.dumps(options)
    )


async def declare(db, *kinds, queues=(), force=False):
    kinds = [{"kind": kind} if isinstance(kind, str) else kind for kind in kinds]
    return await verb(db, "declare", json.dumps(kinds), json.dumps(queues), force)


async def claim_all(db, slots=1, kinds=("k",), queues=("default",), *, worker=WORKER, request=None, lease=LEASE):
    """Claim; return every row of the answer, the last one with hints when it came short."""
    call = "SELECT * FROM scheduler.claim($1, $2, $3, $4, $5, $6)"
    return await db.fetch(call, worker, request or uuid4(), list(queues), list(kinds), slots, lease)


async def claim(db, *arguments, **options):
    """Claim; return the jobs."""
    return [row for row in await claim_all(db, *arguments, **options) if row["id"] is not None]


async def start(db, kind="k", **columns):
    """Insert a job and claim it."""
    job_id = await insert(db, kind, **columns)
    (job,) = await claim(db, kinds=[kind], queues=[columns.get("queue", "default")])
    assert job["id"] == job_id
    return job


def outcome(job, ending="completed", **facts):
    return {"id": job["id"], "fence": job["fence"], "outcome": ending, **facts}


async def settle(db, *outcomes, worker=WORKER):
    return await verb(db, "settle", worker, json.dumps(outcomes))


async def end(db, job, ending="completed", **facts):
    """Settle one job."""
    return await settle(db, outcome(job, ending, **facts))


async def hold(db, job):
    await db.execute("SELECT scheduler.hold($1, $2)", job["id"], job["fence"])


async def complete(db, job, result=None):
    """Complete a job in the transaction of `db`."""
    await db.execute("SELECT scheduler.complete($1, $2, $3)", job["id"], job["fence"], json.dumps(result))


async def renew(db, jobs, worker=WORKER, lease=LEASE):
    return await verb(db, "renew", worker, [j["id"] for j in jobs], [j["fence"] for j in jobs], lease)


async def release(db, jobs, worker=WORKER):
    return await verb(db, "release", worker, [j["id"] for j in jobs], [j["fence"] for j in jobs])


async def reap(db, lease=LEASE, limit=1000):
    return await verb(db, "reap", lease, limit)


async def cancel(db, *ids):
    return await verb(db, "cancel", list(ids))


async def promote(db, limit=1000):
    return await verb(db, "promote", limit)


async def resolve(db, parents=None, limit=1000):
    return await verb(db, "resolve", parents, limit)


async def resolve_all(db, parents):
    """Resolve level by level, as a worker does, until nothing is left."""
    deadline = time.monotonic() + PATIENCE
    while parents and time.monotonic() < deadline:
        answer = await resolve(db, parents)
        parents = sorted({*answer["parents"], *answer["busy"], *(parents if answer["more"] else ())})
    assert not parents, "children stayed busy"


async def row(db, job_id):
    return await db.fetchrow("SELECT * FROM scheduler.jobs WHERE id = $1", job_id)


async def status(db, job_id):
    return await db.fetchval("SELECT status::text FROM scheduler.jobs WHERE id = $1", job_id)


async def statuses(db, ids):
    rows = await db.fetch("SELECT id, status::text FROM scheduler.jobs WHERE id = ANY ($1)", list(ids))
    return {row["id"]: row["status"] for row in rows}


async def attempts(db, job_id):
    return await db.fetch("SELECT * FROM scheduler.attempts WHERE job_id = $1 ORDER BY attempt", job_id)


async def until(condition, what):
    """Wait for another session, not for time: `condition` is asked again until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        await asyncio.sleep(0.002)


async def until_waiting(db, victim):
    """Wait until the backend of a connection waits for a lock; `db` must not be in a transaction."""

    async def waiting():
        query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
        return await db.fetchval(query, victim.get_server_pid())

    await until(waiting, "the session should have waited for a lock")
