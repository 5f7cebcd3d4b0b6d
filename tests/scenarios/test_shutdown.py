"""Stopping: drain, release, exit; during the start and during an outage too; and what graceful restarts cost a job."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from wire import Wire
from witness import asleep, attempts, children_of, ended, has_status, insert, insert_many, is_alive, row, until

BOTH = [signal.SIGTERM, signal.SIGINT]
LAST_STEPS = 5  # seconds beyond the grace time


@pytest.fixture
async def wire(dsn):
    wire = await Wire(dsn).open()
    yield wire
    await wire.close()


def let_go(gate):
    Path(f"{gate.path}.pipe").write_text("go on")


# During the start.

APP = """
import pathlib, time
pathlib.Path("importing").touch()
{waiting}
"""


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("waiting", ["time.sleep(600)", "while True: pass"])
async def test_f58_a_signal_while_the_application_is_imported_ends_the_worker(launch, tmp_path, number, waiting):
    (tmp_path / "slow_app.py").write_text(APP.format(waiting=waiting))
    process = launch(app="slow_app", folder=tmp_path)
    await until((tmp_path / "importing").exists, "the application should be imported")

    process.send(number)

    assert await process.exits(20) == 0
    assert process.log == ""


@pytest.mark.parametrize("number", BOTH)
async def test_f58_a_signal_before_the_database_has_answered_ends_the_worker(launch, number):
    connected = asyncio.Event()

    async def swallow(reader, writer):
        connected.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    process = launch(address=f"postgresql://nobody@127.0.0.1:{port}/nothing")
    await asyncio.wait_for(connected.wait(), 60)

    process.send(number)

    assert await process.exits(20) == 0
    assert "Traceback" not in process.log
    server.close()


@pytest.mark.parametrize("verb", ["schema_version", "declare", "register"])
async def test_f58_a_signal_while_the_database_falls_silent_during_the_start_ends_the_worker(launch, wire, verb):
    wire.swallow_at(verb)
    process = launch(address=wire.dsn)
    await until(lambda: wire.calls[verb], "the start should come so far")

    process.send(signal.SIGTERM)

    assert await process.exits(20) == 0
    assert "Traceback" not in process.log


@pytest.mark.slow
async def test_a_worker_that_starts_while_the_database_is_silent_gives_up(launch, wire):
    wire.go_silent()

    process = launch(address=wire.dsn)

    assert await process.exits() == 4
    assert "PostgreSQL cannot be reached: it does not answer" in process.log


async def test_f58_a_signal_while_a_child_process_starts_ends_both(db, launch, tmp_path):
    (tmp_path / "two_faced.py").write_text("""
import os, pathlib, sys, time
from scheduler import CpuBoundJob
if sys.argv[0] == "-c":
    pathlib.Path("child").write_text(str(os.getpid()))
    time.sleep(600)
class Slow(CpuBoundJob):
    def run(self, ctx): pass
