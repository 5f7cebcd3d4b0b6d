"""The processes of CpuBoundJobs: they die with their worker, run its code, and are never mistaken for one another."""

import contextlib
import importlib
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import jobs
import pytest
from witness import children_of, ended, has_status, insert, insert_many, is_alive, row, until

from worker.processes import Child

SOON = timedelta(minutes=1)

# What a user may have lying about in the folder a worker is started in.
HOSTILE = "raise SystemExit('this is the file of the user, and not ours')\n"
APP = """
from pathlib import Path

from scheduler import AsyncJob, CpuBoundJob

class HereAsync(AsyncJob):
    async def run(self, ctx):
        return facts()

class HereInProcess(CpuBoundJob):
    def run(self, ctx):
        return facts()

def facts():
    import colorsys

    import scheduler
    import worker

    return [worker.__file__, scheduler.__file__, colorsys.__file__]
"""


FORKING = """
import os
import time

from scheduler import CpuBoundJob

class ForksAndDies(CpuBoundJob):
    def run(self, ctx):
        if os.fork() == 0:
            time.sleep(90)
            os._exit(0)
        os._exit(7)
"""


LEAKY = """
import os

from scheduler import CpuBoundJob

class Leaky(CpuBoundJob):
    def run(self, ctx):
        return os.getpid()
"""


def open_descriptors():
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


async def has_no_child_left(process, pids):
    await until(lambda: not any(is_alive(pid) for pid in pids), f"of {process.pid} no child should be left")


@pytest.mark.parametrize("kind", ["Hog", "HogInC"])
async def test_a_busy_child_dies_with_its_worker(db, launch, gate, kind):
    process, gate = await launch().ready(), gate()
    await insert(db, kind, {"path": gate.path})
    ((_, pid),) = await gate.begun()
    assert pid in children_of(process.pid)

    process.send(signal.SIGKILL)

    await has_no_child_left(process, [pid])


@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGABRT, ("ActInThread", "os_exit"), ("Act", "segfault")])
async def test_no_child_is_left_whatever_ends_the_worker(scheduler, db, launch, gate, end):
    process, gate = await launch().ready(), gate()
    idle, job_id = await insert(db, "EchoInProcess"), await insert(db, "HogInC", {"path": gate.path})
    await gate.begun()
    await ended(db, idle)
    children = children_of(process.pid)
    assert len(children) == 2

    if isinstance(end, tuple):
        await insert(db, end[0], {"action": end[1]})
    else:
        process.send(end)

    await process.exits()
    await has_no_child_left(process, children)
    assert (await row(db, job_id))["status"] == "RUNNING"  # until its lease lapses: nobody could say more


async def test_an_idle_child_dies_with_its_worker(scheduler, launch):
    process = await launch().ready()
    found = await (await scheduler.submit(jobs.Where())).result(SOON)
    assert found["parent"] == process.pid

    process.send(signal.SIGKILL)

    await has_no_child_left(process, [found["pid"]])


async def test_a_busy_child_ends_with_its_worker_at_the_end_of_grace(db, launch, gate):
    process, gate = await launch(grace=0.2).ready(), gate()
    job_id = await insert(db, "HogInC", {"path": gate.path})
    ((_, pid),) = await gate.begun()

    process.send(signal.SIGTERM)

    assert await process.exits() == 6
    assert not is_alive(pid)
    assert (await has_status(db, job_id, "PENDING"))["failures"] == 0


async def test_signals_to_the_whole_group_do_not_end_a_child(db, launch, gate):
    process, gate = await launch().ready(), gate()
    job_id = await insert(db, "WaitInProcess", {"path": gate.path})
    ((_, pid),) = await gate.begun()

    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    gate.open()

    job = await ended(db, job_id)
    assert (job["status"], job["attempt"]) == ("COMPLETED", 1)
    assert process.popen.poll() is None


