"""Callbacks are told what a worker did to jobs, and cannot break or slow it."""

import asyncio
import functools
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import jobs
import pytest
from wire import Wire
from witness import ended, insert, insert_many, row, until

from scheduler import ConfigurationError
from scheduler.states import Status
from worker import Transition, Worker
from worker.callbacks import CAPACITY, Callbacks

CLAIM = ("claim", "PENDING", "RUNNING", None)
PROMOTE = ("promote", "DELAYED", "PENDING", None)
DONE = ("settle", "RUNNING", "COMPLETED", "completed")
ROOT = Path(__file__).parents[2]
EXAMPLE = re.search(r"^```python\n(.*?)^```", (ROOT / "docs" / "transitions.md").read_text(), re.MULTILINE | re.DOTALL)[
    1
]
SCRIPT = """
import asyncio, time
from scheduler import AsyncJob, Scheduler
from worker import Worker

class Light(AsyncJob):
    async def run(self, ctx):
        return "done"

async def main():
    async with Worker(processes=0, on_transition=lambda transition: time.sleep(3600)), Scheduler.connect() as scheduler:
        print(await (await scheduler.submit(Light())).result())

asyncio.run(main())
"""


class Told(list):
    """A callback that remembers."""

    __call__ = list.append

    def of(self, job_id):
        """Return what was told of a job, attempt by attempt: answers may cross."""
        told = sorted((t for t in self if t.job_id == job_id), key=lambda t: t.attempt)
        return [(t.verb, t.from_status, t.to_status, t.outcome) for t in told]

    async def until(self, job_id, *expected):
        """Wait until so much has been told of a job, and compare."""
        await until(lambda: len(self.of(job_id)) >= len(expected), f"job {job_id} should have been told: {self}")
        assert self.of(job_id) == list(expected)


class Block:
    """A callback that blocks until the test ends."""

    def __init__(self):
        self.began, self._ends = threading.Event(), threading.Event()

    def __call__(self, transition):
        self.began.set()
        self._ends.wait()

    def end(self):
        self._ends.set()


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def block():
    block = Block()
    yield block
    block.end()


@pytest.fixture
async def wire(dsn):
    wire = await Wire(dsn).open()
    yield wire
    await wire.close()


def settled(status, outcome):
    return ("settle", "RUNNING", status, outcome)


LIVES = {
    "success": ("Echo", {}, {}, [CLAIM, DONE]),
    "in a child": ("EchoInProcess", {}, {}, [CLAIM, DONE]),
    "retry": ("Steer", {"how": "fail"}, {}, [CLAIM, settled("DELAYED", "failed"), PROMOTE, CLAIM, DONE]),
    "snooze": ("Steer", {"how": "snooze"}, {}, [CLAIM, settled("DELAYED", "snoozed"), PROMOTE, CLAIM, DONE]),
    "failure": ("Steer", {"how": "fail"}, {"max_attempts": 1}, [CLAIM, settled("FAILED", "failed")]),
    "not retryable": ("Steer", {"how": "non_retryable"}, {}, [CLAIM, settled("FAILED", "failed")]),
    "bad payload": ("Typed", {"number": "one"}, {}, [CLAIM, settled("FAILED", "failed")]),
    "long in the database only": ("Act", {"action": "long_numbers"}, {}, [CLAIM, settled("FAILED", "failed")]),
}


@pytest.mark.parametrize("life", LIVES)
async def test_a_job_is_told_of_from_its_claim_to_its_end(db, work, told, life):
    kind, payload, columns, expected = LIVES[life]
    await work(on_transition=told)

    job_id = await insert(db, kind, payload, **columns)

    await told.until(job_id, *expected)
    assert (await row(db, job_id))["status"] == expected[-1][2]
    assert (told[-1].error_type == "ResultTooLarge") == (life == "long in the database only")


async def test_a_timeout_is_told_with_its_words(db, work, told, gate):
    await work(on_transition=told)

    job_id = await insert(db, "Wait", {"path": gate().path}, max_attempts=1, timeout=timedelta(seconds=0.2))

    await told.until(job_id, CLAIM, settled("TIMED_OUT", "timed_out"))
    assert (told[-1].error_type, told[-1].error) == ("TimedOut", "the attempt ran longer than its timeout of 0.2 s")
    assert told[-1].duration >= 0.2


async def test_a_running_job_that_is_cancelled_is_told(db, scheduler, work, told, gate):
    gate = gate()
    await work(on_transition=told)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await scheduler.cancel(job_id)

    await told.until(job_id, CLAIM, settled("CANCELLED", "cancelled"))


