"""The client without an event loop: from many threads, across a fork, interrupted, closed."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from notes import Note

from scheduler import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidJob,
    JobCancelled,
    JobNotFound,
    ResultTimeout,
    SchedulerError,
    SchemaMismatch,
    Submission,
    SyncScheduler,
)
from worker import Worker

SOON = timedelta(seconds=20)


@pytest.fixture
def query(databases, dsn):
    """Ask this test's database for one value."""

    async def asked(text, *args):
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(text, *args)
        finally:
            await connection.close()

    return lambda text, *args: databases.run(asked(text, *args))


@contextmanager
def working(dsn):
    """Run a worker in a thread with an event loop of its own."""
    stop, ready = threading.Event(), threading.Event()

    async def run():
        async with Worker(dsn, kinds=[Note], processes=0):
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(20)
    yield
    stop.set()
    thread.join()


def test_a_program_without_an_event_loop_submits_waits_looks_and_cancels(sync_scheduler, dsn):
    with working(dsn):
        handle = sync_scheduler.submit(Note("done"))
        many = sync_scheduler.submit_many([Note(1), Submission(Note(2), depends_on=[handle])], tenant="t")

        assert handle.result(SOON) == "done"
        assert [one.result(SOON) for one in many] == [1, 2]
    later = sync_scheduler.submit(Note(), delay=timedelta(hours=1))

    assert sync_scheduler.results([handle, *many]) == {handle.id: "done", many[0].id: 1, many[1].id: 2}
    assert [job["id"] for job in sync_scheduler.jobs(tenant="t")] == [many[1].id, many[0].id]
    assert sync_scheduler.cancel(later).cancelled == [later.id]
    assert sync_scheduler.job(later.id)["status"] == "CANCELLED"
    with pytest.raises(JobCancelled):
        sync_scheduler.handle(later.id).result(SOON)


def test_its_errors_are_those_of_the_asynchronous_client(sync_scheduler):
    with pytest.raises(InvalidJob, match="priority: must lie between"):
        sync_scheduler.submit(Note(), priority=101)
    with pytest.raises(InvalidJob, match=r"jobs\[1\] delay: must not be negative"):
        sync_scheduler.submit_many([Note(), Submission(Note(), delay=timedelta(-1))])
    with pytest.raises(JobNotFound):
        sync_scheduler.job(424242)
    with pytest.raises(ResultTimeout):
        sync_scheduler.submit(Note()).result(timedelta(milliseconds=30))
    with pytest.raises(TypeError, match="'prioritty' is no option of submit: options are priority"):
        sync_scheduler.submit(Note(), prioritty=1)


def test_nothing_is_opened_before_the_first_call_and_a_failed_opening_is_tried_again(databases, empty_dsn, monkeypatch):
    from scheduler.schema import migrate

    with SyncScheduler.connect(empty_dsn) as scheduler:
        assert "scheduler-client" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(SchemaMismatch, match="scheduler migrate"):
            scheduler.submit(Note())
        databases.run(migrate(empty_dsn))
        assert scheduler.submit(Note()).id
    monkeypatch.delenv("SCHEDULER_DSN", raising=False)
    with pytest.raises(ConfigurationError, match="SCHEDULER_DSN"):
        SyncScheduler.connect()


def test_many_threads_share_one_loop(sync_scheduler, query):
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda n: sync_scheduler.submit(Note(n)).id, range(80)))

    assert len(set(ids)) == 80
    assert query("SELECT count(*) FROM scheduler.jobs") == 80
    assert [thread.name for thread in threading.enumerate()].count("scheduler-client") == 1


async def test_in_the_thread_of_an_event_loop_it_says_what_to_use_instead(sync_scheduler):
    with pytest.raises(SchedulerError, match=r"would block the event loop.*async with Scheduler.connect.*to_thread"):
        sync_scheduler.submit(Note())

    assert (await asyncio.to_thread(sync_scheduler.submit, Note())).id


PROGRAM = """
import sys
from notes import Note
from scheduler import SyncScheduler

with SyncScheduler.connect(sys.argv[1]) as scheduler:
    handle = scheduler.submit(Note())
    try:
        print("waiting", flush=True)
        handle.result()
    except KeyboardInterrupt:
        print(scheduler.job(handle.id)["status"])
"""


def test_ctrl_c_ends_the_waiting_of_a_program_and_its_client_goes_on(dsn):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, dsn], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        said, _ = program.communicate(timeout=30)
    finally:
        program.kill()
        program.wait()

    assert (said, program.returncode) == ("PENDING\n", 0)


def test_closing_ends_the_thread_the_connections_and_all_waiting(dsn, query):
    scheduler = SyncScheduler.connect(dsn)
    handle = scheduler.submit(Note())
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(handle.result)
        while not waiting.running():
            time.sleep(0.001)
        scheduler.close()
        with pytest.raises(DatabaseUnavailable, match="closed"):
            waiting.result(20)

    assert "scheduler-client" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(DatabaseUnavailable, match="closed: connect another"):
        scheduler.submit(Note())
    scheduler.close()


def in_child(act):
    """Fork; return what the child wrote of what it did, or of what went wrong."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(act())
        except BaseException:
            said = traceback.format_exc()
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode() if select.select([pipe], [], [], 30)[0] else "it hangs"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_opens_its_own_connection_and_leaves_that_of_its_parent_alone(sync_scheduler, query):
    first = sync_scheduler.submit(Note("parent"))

    def act():
        import gc

        made = sync_scheduler.submit(Note("child")).id, sync_scheduler.job(first.id)["id"]
        sync_scheduler.close()
        gc.collect()
        return made

    said = [in_child(act) for _ in range(2)]
    after = [sync_scheduler.submit(Note("parent")).id for _ in range(3)]

    assert [eval(words)[1] for words in said] == [first.id] * 2
    assert len({first.id, *after, *(eval(words)[0] for words in said)}) == 6
    assert query("SELECT count(*) FROM scheduler.jobs") == 6


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_while_other_threads_submit_leaves_no_lock_behind(dsn):
    stop = threading.Event()

    def submit():
        while not stop.is_set():
            scheduler.submit(Note())

    # One connection, and it is open: a child cannot connect that was forked while a thread did, see SyncScheduler.
    with SyncScheduler.connect(dsn, connections=1) as scheduler, ThreadPoolExecutor(4) as threads:
        scheduler.submit(Note())
        submitting = [threads.submit(submit) for _ in range(4)]
        said = [in_child(lambda: scheduler.submit(Note()).id) for _ in range(5)]
        stop.set()
        for one in submitting:
            one.result()

    assert all(words.isdigit() for words in said), said


def test_a_generator_of_jobs_runs_in_the_thread_of_its_caller(sync_scheduler):
    threads = set()

    def notes():
        for _ in range(3):
            threads.add(threading.get_ident())
            yield Note()

    assert len(sync_scheduler.submit_many(notes())) == 3
    assert threads == {threading.get_ident()}
