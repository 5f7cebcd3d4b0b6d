"""The Node worker, the one of examples/node, keeps the promises that ours does: the same scenarios for both."""

import json
import secrets
import signal
import tempfile
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from wire import Wire
from witness import attempts, backends, ended, has_status, insert, insert_many, row, until

from scheduler.cluster import Cluster, wheel_binaries
from scheduler.schema import migrate

pytestmark = pytest.mark.slow

LEASE = 3  # seconds; shorter, and a busy machine loses leases by itself
SECOND = timedelta(seconds=1)
# Of our own worker most of this is tested in tests/worker, too.
BOTH = pytest.mark.parametrize("language", [pytest.param("python", marks=pytest.mark.slow), "node"])
PAIRS = pytest.mark.parametrize(("first", "second"), [("node", "node"), ("node", "python"), ("python", "node")])


async def outcomes(db, job_id):
    return [attempt["outcome"] for attempt in await attempts(db, job_id)]


async def take_the_lease_away(db):
    """Do what the reaper does once a lease has lapsed; nobody claims the job for now."""
    await db.execute("UPDATE scheduler.kinds SET seen_at = NULL")
    await db.execute("UPDATE scheduler.jobs_active SET lease_expires_at = clock_timestamp() - interval '1 s'")
    await db.execute("SELECT scheduler.reap('0 s')")


async def let_it_be_claimed(db):
    await db.execute("UPDATE scheduler.kinds SET seen_at = clock_timestamp()")


# Crashes and fences.


@PAIRS
async def test_a_job_of_a_killed_worker_runs_again_in_another(db, launch, gate, first, second):
    gate = gate()
    doomed = await launch(first, lease=LEASE).ready()
    job_id = await insert(db, "FirstOnly", {"path": gate.path})
    await gate.begun()
    fence = (await row(db, job_id))["fence"]
    await launch(second, lease=LEASE).ready()

    doomed.send(signal.SIGKILL)

    job = await ended(db, job_id)
    assert (job["status"], job["result"], job["attempt"], job["crashes"]) == ("COMPLETED", "2", 2, 1)
    assert job["fence"] > fence
    assert await outcomes(db, job_id) == ["lost"]


@PAIRS
async def test_a_paused_worker_overwrites_nothing_when_it_goes_on(db, launch, gate, first, second):
    late, endless = gate("late"), gate("endless")
    paused = await launch(first, lease=LEASE).ready()
    late_id = await insert(db, "FirstOnly", {"path": late.path})
    endless_id = await insert(db, "Wait", {"path": endless.path})
    await late.begun()
    await endless.begun()
    fence = (await row(db, late_id))["fence"]

    paused.send(signal.SIGSTOP)
    await launch(second, lease=LEASE).ready()
    done = await ended(db, late_id)
    await endless.begun(times=2)
    late.open()  # its first attempt ends as soon as its worker goes on
    paused.send(signal.SIGCONT)

    await endless.noted("stopped")
    assert endless.notes("stopped") == [(1, paused.pid)]
    await paused.says("is lost, attempt 1 is stopped")
    endless.open()
    assert (await ended(db, endless_id))["result"] == "2"
    paused.send(signal.SIGTERM)
    assert await paused.exits() == 0
    assert await row(db, late_id) == done
    assert (done["result"], done["attempt"], done["fence"] > fence) == ("2", 2, True)
    assert await outcomes(db, late_id) == ["lost"]


@BOTH
async def test_the_outcome_of_an_attempt_whose_lease_was_taken_away_is_refused(db, launch, gate, language):
    first, second = gate("each-1"), gate("each-2")
    old = await launch(language, lease=60).ready()
    job_id = await insert(db, "EachItsGate", {"path": first.path.removesuffix("-1")})
    await first.begun()
    await take_the_lease_away(db)

    first.open()
    await old.says(f"the outcome of job {job_id} was refused")

    assert (await row(db, job_id))["status"] == "PENDING"
    await let_it_be_claimed(db)
    await second.begun()
    second.open()
    job = await ended(db, job_id)
    assert (job["result"], job["attempt"], job["crashes"]) == ("2", 2, 1)