async def test_what_somebody_else_does_is_not_told(db, scheduler, work, told):
    await work(on_transition=told, kinds=[jobs.Typed])
    waiting = await insert(db, "Echo", run_at=datetime.now(UTC) + timedelta(hours=1))

    await scheduler.cancel(waiting)
    await told.until(await insert(db, "Typed", {"number": 1}), CLAIM, DONE)

    assert told.of(waiting) == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_job_given_back_at_the_end_of_a_drain_is_told(db, work, told, gate, cancelled):
    gate = gate()
    worker = await work(on_transition=told, lease=60)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    if cancelled:  # and nobody notified: the worker learns it from the verb
        await db.execute("UPDATE scheduler.jobs_active SET cancel_requested_at = now() WHERE id = $1", job_id)

    await worker.stop()

    assert told.of(job_id) == [CLAIM, ("release", "RUNNING", "CANCELLED" if cancelled else "PENDING", "released")]


async def lost_by_another(db, job_id):
    """Let a worker that is no more have claimed a job."""
    claim = "SELECT id FROM scheduler.claim($1, $2, '{default}', $3, 1, '10 milliseconds')"
    kind = await db.fetchval("SELECT kind FROM scheduler.jobs WHERE id = $1", job_id)
    assert await db.fetchval(claim, uuid4(), uuid4(), [kind]) == job_id


@pytest.mark.parametrize(("status", "columns"), [("PENDING", {}), ("FAILED", {"max_crashes": 0}), ("CANCELLED", {})])
async def test_the_reaping_of_another_workers_job_is_told(db, scheduler, work, told, status, columns):
    await (await work()).stop()  # has declared the kind
    job_id = await insert(db, "Echo", tenant="t", **columns)
    await lost_by_another(db, job_id)
    if status == "CANCELLED":
        await scheduler.cancel(job_id)

    worker = await work(on_transition=told, lease=1)

    reaped = ("reap", "RUNNING", status, "lost")
    await told.until(job_id, reaped, *([CLAIM, DONE] if status == "PENDING" else []))
    first = next(t for t in told if t.job_id == job_id)
    assert (first.kind, first.queue, first.tenant, first.attempt) == ("Echo", "default", "t", 1)
    assert (first.error_type, first.error) == ("WorkerLost", "the worker did not renew its lease")
    assert (first.duration > 0, first.worker_id) == (True, worker.id)


async def test_children_are_told_of_when_their_parent_ends(db, work, told):
    good, bad = await insert(db, "Echo"), await insert(db, "Steer", {"how": "non_retryable"}, tenant="t")
    later = datetime.now(UTC) + timedelta(hours=1)
    child = await insert(db, "Echo", depends_on=[good])
    late = await insert(db, "Echo", depends_on=[good], run_at=later)
    doomed = await insert(db, "Echo", depends_on=[good, bad], tenant="t")
    below = await insert(db, "Echo", depends_on=[doomed])

    await work(on_transition=told)

    await told.until(child, ("resolve", "BLOCKED", "PENDING", None), CLAIM, DONE)
    await told.until(late, ("resolve", "BLOCKED", "DELAYED", None))
    await told.until(doomed, ("resolve", "BLOCKED", "CANCELLED", None))
    await told.until(below, ("resolve", "BLOCKED", "CANCELLED", None))
    (transition,) = [t for t in told if t.job_id == doomed]
    assert (transition.kind, transition.queue, transition.tenant, transition.attempt) == ("Echo", "default", "t", 0)
    assert {t.job_id for t in told} == {good, bad, child, late, doomed, below}


async def test_a_transition_says_which_job_when_by_whom_and_how_it_ended_and_never_what_was_in_it(db, work, told):
    began = datetime.now(UTC)
    worker = await work(on_transition=told, queues=("default", "mail"))
    echo = await insert(db, "Echo", {"value": "in the payload"}, queue="mail", tenant="t")
    fails = await insert(db, "Steer", {"how": "fail"}, max_attempts=1)

    await told.until(echo, CLAIM, DONE)
    await told.until(fails, CLAIM, settled("FAILED", "failed"))

    for transition in told:
        assert transition.worker_id == worker.id
        assert began <= transition.at <= datetime.now(UTC)
        assert "in the payload" not in repr(transition)
    claim, end = [t for t in told if t.job_id == echo]
    assert (claim.kind, claim.queue, claim.tenant, claim.attempt) == ("Echo", "mail", "t", 1)
    assert (claim.duration, claim.error_type, claim.error) == (None, None, None)
    assert (end.kind, end.queue, end.tenant, end.attempt) == ("Echo", "mail", "t", 1)
    assert (end.duration >= 0, end.error_type, end.error) == (True, None, None)
    (failed,) = [t for t in told if t.outcome == "failed"]
    assert (failed.error_type, failed.error) == ("ValueError", "failure of attempt 1")
    with pytest.raises(AttributeError):
        failed.error = "another"


