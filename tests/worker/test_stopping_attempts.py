"""Timeouts and cancellations reach a running attempt in all three executors, and nothing it returns outweighs them."""

import asyncio
import contextlib
import importlib
import json
import os
import time
from datetime import timedelta

import jobs
import pytest
from witness import attempts, ended, insert, is_alive, row, until

from scheduler import JobCancelled

SOON = timedelta(minutes=1)
WAITING = ["Wait", "WaitInThread", "WaitInProcess"]


async def start(db, gate, kind, **columns):
    job_id = await insert(db, kind, {"path": gate.path}, **columns)
    await gate.begun()
    return job_id


def executor(worker, name):
    return next(executor for executor in worker.executors if executor.name == name)


@pytest.mark.parametrize("kind", WAITING)
async def test_an_attempt_that_runs_too_long_times_out(db, work, gate, kind):
    worker = await work()
    gate = gate()
    await ended(db, await insert(db, "EchoInProcess"))  # a child is there, and its start no part of the timeout

    job_id = await start(db, gate, kind, max_attempts=1, timeout=timedelta(seconds=0.8))

    job = await ended(db, job_id)
    assert (job["status"], job["failures"]) == ("TIMED_OUT", 1)
    (attempt,) = await attempts(db, job_id)
    assert (attempt["outcome"], attempt["error_type"]) == ("timed_out", "TimedOut")
    assert attempt["error"] == "the attempt ran longer than its timeout of 0.8 s"
    assert job["finished_at"] - job["started_at"] >= timedelta(seconds=0.8)
    await until(lambda: not any(e.slots.taken for e in worker.executors), "its slot should be free again")


async def test_an_attempt_that_timed_out_is_tried_again(db, work, gate):
    await work()
    gate = gate()
    job_id = await start(
        db, gate, "Wait", timeout=timedelta(seconds=1), retry_base=timedelta(seconds=0.01),
        retry_cap=timedelta(seconds=1),
    )  # fmt: skip

    await gate.begun(times=2)
    gate.open()

    job = await ended(db, job_id)
    assert (job["status"], job["result"], job["failures"]) == ("COMPLETED", "2", 1)


@pytest.mark.parametrize("kind", WAITING)
async def test_a_running_job_is_cancelled_well_before_a_heartbeat(scheduler, db, work, gate, kind):
    await work(lease=60)  # a heartbeat of 20 s
    gate = gate()
    job_id = await start(db, gate, kind)

    asked = time.monotonic()
    done = await scheduler.cancel(job_id)

    with pytest.raises(JobCancelled):
        await scheduler.handle(job_id).result(SOON)
    assert time.monotonic() - asked < 10
    assert done.requested == [job_id]
    job = await row(db, job_id)
    assert (job["status"], job["attempt"], job["failures"]) == ("CANCELLED", 1, 0)


async def test_a_cancelled_child_is_killed_and_replaced(scheduler, db, work, gate):
    await work(processes=1)
    gate = gate()
    job_id = await start(db, gate, "Hog")
    ((_, pid),) = gate.notes("began")

    await scheduler.cancel(job_id)

    await ended(db, job_id)
    await until(lambda: not is_alive(pid), "the child should be gone")
    assert await (await scheduler.submit(jobs.EchoInProcess(value=1))).result(SOON) == 1


async def test_a_job_that_completes_although_it_was_cancelled_stays_completed(scheduler, db, work, gate):
    await work()
    gate = gate()
    job_id = await start(db, gate, "Polite")

    await scheduler.cancel(job_id)

    job = await ended(db, job_id)
    assert (job["status"], job["result"]) == ("COMPLETED", '"done all the same"')


async def test_f54_a_job_that_returns_after_its_timeout_has_timed_out(db, work, gate):
    await work()

    job_id = await start(db, gate(), "Polite", max_attempts=1, timeout=timedelta(seconds=0.2))

    job = await ended(db, job_id)
    assert (job["status"], job["result"]) == ("TIMED_OUT", None)


async def test_f54_a_handler_that_swallows_its_cancellation_has_timed_out_and_keeps_its_slot(scheduler, db, work, gate):
    worker = await work(async_slots=2)
    gate = gate()
    job_id = await start(db, gate, "Stubborn", max_attempts=1, timeout=timedelta(seconds=0.2))

    job = await ended(db, job_id)

    assert job["status"] == "TIMED_OUT"
    assert gate.notes("swallowed")
    assert executor(worker, "async").slots.taken == 1
    await lists_abandoned(db, 1)
    assert await (await scheduler.submit(jobs.Echo(value="beside it"))).result(SOON) == "beside it"
    gate.open()
    await gate.noted("returned")
    await until(lambda: executor(worker, "async").slots.taken == 0, "its slot should be free again")
    assert (await row(db, job_id))["status"] == "TIMED_OUT"


@pytest.mark.slow
async def test_a_handler_that_swallows_its_cancellation_is_cancelled_all_the_same(scheduler, db, work, gate):
    await work()
    job_id = await start(db, gate(), "Stubborn")

    await scheduler.cancel(job_id)

    assert (await ended(db, job_id))["status"] == "CANCELLED"