@BOTH
async def test_an_attempt_whose_lease_was_taken_away_is_stopped_by_the_next_renewal(db, launch, gate, language):
    gate = gate()
    await launch(language, lease=6).ready()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await take_the_lease_away(db)

    assert [attempt for attempt, _ in await gate.noted("stopped")] == [1]
    await let_it_be_claimed(db)
    await gate.begun(times=2)
    gate.open()
    assert (await ended(db, job_id))["result"] == "2"


@BOTH
async def test_an_older_attempt_in_the_same_worker_is_stopped(db, launch, gate, language):
    gate = gate()
    await launch(language, lease=60).ready()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await take_the_lease_away(db)
    await let_it_be_claimed(db)
    await gate.begun(times=2)

    assert [attempt for attempt, _ in await gate.noted("stopped")] == [1]
    gate.open()
    assert (await ended(db, job_id))["result"] == "2"


@BOTH
async def test_a_lease_is_renewed_while_the_job_runs_and_while_its_worker_drains(db, launch, gate, language):
    gate = gate()
    worker = await launch(language, lease=LEASE, grace=60).ready()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    worker.send(signal.SIGTERM)
    await launch("python", lease=LEASE).ready()  # it would run the job if the lease lapsed
    first = (await has_status(db, job_id, "RUNNING"))["lease_expires_at"]

    async def two_leases_are_over():
        return (await row(db, job_id))["lease_expires_at"] > first + 2 * LEASE * SECOND

    await until(two_leases_are_over, "the lease should have been renewed")
    gate.open()

    assert (await ended(db, job_id))["attempt"] == 1
    assert await worker.exits() == 0


@BOTH
async def test_at_the_end_of_its_grace_a_worker_gives_back_what_it_runs(db, launch, gate, language):
    gate = gate()
    worker = await launch(language, grace=0).ready()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    worker.send(signal.SIGTERM)
    await worker.exits()

    job = await row(db, job_id)
    assert (job["status"], job["failures"], job["crashes"]) == ("PENDING", 0, 0)
    assert await outcomes(db, job_id) == ["released"]
    assert await db.fetchval("SELECT count(*) FROM scheduler.workers") == 0


@BOTH
async def test_a_draining_worker_claims_nothing_more(db, launch, gate, language):
    gate = gate()
    worker = await launch(language, grace=60).ready()
    first = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    worker.send(signal.SIGTERM)
    await until(lambda: worker.stops_claiming(db), "the worker should have stopped to claim")
    second = await insert(db, "Echo")
    gate.open()

    assert await worker.exits() == 0
    assert (await row(db, first))["status"] == "COMPLETED"
    assert (await row(db, second))["status"] == "PENDING"


# How attempts end.


@BOTH
async def test_a_failing_job_is_tried_again_until_it_completes(db, launch, language):
    await launch(language).ready()

    job_id = await insert(db, "Steer", {"how": "fail", "until": 3})

    job = await ended(db, job_id)
    assert (job["status"], job["failures"]) == ("COMPLETED", 2)
    assert [attempt["error"] for attempt in await attempts(db, job_id)] == [
        "failure of attempt 1",
        "failure of attempt 2",
    ]


@BOTH
@pytest.mark.parametrize(("how", "times"), [("fail", 3), ("non_retryable", 1)])
async def test_a_job_fails_for_good_when_its_attempts_are_used_up_or_its_handler_says_so(
    db, launch, language, how, times
):
    await launch(language).ready()

    job_id = await insert(db, "Steer", {"how": how, "until": 100})

    job = await ended(db, job_id)
    assert (job["status"], job["attempt"]) == ("FAILED", times)
    assert await outcomes(db, job_id) == ["failed"] * times


@BOTH
async def test_a_retry_comes_no_earlier_than_its_handler_asked_for(db, launch, language):
    await launch(language).ready()

    job_id = await insert(db, "Steer", {"how": "retry_after", "seconds": 0.4})

    job = await ended(db, job_id)
    (attempt,) = await attempts(db, job_id)
    assert job["started_at"] - attempt["ended_at"] >= timedelta(seconds=0.4)


@BOTH
async def test_the_backoff_stands_in_the_row(db, launch, language):
    await launch(language).ready()

    job_id = await insert(
        db, "Steer", {"how": "fail"}, retry_base=40 * SECOND, retry_cap=60 * SECOND, retry_jitter=False
    )

    job = await has_status(db, job_id, "DELAYED")
    (attempt,) = await attempts(db, job_id)
    assert abs(job["run_at"] - attempt["ended_at"] - 40 * SECOND) < SECOND


