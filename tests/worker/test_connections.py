"""Connections break, replies are lost, the database goes away: the worker goes on, and nothing runs twice for it."""

from datetime import timedelta

import jobs
import pytest
from wire import Wire
from witness import asleep, attempts, backends, ended, has_status, insert, insert_many, row, until

SOON = timedelta(minutes=1)


@pytest.fixture
async def wire(dsn):
    wire = await Wire(dsn).open()
    yield wire
    await wire.close()


@pytest.fixture
async def work_by_wire(wire, work):
    """Start a worker that reaches its database by the wire, and hears notices without it."""
    return lambda **settings: work(wire.dsn, lease=30, **settings)


async def test_a_lost_reply_to_claim_is_fetched_again(db, wire, work_by_wire):
    await work_by_wire()
    await asleep(db)
    ids = await insert_many(db, 1, "Echo")
    found = await ended(db, *ids)  # what claims is known to work

    wire.lose_reply_to("claim")
    await until(lambda: wire.lost == 1, "a reply should be lost")  # of an empty claim
    wire.lose_reply_to("claim")
    ids = await insert_many(db, 15, "Echo")

    found = await ended(db, *ids)
    assert wire.lost == 2
    assert wire.calls["claimed_by"] >= 2
    assert {(job["status"], job["attempt"], job["crashes"]) for job in found.values()} == {("COMPLETED", 1, 0)}
    assert await db.fetchval("SELECT count(*) FROM scheduler.attempts") == 0


async def test_jobs_claimed_by_a_lost_reply_are_fetched_by_their_own_executor(db, wire, work_by_wire):
    ids = [job_id for kind in ("Echo", "EchoInThread") for job_id in await insert_many(db, 4, kind, {"value": 1})]
    wire.lose_reply_to("claim")

    await work_by_wire()

    found = await ended(db, *ids)
    assert wire.lost == 1
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}


@pytest.mark.parametrize(("ending", "status"), [("completes", "COMPLETED"), ("fails", "FAILED")])
async def test_f34_a_lost_reply_to_settle_does_not_run_the_job_twice(db, wire, work_by_wire, caplog, ending, status):
    await work_by_wire()
    kind, payload = ("Echo", {"value": 1}) if ending == "completes" else ("Act", {"action": "plain"})

    wire.lose_reply_to("settle")
    job_id = await insert(db, kind, payload, max_attempts=1)

    job = await ended(db, job_id)
    await until(lambda: wire.calls["settle"] >= 2, "the outcome should be sent again")
    assert wire.lost == 1
    assert (job["status"], job["attempt"]) == (status, 1)
    assert len(await attempts(db, job_id)) == (0 if ending == "completes" else 1)
    later = await insert(db, "Echo")
    assert (await ended(db, later))["status"] == "COMPLETED"
    assert "was refused" not in caplog.text


async def test_a_lost_reply_to_a_settled_retry_counts_one_failure(db, wire, work_by_wire):
    await work_by_wire()

    wire.lose_reply_to("settle")
    job_id = await insert(db, "Steer", {"how": "fail"})

    job = await ended(db, job_id)
    assert wire.lost == 1
    assert (job["attempt"], job["failures"]) == (2, 1)


async def test_a_lost_reply_to_renew_costs_no_lease(db, wire, work, gate):
    gate = gate()
    await work(wire.dsn, lease=20, renew_every=0.5)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    wire.lose_reply_to("renew")
    await until(lambda: wire.lost == 1 and wire.calls["renew"] >= 6, "leases should be renewed again")
    gate.open()

    assert (await ended(db, job_id))["attempt"] == 1


async def test_a_worker_whose_connections_are_terminated_goes_on(db, work, gate):
    gate = gate()
    await work(lease=2, poll=60)
    await asleep(db)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    before = await backends(db)
    assert len(before) >= 2

    await db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'scheduler-worker%' AND datname = current_database()"
    )
    gate.open()

    assert (await ended(db, job_id))["attempt"] == 1
    await until(lambda: backends(db, "scheduler-worker listener"), "the listener should be back")
    assert not before & await backends(db)
    await asleep(db)
    later = await insert(db, "Echo")
    job = await ended(db, later)
    assert job["started_at"] - job["submitted_at"] < timedelta(seconds=10)  # a notice, for the poll takes 60


async def test_terminated_connections_in_the_middle_of_work_lose_nothing(db, work):
    await work(lease=30)
    ids = await insert_many(db, 300, "Short")

    for _ in range(5):
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'scheduler-worker%' AND datname = current_database()"
        )
        done = await db.fetchval("SELECT count(*) FROM scheduler.jobs_finished")

        async def goes_on(done=done):
            return await db.fetchval("SELECT count(*) > $1 FROM scheduler.jobs_finished", min(done + 20, 299))

        await until(goes_on, "jobs should complete")

    found = await ended(db, *ids)
    assert {job["status"] for job in found.values()} == {"COMPLETED"}
    assert {job["failures"] for job in found.values()} == {0}
    assert sum(job["attempt"] - 1 for job in found.values()) <= 20  # a claim under way when its backend died


async def test_results_are_kept_while_the_database_is_away(db, wire, work_by_wire, gate):
    gate = gate()
    await work_by_wire()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    wire.refuses = True
    wire.cut()
    gate.open()
    settled = wire.calls["settle"]
    later = await insert(db, "Echo")
    await has_status(db, job_id, "RUNNING")
    wire.refuses = False

    found = await ended(db, job_id, later)
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}
    assert wire.calls["settle"] > settled


@pytest.mark.parametrize("database", ["refusing", "silent"])
async def test_a_worker_cut_off_stops_its_attempts_before_their_leases_lapse(db, wire, work, gate, database):
    gate = gate()
    await work(wire.dsn, lease=6)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    if database == "silent":
        wire.go_silent()
    else:
        wire.refuses = True
        wire.cut()

    try:
        await gate.noted("stopped")
        assert (await row(db, job_id))["lease_expires_at"].timestamp() > gate.noted_at("stopped")
    finally:
        wire.speak_again()  # else the worker takes its time to stop


async def test_an_outcome_whose_row_is_locked_is_sent_again(scheduler, db, connect, work, gate):
    gate = gate()
    await work()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    user = await connect()
    async with user.transaction():
        await user.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR KEY SHARE", job_id)
        gate.open()
        assert await (await scheduler.submit(jobs.Echo(value="beside it"))).result(SOON) == "beside it"
        assert (await row(db, job_id))["status"] == "RUNNING"

    job = await ended(db, job_id)
    assert (job["status"], job["attempt"]) == ("COMPLETED", 1)
