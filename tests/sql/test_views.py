"""The views that a first dashboard reads."""

from datetime import timedelta

from . import steps


async def test_queue_depth_counts_each_status_per_queue_and_kind(db, clock):
    parent = await steps.insert(db)
    await steps.insert(db, depends_on=[parent])
    await steps.insert(db, run_at=await clock.now() + timedelta(hours=1))
    await steps.insert(db, "nobody_declared_it")
    await steps.start(db, queue="mail")
    await clock.advance(60)

    rows = {(row["queue"], row["kind"]): row for row in await db.fetch("SELECT * FROM scheduler.queue_depth")}

    waiting = rows["default", "k"]
    assert (waiting["blocked"], waiting["delayed"], waiting["pending"], waiting["running"]) == (1, 1, 1, 0)
    assert waiting["oldest_pending"] == timedelta(seconds=60)
    assert rows["mail", "k"]["running"] == 1
    assert rows["(undeclared kind)", "nobody_declared_it"]["pending"] == 1


async def test_schedule_lag_tells_how_late_jobs_started(db, clock):
    await steps.insert_many(db, 2)
    await clock.advance(5)
    first, _ = await steps.claim(db, slots=2)
    await steps.end(db, first)

    (row,) = await db.fetch("SELECT * FROM scheduler.schedule_lag")

    assert (row["queue"], row["started"], row["p50"], row["worst"]) == (
        "default",
        2,
        timedelta(seconds=5),
        timedelta(seconds=5),
    )


async def test_a_viewer_reads_the_views_and_no_payload(db, login):
    viewer = await login("scheduler_viewer")

    await viewer.fetch("SELECT * FROM scheduler.queue_depth")
    await viewer.fetch("SELECT * FROM scheduler.schedule_lag")
    await viewer.fetch("SELECT id, kind, status FROM scheduler.jobs")

    for secret in ("payload FROM scheduler.jobs", "result FROM scheduler.jobs", "error FROM scheduler.attempts"):
        assert await refused(viewer, f"SELECT {secret}")


async def refused(connection, statement):
    import asyncpg

    try:
        await connection.fetch(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    return False