@BOTH
async def test_a_running_job_is_stopped_when_it_is_cancelled(db, launch, gate, language):
    gate = gate()
    await launch(language, lease=3).ready()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await db.execute("SELECT scheduler.cancel($1)", [job_id])

    await gate.noted("stopped")
    assert (await ended(db, job_id))["status"] == "CANCELLED"
    assert await outcomes(db, job_id) == ["cancelled"]


@BOTH
async def test_an_attempt_that_runs_too_long_times_out(db, launch, gate, language):
    gate = gate()
    await launch(language).ready()

    job_id = await insert(db, "Wait", {"path": gate.path}, timeout=SECOND / 2, max_attempts=1)

    await gate.noted("stopped")
    assert (await ended(db, job_id))["status"] == "TIMED_OUT"


async def test_a_handler_that_ignores_its_signal_holds_up_nothing_but_itself(db, launch, gate):
    gate = gate()
    await launch("node").ready()

    job_id = await insert(db, "Deaf", {"path": gate.path}, timeout=SECOND / 2, max_attempts=1)

    assert (await ended(db, job_id))["status"] == "TIMED_OUT"
    gate.open()
    later = await insert(db, "Echo")
    assert (await ended(db, later))["status"] == "COMPLETED"
    assert (await row(db, job_id))["result"] is None


@pytest.mark.parametrize("what", ["nul", "surrogate", "deep", "bigint", "circle", "huge", "number", "null"])
async def test_what_a_handler_should_not_return_or_throw_fails_its_own_job_only(db, launch, what):
    await launch("node").ready()

    bad_id = await insert(db, "Unstorable", {"what": what})
    found = await ended(db, bad_id, *await insert_many(db, 20, "Short"))

    bad = found.pop(bad_id)
    assert (bad["status"], bool(bad["error"])) == ("FAILED", True)
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}


# What a worker does for all.


async def test_a_node_worker_alone_runs_children_delayed_jobs_and_grandchildren_of_failures(db, launch):
    await launch("node").ready()

    parent = await insert(db, "Short")
    child = await insert(db, "Echo", {"value": "child"}, depends_on=[parent])
    delayed = await insert(db, "Echo", {"value": "later"}, run_at=(await row(db, parent))["submitted_at"] + SECOND)
    failing = await insert(db, "Steer", {"how": "non_retryable"})
    doomed = await insert(db, "Echo", depends_on=[failing])
    grandchild = await insert(db, "Echo", depends_on=[doomed])
    found = await ended(db, parent, child, delayed, failing, doomed, grandchild)

    assert (found[child]["result"], found[delayed]["result"]) == ('"child"', '"later"')
    assert found[delayed]["started_at"] >= found[delayed]["run_at"]
    assert {found[job_id]["status"] for job_id in (doomed, grandchild)} == {"CANCELLED"}
    assert {found[job_id]["cancelled_by"] for job_id in (doomed, grandchild)} == {failing}


async def test_a_node_worker_finds_children_whose_parent_ended_unannounced(db, launch):
    parent = await insert(db, "Wait")
    child = await insert(db, "Echo", {"value": 1}, depends_on=[parent])
    await db.execute("""SELECT scheduler.declare('[{"kind": "Wait"}]')""")
    us = uuid4()
    claim = "SELECT id, fence FROM scheduler.claim($1, $1, '{default}', '{Wait}', 1, '30 s')"
    job = await db.fetchrow(claim, us)
    outcome = {"id": job["id"], "fence": job["fence"], "outcome": "completed"}
    await db.execute("SELECT scheduler.settle($1, $2)", us, json.dumps([outcome]))  # and then we die

    await launch("node").ready()

    assert (await ended(db, child))["status"] == "COMPLETED"


async def test_many_jobs_run_once_each_on_workers_of_both_languages(db, launch):
    await launch("node").ready()
    await launch("python").ready()

    ids = await insert_many(db, 300, "Short")

    found = await ended(db, *ids, seconds=60)
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}
    assert await db.fetchval("SELECT count(*) FROM scheduler.attempts") == 0