async def test_the_duration_is_that_of_the_attempt_and_not_of_the_wait_for_the_database(db, wire, work, told, gate):
    gate, clock = gate(), asyncio.get_running_loop().time
    await work(wire.dsn, on_transition=told, lease=60)
    before = clock()
    job_id = await insert(db, "Stubborn", {"path": gate.path})
    await gate.begun()

    wire.go_silent()
    gate.open()
    await gate.noted("returned")
    after = clock()
    await asyncio.sleep(0.5)  # the outcome waits
    wire.speak_again()

    await told.until(job_id, CLAIM, DONE)
    assert 0 < told[-1].duration <= after - before


async def test_an_attempt_whose_child_cannot_start_took_no_time(db, work, monkeypatch):
    monkeypatch.setattr(jobs.EchoInProcess, "__module__", "no_such_module")
    told = []
    await work(kinds=[jobs.EchoInProcess], on_transition=told.append)

    await ended(db, await insert(db, "EchoInProcess", max_attempts=1))

    end = await until(lambda: [one for one in told if one.outcome], "the end should be told")
    assert (end[0].outcome, end[0].error_type, end[0].duration) == ("failed", "ChildNotUsable", 0)


async def test_a_stale_outcome_is_not_told(db, work, told, gate, caplog):
    gate = gate()
    await work(on_transition=told, lease=60, async_slots=1)
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    await db.execute(
        "UPDATE scheduler.jobs_active SET worker_id = $1, fence = fence + 1, attempt = attempt + 1", uuid4()
    )

    gate.open()
    await until(lambda: f"the outcome of job {job_id} was refused" in caplog.text, "the outcome should be refused")
    await told.until(await insert(db, "Echo"), CLAIM, DONE)

    assert told.of(job_id) == [CLAIM]


@pytest.mark.parametrize("verb", ["claim", "settle"])
@pytest.mark.parametrize(("how", "end"), [("completes", DONE), ("fails", settled("FAILED", "failed"))])
async def test_what_a_lost_answer_said_is_told_once_when_the_verb_is_asked_again(db, wire, work, told, verb, how, end):
    job_id = await insert(db, "Steer", {"how": "fail", "until": 1 if how == "completes" else 2}, max_attempts=1)
    wire.lose_reply_to(verb)

    await work(wire.dsn, on_transition=told)

    await told.until(job_id, CLAIM, end)
    await told.until(await insert(db, "Echo"), CLAIM, DONE)
    assert (told.of(job_id), wire.lost) == ([CLAIM, end], 1)


async def test_an_answer_that_is_late_is_told_late_and_holds_up_no_other(db, wire, work, told):
    await work(wire.dsn, on_transition=told)
    wire.hold_reply_with('"promoted": 1')
    job_id = await insert(db, "Echo", run_at=datetime.now(UTC) + timedelta(seconds=0.5))
    await told.until(job_id, CLAIM, DONE)  # by the worker that does not know yet that it has promoted it

    wire.let_go()

    await told.until(job_id, PROMOTE, CLAIM, DONE)
    assert [t.verb for t in told] == ["claim", "settle", "promote"]
    assert [t.attempt for t in told] == [1, 1, 0]  # so that one can see what is old news


async def test_a_callback_that_raises_is_logged_once_in_a_while_and_everything_goes_on(db, work, told, caplog):
    def leave(transition):
        raise SystemExit(f"no more of {transition.job_id}")

    worker = await work(on_transition=[leave, told])
    ids = await insert_many(db, 50, "Echo")

    await ended(db, *ids)

    for job_id in ids:
        await told.until(job_id, CLAIM, DONE)
    (line,) = [record for record in caplog.records if "callback" in record.message]
    assert (line.levelname, line.exc_info[0]) == ("WARNING", SystemExit)
    assert worker.callbacks.dropped == 0


