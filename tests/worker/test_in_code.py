"""A worker in one's own program, and submissions in one's own transaction."""

import asyncio
import os
import subprocess
import sys
from datetime import timedelta

import jobs
import pytest
from witness import attempts, backends, ended, insert, row

from scheduler import ConfigurationError, DatabaseUnavailable, JobNotFound, Scheduler
from worker import Worker

SOON = timedelta(minutes=1)
SCRIPT = """
import asyncio
from scheduler import AsyncJob, CpuBoundJob, Scheduler, SchedulerError
from worker import Worker

class Light(AsyncJob):
    async def run(self, ctx):
        return "done"

class Heavy(CpuBoundJob):
    def run(self, ctx):
        return 1

async def main():
    try:
        async with Worker():
            print("started")
    except SchedulerError as error:
        print(type(error).__name__, error)
    async with Worker(processes=0), Scheduler.connect() as scheduler:
        print(await (await scheduler.submit(Light())).result())

asyncio.run(main())
"""


async def test_a_worker_in_a_block_finishes_what_it_has_begun(scheduler, db, dsn, gate):
    gate = gate()
    async with Worker(dsn, kinds=[jobs.Wait], grace=timedelta(seconds=10)):
        job_id = await insert(db, "Wait", {"path": gate.path})
        await gate.begun()
        asyncio.get_running_loop().call_later(0.1, gate.open)

    job = await row(db, job_id)
    assert (job["status"], job["attempt"]) == ("COMPLETED", 1)
    assert await backends(db) == set()
    assert await db.fetchval("SELECT count(*) FROM scheduler.workers") == 0


async def test_an_error_in_the_block_gives_running_jobs_back(db, dsn, gate):
    gate = gate()
    job_id = await insert(db, "Wait", {"path": gate.path})

    async def fail_in_the_block():
        async with Worker(dsn, kinds=[jobs.Wait], grace=timedelta(seconds=60)):
            await gate.begun()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_in_the_block()

    job, (attempt,) = await row(db, job_id), await attempts(db, job_id)
    assert (job["status"], job["failures"], attempt["outcome"]) == ("PENDING", 0, "released")


async def test_stop_tells_whether_something_was_given_back(db, work, gate):
    gate = gate()
    idle, busy = await work(kinds=[jobs.Echo]), await work(grace=60)
    await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    assert await idle.stop() == 0
    assert await busy.stop(cancel_running=True) == 6
    assert await busy.stop() == 6  # again, and the same


async def test_stop_with_cancel_running_ends_a_stop_that_waits(db, work, gate):
    gate = gate()
    worker = await work(grace=60)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    patient = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    codes = await worker.stop(cancel_running=True), await patient

    assert codes == (6, 6)
    assert (await row(db, job_id))["status"] == "PENDING"


async def test_two_workers_in_one_program_share_the_work(db, work):
    first, second = await work(async_slots=1), await work(async_slots=1)
    ids = [await insert(db, "Overlap") for _ in range(40)]

    found = await ended(db, *ids)

    assert {job["attempt"] for job in found.values()} == {1}
    assert first.peak_running["async"] == second.peak_running["async"] == 1


async def test_a_cpu_bound_job_of_the_script_itself_is_refused(db, dsn, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(script)], env={**os.environ, "SCHEDULER_DSN": dsn}, cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    refused, light = done.stdout.splitlines()
    assert refused == (
        "ConfigurationError Heavy: a CpuBoundJob is defined in the script that is run: move it to a module,"
        " so that a child process can import it, or run the script as --app of scheduler-worker"
        ' with what it starts under `if __name__ == "__main__":`'
    )
    assert light == "done"
    assert done.stderr == ""


async def test_a_worker_that_cannot_start_leaves_nothing_behind(db, dsn, monkeypatch):
    monkeypatch.setattr(jobs.Echo, "__module__", "__main__")
    monkeypatch.setattr(jobs.EchoInProcess, "__module__", "__main__")

    with pytest.raises(ConfigurationError, match="EchoInProcess"):
        await Worker(dsn, kinds=[jobs.Echo, jobs.EchoInProcess]).start()
    with pytest.raises(DatabaseUnavailable):
        await Worker("postgresql://nobody@127.0.0.1:1/nowhere", kinds=[jobs.Echo]).start()

    assert await backends(db) == set()
    assert await db.fetchval("SELECT count(*) FROM scheduler.kinds") == 0


async def test_a_job_submitted_in_a_transaction_exists_once_that_commits(scheduler, connect, work):
    await work()
    user = await connect()

    async with user.transaction():
        handle = await scheduler.submit(jobs.Echo(value="committed"), connection=user)
        with pytest.raises(JobNotFound):
            await scheduler.handle(handle.id).result(SOON)

    assert await handle.result(SOON) == "committed"


async def test_a_job_submitted_in_a_transaction_that_is_rolled_back_never_was(scheduler, db, connect):
    user = await connect()
    transaction = user.transaction()
    await transaction.start()
    handle = await scheduler.submit(jobs.Echo(), connection=user)
    child = await scheduler.submit(jobs.Echo(), depends_on=[handle], connection=user)

    await transaction.rollback()

    assert await row(db, handle.id) is None
    assert await row(db, child.id) is None
    with pytest.raises(JobNotFound):
        await handle.result(SOON)


async def test_results_are_given_of_those_that_have_completed(scheduler, work):
    handles = [await scheduler.submit(jobs.Echo(value=n)) for n in range(3)]
    waiting = await scheduler.submit(jobs.Echo(), delay=timedelta(hours=1))
    await work()
    for handle in handles:
        await handle.result(SOON)

    assert await scheduler.results([*handles, waiting.id]) == {handle.id: n for n, handle in enumerate(handles)}


async def test_whoever_waits_learns_that_the_client_was_closed(dsn):
    async with Scheduler.connect(dsn) as client:
        handle = await client.submit(jobs.Echo())
        waiting = asyncio.create_task(handle.result(SOON))
        await asyncio.sleep(0)

    with pytest.raises(DatabaseUnavailable, match="closed"):
        await waiting