async def test_a_node_worker_runs_no_more_at_once_than_it_has_slots(db, launch, gate):
    gate = gate()
    await launch("node").ready()  # of ten slots
    ids = await insert_many(db, 25, "Wait", {"path": gate.path})
    await gate.begun(times=10)

    running = await db.fetchval("SELECT count(*) FROM scheduler.jobs_active WHERE status = 'RUNNING'")
    gate.open()

    assert running == 10
    assert {job["status"] for job in (await ended(db, *ids)).values()} == {"COMPLETED"}


async def test_a_node_worker_needs_the_role_of_workers_and_no_other(db, dsn, launch):
    role = f"leasework_test_{secrets.token_hex(6)}"
    await db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x' IN ROLE scheduler_worker")
    try:
        address = urlsplit(dsn)
        host = address.netloc.rpartition("@")[2]
        worker = await launch("node", address=address._replace(netloc=f"{role}:x@{host}").geturl()).ready()
        parent = await insert(db, "Steer", {"how": "fail"})
        child = await insert(db, "Echo", depends_on=[parent])

        assert (await ended(db, child))["status"] == "COMPLETED"
        worker.send(signal.SIGTERM)
        assert await worker.exits() == 0
        assert "trying again" not in worker.log
    finally:
        await db.execute(f"DROP ROLE {role}")


# Locks, and a database that goes away.


async def test_a_locked_row_stops_neither_the_renewal_of_others_nor_the_settling_of_its_own_job(
    db, connect, launch, gate
):
    held, free = gate("held"), gate("free")
    await launch("node", lease=LEASE).ready()
    held_id = await insert(db, "Wait", {"path": held.path})
    free_id = await insert(db, "Wait", {"path": free.path})
    await held.begun()
    await free.begun()
    first = (await row(db, free_id))["lease_expires_at"]

    async def two_leases_are_over():
        return (await row(db, free_id))["lease_expires_at"] > first + 2 * LEASE * SECOND

    user = await connect()
    async with user.transaction():
        await user.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", held_id)
        held.open()
        await until(two_leases_are_over, "the other lease should have been renewed")
        assert (await row(db, held_id))["status"] == "RUNNING"
    free.open()

    found = await ended(db, held_id, free_id)
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}


async def test_a_node_worker_whose_connections_are_terminated_goes_on(db, launch, gate):
    gate = gate()
    await launch("node", lease=5).ready()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    before = await backends(db)
    await db.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", list(before))
    gate.open()

    assert (await ended(db, job_id))["attempt"] == 1
    later = await insert(db, "Echo")
    assert (await ended(db, later))["status"] == "COMPLETED"
    assert before
    assert not before & await backends(db)


@pytest.fixture
def server():
    """A server of this test's own, to be stopped."""
    with tempfile.TemporaryDirectory(prefix="leasework-tests-") as folder:
        Path(folder).chmod(0o755)  # pytest's own folders are closed to the account PostgreSQL runs as
        server = Cluster(wheel_binaries(), Path(folder) / "server", {"fsync": "off"})
        yield server
        server.stop()


@pytest.mark.slow  # it starts and stops a server of its own
async def test_a_node_worker_outlives_a_restart_of_the_database(connect, launch, gate, server):
    server.start()
    await migrate(server.url)
    before = await connect(server.url)
    gate = gate()
    worker = await launch("node", lease=10, address=server.url).ready()
    job_id = await insert(before, "Wait", {"path": gate.path})
    await gate.begun()

    server.stop()
    gate.open()
    await worker.says("trying again")
    server.start()

    after = await connect(server.url)
    job = await ended(after, job_id)
    assert (job["status"], job["attempt"]) == ("COMPLETED", 1)
    assert (await ended(after, await insert(after, "Echo")))["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("kind", "payload", "status"),
    [("Echo", {"value": 1}, "COMPLETED"), ("Steer", {"how": "fail", "until": 9}, "FAILED")],
)
async def test_a_lost_reply_to_settle_runs_no_job_twice(dsn, db, launch, kind, payload, status):
    wire = await Wire(dsn).open()
    try:
        worker = await launch("node", address=wire.dsn).ready()

        wire.lose_reply_to("settle")
        job_id = await insert(db, kind, payload, max_attempts=1)

        job = await ended(db, job_id)
        await until(lambda: wire.calls["settle"] >= 2, "the outcome should be sent again")
        assert (job["status"], job["attempt"], wire.lost) == (status, 1, 1)
        assert "was refused" not in worker.log
        worker.end()
    finally:
        await wire.close()