async def test_a_callback_that_blocks_keeps_neither_jobs_nor_the_end_of_the_worker(db, work, block, caplog):
    worker = await work(on_transition=block)
    ids = await insert_many(db, 200, "Echo")

    found = await ended(db, *ids)
    assert {job["status"] for job in found.values()} == {"COMPLETED"}
    assert block.began.is_set()
    async with asyncio.timeout(20):
        assert await worker.stop() == 0

    assert worker.callbacks.dropped == 400
    assert "400 transitions were dropped" in caplog.text


async def test_a_callback_that_blocks_does_not_keep_the_process(dsn, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "script.py"], env={**os.environ, "SCHEDULER_DSN": dsn}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "transitions were dropped" in done.stderr


async def test_nothing_is_told_after_the_worker_has_stopped(db, work, block, told):
    worker = await work(on_transition=[block, told])
    await ended(db, await insert(db, "Echo"))
    await worker.stop()

    block.end()
    worker.callbacks._thread.join(20)

    assert told == []


def transition(job_id):
    return Transition(
        job_id=job_id, kind="k", queue="q", tenant="", attempt=1, verb="claim", from_status=Status.PENDING,
        to_status=Status.RUNNING, worker_id=UUID(int=1), at=datetime.now(UTC),
    )  # fmt: skip


async def test_what_the_queue_cannot_hold_is_dropped_counted_and_logged_once_in_a_while(block, told, caplog):
    callbacks = Callbacks([block, told])
    callbacks.start()
    callbacks.tell([transition(0)])
    await until(block.began.is_set, "the first should be in hand")
    callbacks.tell([transition(job_id) for job_id in range(1, CAPACITY + 1)])
    for job_id in range(7):
        callbacks.tell([transition(job_id)])

    assert callbacks.dropped == 7
    (line,) = [record for record in caplog.records if "dropped" in record.message]
    assert line.message == "1 transitions were dropped: the callbacks are too slow"
    block.end()
    await callbacks.close()
    assert [t.job_id for t in told] == list(range(CAPACITY + 1))


async def test_without_callbacks_there_is_no_thread(db, work, told):
    names = {thread.name for thread in threading.enumerate()}
    assert "scheduler-transitions" not in names

    worker = await work()
    await ended(db, await insert(db, "Echo"))

    assert "scheduler-transitions" not in {thread.name for thread in threading.enumerate()}
    assert worker.callbacks.dropped == 0
    await work(on_transition=told)
    assert "scheduler-transitions" in {thread.name for thread in threading.enumerate()}


class AsyncCallable:
    async def __call__(self, transition):
        pass


@pytest.mark.parametrize(
    "wrong",
    [AsyncCallable.__call__, functools.partial(AsyncCallable.__call__, None), AsyncCallable(), 5, [print, 5], "x"],
)
def test_what_cannot_be_called_in_a_thread_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="on_transition takes plain functions of one argument, not"):
        Worker("postgresql://nobody@localhost/nowhere", on_transition=wrong)


async def test_what_the_documentation_shows_counts_the_ends_of_attempts(db, work, told):
    shown = {}
    exec(EXAMPLE, shown)
    await work(on_transition=[shown["count"], told])
    done, fails = await insert(db, "Echo"), await insert(db, "Steer", {"how": "fail"}, max_attempts=1)

    await told.until(done, CLAIM, DONE)
    await told.until(fails, CLAIM, settled("FAILED", "failed"))

    assert shown["ended"] == {("Echo", "completed"): 1, ("Steer", "failed"): 1}


async def test_the_command_takes_callbacks_by_name(db, launch, tmp_path):
    (tmp_path / "metrics.py").write_text(EXAMPLE)
    process = await launch(on_transition="metrics:count", environment={"PYTHONPATH": str(tmp_path)}).ready()

    job_id = await insert(db, "Steer", {"how": "fail"}, max_attempts=1)

    await process.says(f"job {job_id} (Steer): failure of attempt 1")


@pytest.mark.parametrize(
    ("name", "words"),
    [("no.such.module:f", "No module named 'no'"), ("jobs:nothing", "has no attribute 'nothing'"), ("a b", "a b")],
)
async def test_the_command_refuses_callbacks_that_are_not_there(launch, name, words):
    process = launch(on_transition=name)

    assert await process.exits() == 3
    (line,) = process.log.splitlines()
    assert line.startswith(f"scheduler-worker: --on-transition {name}: ")
    assert words in line
    assert line.endswith("name it as module:function")