""")
    process = await launch(app="two_faced", folder=tmp_path, grace=60).ready()
    job_id = await insert(db, "Slow")
    await until((tmp_path / "child").exists, "a child should start")
    children = children_of(process.pid)

    process.send(signal.SIGTERM)
    await process.says("running jobs may finish")
    process.send(signal.SIGTERM)

    assert await process.exits(20) == 6
    assert (await row(db, job_id))["status"] == "PENDING"
    assert not any(is_alive(child) for child in children)


# While something is in the way.


async def test_f58_a_handler_that_blocks_the_event_loop_keeps_no_worker_beyond_grace(db, launch, gate):
    gate, process = gate(), await launch(grace=1).ready()
    os.mkfifo(f"{gate.path}.pipe")
    await insert(db, "BlockTheLoop", {"path": gate.path})
    await gate.begun()

    process.send(signal.SIGTERM)

    assert await process.exits(1 + LAST_STEPS + 20) == 7
    assert "it does not stop" in process.log


async def test_f58_three_signals_end_a_worker_whose_event_loop_is_blocked(db, launch, gate):
    gate, process = gate(), await launch(grace=600).ready()
    os.mkfifo(f"{gate.path}.pipe")
    await insert(db, "BlockTheLoop", {"path": gate.path})
    await gate.begun()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        process.send(number)
        await asyncio.sleep(0.5)  # two of one kind that are pending become one

    assert await process.exits(20) == 7


async def test_f58_the_first_signal_is_acted_on_when_the_event_loop_turns_again(db, launch, gate):
    gate, process = gate(), await launch(grace=60).ready()
    os.mkfifo(f"{gate.path}.pipe")
    job_id = await insert(db, "BlockTheLoop", {"path": gate.path})
    await gate.begun()

    process.send(signal.SIGTERM)
    let_go(gate)

    assert await process.exits(20) == 0
    assert (await row(db, job_id))["status"] == "COMPLETED"


@pytest.mark.parametrize("kind", ["WaitInProcess", "Stubborn"])
@pytest.mark.parametrize("database", ["refusing", "silent", "swallowing"])
async def test_b17_a_worker_without_its_database_ends_soon_after_grace(db, wire, launch, gate, kind, database):
    gate, process = gate(), await launch(address=wire.dsn, grace=0.5).ready()
    await asleep(db)
    job_id = await insert(db, kind, {"path": gate.path})
    await gate.begun()

    if database == "refusing":
        wire.refuses = True
        wire.cut()
    else:
        getattr(wire, {"silent": "go_silent", "swallowing": "swallow"}[database])()
    process.send(signal.SIGTERM)

    assert await process.exits(0.5 + LAST_STEPS + 20) in {6, 7}
    assert "Traceback" not in process.log
    assert (await row(db, job_id))["failures"] == 0


async def test_b17_three_signals_end_a_worker_whose_database_is_silent(db, wire, launch, gate):
    gate, process = gate(), await launch(address=wire.dsn, grace=600).ready()
    await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    wire.go_silent()

    process.send(signal.SIGTERM)
    await process.says("running jobs may finish")
    process.send(signal.SIGTERM)
    await process.says("jobs are given back")
    process.send(signal.SIGTERM)

    assert await process.exits(20) in {6, 7}


# What it costs.


@pytest.mark.slow
async def test_b49_ten_graceful_restarts_cost_a_job_nothing(db, launch, gate):
    job_id = await insert(db, "EachItsGate", {"path": gate("job").path}, max_attempts=3, max_crashes=1)

    for n in range(1, 11):
        waiting = gate(f"job-{n}")
        process = await launch(grace=0.1, processes=0).ready()
        await waiting.begun()
        process.send(signal.SIGTERM)
        assert await process.exits(20) == 6

    job = await row(db, job_id)
    assert (job["status"], job["attempt"], job["failures"], job["crashes"]) == ("PENDING", 10, 0, 0)
    assert {attempt["outcome"] for attempt in await attempts(db, job_id)} == {"released"}
    gate("job-11").open()
    await launch(processes=0).ready()
    assert (await ended(db, job_id))["status"] == "COMPLETED"


@pytest.mark.parametrize("kind", ["Wait", "WaitInThread", "WaitInProcess"])
async def test_b54_b21_what_a_signal_stops_is_given_back_and_not_retried_by_the_dying_worker(db, launch, gate, kind):
    gate, process = gate(), await launch(grace=0.1).ready()
    job_id = await insert(db, kind, {"path": gate.path}, max_attempts=1)
    await gate.begun()

    process.send(signal.SIGTERM)

    assert await process.exits(20) == 6
    job, (attempt,) = await row(db, job_id), await attempts(db, job_id)
    assert (job["status"], job["failures"], job["attempt"], attempt["outcome"]) == ("PENDING", 0, 1, "released")
    assert len(gate.notes("began")) == 1


@pytest.mark.slow
async def test_f58_a_rolling_restart_of_five_workers_under_ten_thousand_jobs_counts_nothing(db, launch, gate):
    options = {"async": 20, "threads": 0, "processes": 0, "grace": 0.2, "lease": 30}
    workers = [await launch(**options).ready() for _ in range(5)]
    ids = await insert_many(db, 10_000, "Short", max_attempts=1, max_crashes=0)
    gate, codes = gate(), []
    ids += await insert_many(db, 10, "Wait", {"path": gate.path}, max_attempts=1, max_crashes=0, priority=100)
    await gate.begun(10)

    for n in range(5):
        workers[n].send(signal.SIGTERM)
        sent = time.monotonic()
        codes.append(await workers[n].exits())
        assert time.monotonic() - sent < 0.2 + LAST_STEPS + 10
        workers[n] = await launch(**options).ready()
    gate.open()

    found = await ended(db, *ids, seconds=240)
    assert set(codes) <= {0, 6}
    assert 6 in codes
    assert {(job["status"], job["failures"], job["crashes"]) for job in found.values()} == {("COMPLETED", 0, 0)}
    assert set(await db.fetchval("SELECT array_agg(DISTINCT outcome) FROM scheduler.attempts")) == {"released"}
    for worker in workers:
        worker.send(signal.SIGTERM)
        assert await worker.exits() == 0
        assert "Traceback" not in worker.log
    assert await db.fetchval("SELECT count(*) FROM scheduler.workers") == 0


async def test_b32_a_worker_that_is_struck_off_the_list_goes_on_and_its_jobs_are_reaped_if_it_dies(db, launch, gate):
    gate, process = gate(), await launch(lease=2).ready()
    job_id = await insert(db, "FirstOnly", {"path": gate.path})
    await gate.begun()

    await db.execute("DELETE FROM scheduler.workers")
    echo = await ended(db, await insert(db, "Echo"))
    process.send(signal.SIGKILL)
    await launch(lease=2).ready()

    assert (echo["status"], echo["attempt"]) == ("COMPLETED", 1)
    assert (await has_status(db, job_id, "COMPLETED"))["crashes"] == 1


async def test_b32_a_worker_that_is_struck_off_the_list_is_on_it_again(db, launch):
    process = await launch(lease=2).ready()

    await db.execute("DELETE FROM scheduler.workers")

    pids = "SELECT array_agg(pid) FROM scheduler.workers"
    await until(lambda: db.fetchval(pids), "it should be on the list again")
    assert await db.fetchval(pids) == [process.pid]


async def test_f62_jobs_of_a_worker_that_is_gone_from_the_list_are_reaped(db, launch, gate):
    gate, process = gate(), await launch(lease=2).ready()
    job_id = await insert(db, "FirstOnly", {"path": gate.path})
    await gate.begun()

    process.send(signal.SIGKILL)
    await db.execute("DELETE FROM scheduler.workers")
    await launch(lease=2).ready()

    job = await ended(db, job_id)
    assert (job["status"], job["attempt"], job["crashes"]) == ("COMPLETED", 2, 1)