async def lists_abandoned(db, number):
    async def abandoned():
        (listed,) = await db.fetch("SELECT scheduler.list_workers() AS worker")
        return json.loads(listed["worker"])["abandoned"] == number

    await until(abandoned, f"the list of workers should show {number} abandoned handlers")


async def test_f54_a_job_that_blocks_the_loop_beyond_its_timeout_has_timed_out(db, work, gate):
    await work(lease=60)
    gate = gate()
    os.mkfifo(f"{gate.path}.pipe")
    release = f"while ! [ -e {gate.path}.began ]; do sleep 0.1; done; sleep 1; echo late > {gate.path}.pipe"
    releasing = await asyncio.create_subprocess_exec("sh", "-c", release)  # as this loop is the one that is blocked

    job_id = await insert(db, "BlockTheLoop", {"path": gate.path}, max_attempts=1, timeout=timedelta(seconds=0.3))

    job, (attempt,) = await ended(db, job_id), await attempts(db, job_id)
    assert (job["status"], job["result"], attempt["error_type"]) == ("TIMED_OUT", None, "TimedOut")
    await releasing.wait()


async def test_a_thread_that_an_async_job_has_started_sees_that_it_should_stop(scheduler, db, work, gate):
    await work()
    gate = gate()
    job_id = await start(db, gate, "WaitInItsOwnThread")

    await scheduler.cancel(job_id)

    assert (await ended(db, job_id))["status"] == "CANCELLED"
    await gate.noted("stopped")


async def test_the_programs_that_a_killed_child_has_started_end_with_it(db, work, gate):
    await work()
    gate = gate()
    job_id = await start(db, gate, "RunAProgram", max_attempts=1, timeout=timedelta(seconds=1))
    ((_, program),) = gate.notes("program")

    assert (await ended(db, job_id))["status"] == "TIMED_OUT"
    await until(lambda: not is_alive(program), "the program should be gone")


async def test_a_thread_that_does_not_stop_is_left_to_itself_and_its_slot_replaced(scheduler, db, work, gate):
    worker = await work(threads=1)
    threads, gate = executor(worker, "thread"), gate()
    job_id = await start(db, gate, "StubbornInThread", max_attempts=1, timeout=timedelta(seconds=0.2))

    job = await ended(db, job_id)

    assert job["status"] == "TIMED_OUT"
    assert (len(threads.abandoned), threads.slots.taken) == (1, 0)
    await lists_abandoned(db, 1)
    assert await (await scheduler.submit(jobs.EchoInThread(value="in its place"))).result(SOON) == "in its place"
    gate.open()
    await until(lambda: not threads.abandoned, "the thread should have come back")
    assert (await row(db, job_id))["status"] == "TIMED_OUT"
    assert threads.slots.taken == 0
    await lists_abandoned(db, 0)


async def test_no_more_threads_are_left_to_themselves_than_there_are_slots(scheduler, db, work, gate, caplog):
    worker = await work(threads=1)
    threads, gates = executor(worker, "thread"), [gate("first"), gate("second")]
    for one in gates:
        job_id = await start(db, one, "StubbornInThread", max_attempts=1, timeout=timedelta(seconds=0.1))
        assert (await ended(db, job_id))["status"] == "TIMED_OUT"

    assert (len(threads.abandoned), threads.slots.taken) == (2, 1)
    assert "its thread is left to itself, as are 2 of at most 2" in caplog.text

    waiting = await scheduler.submit(jobs.EchoInThread(value="at last"))
    gates[1].open()
    assert await waiting.result(SOON) == "at last"
    gates[0].open()
    await until(lambda: (len(threads.abandoned), threads.slots.taken) == (0, 0), "both threads should have come back")


async def test_a_cancellation_reaches_a_worker_without_notices_by_its_heartbeat(scheduler, db, work, gate):
    await work(lease=1.5, listen_dsn="postgresql://nobody@127.0.0.1:1/nowhere")
    gate = gate()
    job_id = await start(db, gate, "Wait")

    await scheduler.cancel(job_id)

    assert (await ended(db, job_id))["status"] == "CANCELLED"
    assert gate.notes("stopped")


HANGING = """
import os

if pipe := os.environ.get("HANG_ON"):
    open(pipe).read()

from scheduler import CpuBoundJob

class Hanging(CpuBoundJob):
    def run(self, ctx):
        return 1
"""


async def test_a_child_that_hangs_while_it_starts_times_out_too(db, work, monkeypatch, tmp_path):
    (tmp_path / "hanging.py").write_text(HANGING)
    monkeypatch.syspath_prepend(str(tmp_path))
    hanging, pipe = importlib.import_module("hanging"), tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("HANG_ON", str(pipe))
    monkeypatch.setattr("worker.processes.START_TIME", 0.2)
    await work(kinds=[hanging.Hanging])

    job_id = await insert(db, "Hanging", max_attempts=1, timeout=timedelta(seconds=0.5))

    try:
        assert (await ended(db, job_id))["status"] == "TIMED_OUT"
    finally:
        with contextlib.suppress(OSError):  # nobody reads it any more
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
