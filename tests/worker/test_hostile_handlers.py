"""Whatever a handler does, it ends its own job, with readable words, and no other."""

import json
from datetime import timedelta

import jobs
import pytest
from witness import attempts, ended, has_status, insert, insert_many, is_alive, until

from scheduler.error_text import TEXT_LIMIT

IN_PROCESS = ["Act", "ActInThread", "ActInProcess"]

# What each is stored as: the type, and words of the message.
RAISED = {
    "sys_exit": ("SystemExit", "the handler called sys.exit(enough)"),
    "keyboard_interrupt": ("KeyboardInterrupt", ""),
    "generator_exit": ("GeneratorExit", ""),
    "cancelled_error": ("asyncio.exceptions.CancelledError", ""),
    "unreadable": ("jobs.UnreadableError", "<no message: RuntimeError while reading it>"),
    "unpicklable": ("jobs.UnpicklableError", "one"),
    "huge_message": ("ValueError", "[cut from 50,000,000 characters]"),
    "nul": ("ValueError", "a\ufffdb"),
    "surrogate": ("ValueError", "a\ufffdb"),
    "circle": ("ValueError", "first"),
    "recursion": ("RecursionError", "maximum recursion depth"),
    "memory": ("MemoryError", ""),
}
KILLED = {
    "os_exit": "the process that ran the job ended with exit code 7",
    "segfault": "the process that ran the job was ended by SIGSEGV",
    "sigkill": "the process that ran the job was ended by SIGKILL (as Linux does when memory runs out)",
}
BEYOND_MEMORY = ["gigabyte", "ten_gigabytes", "hidden_gigabyte"]
SOON = timedelta(minutes=1)


def is_unharmed(neighbours):
    return {(job["status"], job["attempt"], job["failures"]) for job in neighbours.values()} == {("COMPLETED", 1, 0)}


@pytest.mark.parametrize("kind", IN_PROCESS)
async def test_f55_what_a_handler_raises_ends_its_own_job_readably(db, work, kind):
    echo = kind.replace("Act", "Echo")
    before = await insert_many(db, 25, echo)
    hostile = {action: await insert(db, kind, {"action": action}, max_attempts=1) for action in RAISED}
    after = await insert_many(db, 25, echo)

    await work()

    found = await ended(db, *before, *hostile.values(), *after)
    assert is_unharmed({job_id: found[job_id] for job_id in before + after})
    for action, (error_type, words) in RAISED.items():
        job, (attempt,) = found[hostile[action]], await attempts(db, hostile[action])
        assert (action, job["status"], job["attempt"]) == (action, "FAILED", 1)
        assert (action, attempt["outcome"], attempt["error_type"]) == (action, "failed", error_type)
        assert words in attempt["error"]
        assert error_type in attempt["traceback"]
        assert len(attempt["error"].encode()) <= TEXT_LIMIT
        assert len(attempt["traceback"].encode()) <= TEXT_LIMIT


async def test_a_child_that_dies_costs_one_attempt_of_one_job(db, work):
    worker = await work(processes=2)
    before = await insert_many(db, 15, "EchoInProcess")
    hostile = {action: await insert(db, "ActInProcess", {"action": action}, max_attempts=1) for action in KILLED}
    after = await insert_many(db, 15, "EchoInProcess")

    found = await ended(db, *before, *hostile.values(), *after)

    assert is_unharmed({job_id: found[job_id] for job_id in before + after})
    for action, words in KILLED.items():
        job, (attempt,) = found[hostile[action]], await attempts(db, hostile[action])
        assert (job["status"], job["failures"], job["crashes"]) == ("FAILED", 1, 0)
        assert (attempt["error_type"], attempt["error"]) == ("ChildDied", words)
    assert all(executor.slots.taken == 0 for executor in worker.executors)


async def test_f52_a_real_worker_outlives_all_of_it(db, launch):
    process = await launch(child_memory=256).ready()
    acts = [(kind, action) for kind in IN_PROCESS for action in RAISED]
    acts += [("ActInProcess", action) for action in [*KILLED, *BEYOND_MEMORY, "overflow"]]
    hostile = [await insert(db, kind, {"action": action}, max_attempts=1) for kind, action in acts]
    neighbours = await insert_many(db, 50, "Echo")

    found = await ended(db, *hostile, *neighbours, seconds=120)

    assert {found[job_id]["status"] for job_id in hostile} == {"FAILED"}
    assert {found[job_id]["crashes"] for job_id in hostile} == {0}
    assert is_unharmed({job_id: found[job_id] for job_id in neighbours})
    assert process.popen.poll() is None
    assert "Traceback" not in process.log


async def test_f52_sys_exit_in_a_task_that_a_handler_has_made_does_not_end_the_worker(db, launch, gate):
    process, gate = await launch().ready(), gate()
    waiting = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    job_id = await insert(db, "Act", {"action": "exit_in_a_task"})
    await process.says("a task of a handler raised SystemExit; the worker goes on")
    gate.open()

    found = await ended(db, job_id, waiting, *await insert_many(db, 50, "Echo"))
    assert is_unharmed(found)
    assert process.popen.poll() is None