async def test_a_program_that_a_child_starts_can_be_ended_by_signals(scheduler, work, tmp_path, monkeypatch):
    (tmp_path / "starts_a_program.py").write_text(
        "import signal, subprocess\n"
        "from scheduler import CpuBoundJob\n"
        "class StartsAProgram(CpuBoundJob):\n"
        "    def run(self, ctx):\n"
        "        program = subprocess.Popen(['sleep', '60'])\n"
        "        program.send_signal(signal.SIGTERM)\n"
        "        return program.wait()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import starts_a_program

    await work(kinds=[starts_a_program.StartsAProgram])

    handle = await scheduler.submit(starts_a_program.StartsAProgram())

    assert await handle.result(SOON) == -signal.SIGTERM


async def test_files_of_the_user_shadow_nothing_of_ours(db, launch, tmp_path):
    (tmp_path / "worker.py").write_text(HOSTILE)
    (tmp_path / "scheduler.py").write_text(HOSTILE)
    (tmp_path / "colorsys.py").write_text("# the user's own, which goes before that of the library\n")
    (tmp_path / "service.py").write_text(APP)
    await launch(app="service", folder=tmp_path).ready()

    found = await ended(db, await insert(db, "HereAsync"), await insert(db, "HereInProcess"))

    packages = Path(sys.modules["worker"].__file__).parent.parent
    expected = [str(packages / "worker/__init__.py"), str(packages / "scheduler/__init__.py")]
    for job in found.values():
        ours, users = json.loads(job["result"])[:2], json.loads(job["result"])[2]
        assert ours == expected
        assert users == str(tmp_path / "colorsys.py")


async def test_the_end_of_a_child_is_noticed_although_a_process_it_forked_lives_on(db, work, tmp_path, monkeypatch):
    (tmp_path / "forking.py").write_text(FORKING)
    monkeypatch.syspath_prepend(str(tmp_path))
    await work(kinds=[importlib.import_module("forking").ForksAndDies])

    job_id = await insert(db, "ForksAndDies", max_attempts=1)

    job = await ended(db, job_id, seconds=45)  # its fork lives for twice as long
    assert (job["status"], job["error"]) == ("FAILED", "ChildDied: the process that ran the job ended with exit code 7")


async def test_children_are_kept_for_the_next_job(scheduler, work):
    await work(processes=1)

    pids = {(await (await scheduler.submit(jobs.Where())).result(SOON))["pid"] for _ in range(5)}

    assert len(pids) == 1
    assert pids != {os.getpid()}


async def test_a_child_is_replaced_after_its_jobs_and_none_is_left_over(scheduler, db, work):
    worker = await work(processes=2, child_jobs=3)
    pids = []

    async def others_serve():
        pids.append((await (await scheduler.submit(jobs.Where())).result(SOON))["pid"])
        return len(set(pids)) >= 4

    await until(others_serve, "children should have been replaced")
    assert await db.fetchval("SELECT count(*) FROM scheduler.attempts") == 0
    await worker.stop()

    assert not any(is_alive(pid) for pid in pids)
    assert not children_of(os.getpid())
    assert all(pids.count(pid) >= 3 for pid in pids[:-3])


async def test_a_child_whose_successor_cannot_start_goes_on(db, work, tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "leaky.py"
    module.write_text(LEAKY)
    await work(processes=1, child_jobs=2, kinds=[importlib.import_module("leaky").Leaky])
    pids = []

    async def one_more():
        pids.append(json.loads((await ended(db, await insert(db, "Leaky", max_attempts=1)))["result"]))

    async def has_failed_twice():
        await one_more()
        return caplog.text.count("its successor cannot start: ImportError: half of a deploy") >= 2

    async def another_serves():
        await one_more()
        return pids[-1] != first

    await one_more()
    module.write_text("raise ImportError('half of a deploy')\n" + LEAKY)
    await until(has_failed_twice, "two successors should have failed to start")
    first, served = pids[0], len(pids)
    module.write_text(LEAKY)
    await until(another_serves, "it should have been replaced after all")

    assert set(pids[:served]) == {first}
    assert await db.fetchval("SELECT count(*) FROM scheduler.attempts") == 0
    await until(lambda: not is_alive(first), "the first child should be gone")


async def test_a_child_that_was_told_to_die_gets_no_other_job():
    child = Child([jobs.__name__])
    try:
        await child.ready()
        child.kill()

        assert not child.alive  # although the kernel may not have got round to it
    finally:
        await child.close()


async def test_a_timeout_at_the_moment_of_the_answer_harms_no_other_job(db, work, gate):
    await work(processes=1)
    tight = await insert_many(db, 15, "EchoInProcess", timeout=timedelta(milliseconds=3), max_attempts=1)
    others = await insert_many(db, 15, "EchoInProcess", max_attempts=1)

    found = await ended(db, *tight, *others)

    assert {found[job_id]["status"] for job_id in tight} <= {"COMPLETED", "TIMED_OUT"}
    assert {found[job_id]["error"] for job_id in others} == {None}


async def test_no_descriptor_is_left_of_a_child():
    before = open_descriptors()

    for module in (jobs.__name__, "no_such_module", "json"):
        child = Child([module])
        with contextlib.suppress(ChildProcessError):
            await child.ready()
        await child.close()
    await Child([]).close()  # before it is ready

    assert open_descriptors() == before