async def test_f52_beyond_the_memory_of_a_child_one_attempt_fails_and_fifty_jobs_do_not_notice(db, work):
    await work(processes=2, child_memory=256)
    before = await insert_many(db, 25, "EchoInProcess")
    hostile = {action: await insert(db, "ActInProcess", {"action": action}, max_attempts=1) for action in BEYOND_MEMORY}
    after = await insert_many(db, 25, "EchoInProcess")

    found = await ended(db, *before, *hostile.values(), *after)

    assert is_unharmed({job_id: found[job_id] for job_id in before + after})
    for action, job_id in hostile.items():
        (attempt,) = await attempts(db, job_id)
        assert (found[job_id]["status"], attempt["outcome"]) == ("FAILED", "failed")
        assert attempt["error_type"] == ("ValueError" if action == "hidden_gigabyte" else "MemoryError")
        assert "MemoryError" in attempt["traceback"]


@pytest.mark.parametrize("action", ["gigabyte", "hidden_gigabyte"])
async def test_a_child_that_ran_out_of_memory_gets_no_other_job(scheduler, db, work, action):
    await work(processes=1, child_memory=256)
    first = await (await scheduler.submit(jobs.Where())).result(SOON)

    await ended(db, await insert(db, "ActInProcess", {"action": action}, max_attempts=1))

    second = await (await scheduler.submit(jobs.Where())).result(SOON)
    assert first["pid"] != second["pid"]
    assert not is_alive(first["pid"])


async def test_f05_a_handler_that_hangs_in_c_is_killed_when_its_time_is_over_and_holds_up_nobody(db, work, gate):
    await work(processes=2)
    gate = gate()
    await ended(db, await insert(db, "EchoInProcess"))

    job_id = await insert(db, "HogInC", {"path": gate.path}, max_attempts=1, timeout=timedelta(seconds=2))
    ((_, pid),) = await gate.begun()
    beside = [
        job_id for kind in ("Echo", "EchoInThread", "EchoInProcess") for job_id in await insert_many(db, 10, kind)
    ]

    assert is_unharmed(await ended(db, *beside))
    assert (await has_status(db, job_id, "TIMED_OUT"))["failures"] == 1
    await until(lambda: not is_alive(pid), "the child should be gone")


@pytest.mark.parametrize("action", ["empty_snooze", "empty_retry_after"])
@pytest.mark.parametrize("kind", IN_PROCESS)
async def test_a_steering_exception_without_a_delay_is_a_failure(db, work, kind, action):
    worker = await work()
    neighbours = await insert_many(db, 10, kind.replace("Act", "Echo"))

    job_id = await insert(db, kind, {"action": action}, max_attempts=1)

    assert (await ended(db, job_id))["status"] == "FAILED"
    assert is_unharmed(await ended(db, *neighbours))
    assert all(executor.slots.taken == 0 for executor in worker.executors)


async def test_a_child_whose_channel_was_written_to_is_replaced(db, work):
    await work(processes=1)
    neighbours = await insert_many(db, 5, "EchoInProcess")

    job_id = await insert(db, "Noisy", max_attempts=1)

    neighbours += await insert_many(db, 5, "EchoInProcess")
    assert (await ended(db, job_id))["status"] == "FAILED"
    assert is_unharmed(await ended(db, *neighbours))


async def test_values_that_postgresql_quotes_are_neither_stored_nor_logged(dsn, db, launch):
    process = await launch().ready()

    job_id = await insert(db, "Collide", {"address": dsn, "secret": "secret-4711"}, max_attempts=1)

    job, (attempt,) = await ended(db, job_id), await attempts(db, job_id)
    assert attempt["error_type"] == "asyncpg.exceptions.UniqueViolationError"
    assert 'duplicate key value violates unique constraint "people_mail_key"' in attempt["error"]
    assert "secret-4711" not in "".join([job["error"], attempt["error"], attempt["traceback"], process.log])


async def test_what_a_child_forks_is_an_ordinary_process(db, launch, tmp_path):
    process = await launch(processes=1).ready()

    job = await ended(db, await insert(db, "ForkTwice", {"path": str(tmp_path / "missing")}, max_attempts=1))

    assert json.loads(job["result"]) == {"exit code": -15, "missing": "[]"}
    assert "Bad file descriptor" not in process.log


async def test_a_child_that_has_left_its_process_group_is_killed_all_the_same(db, launch, gate):
    gate = gate()
    await launch(processes=1).ready()
    job_id = await insert(db, "MoveAway", {"path": gate.path}, timeout=timedelta(seconds=1), max_attempts=1)
    ((_, pid),) = await gate.begun()

    assert (await ended(db, job_id))["status"] == "TIMED_OUT"
    assert not is_alive(pid)
