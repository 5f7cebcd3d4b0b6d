"""What docs/which-base-class.md says of the three base classes is so: its examples run, and its claims hold."""

import asyncio
import hashlib
import json
import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
from newcomer import User

from scheduler import JobTimedOut, Scheduler

PAGE = (Path(__file__).parents[2] / "docs" / "which-base-class.md").read_text()
SOON = timedelta(seconds=60)
CLAIMS = """
    import os, subprocess, threading, time
    from datetime import timedelta
    from pathlib import Path
    from scheduler import AsyncJob, BlockingJob, CpuBoundJob, Retry

    ONCE = {"timeout": timedelta(seconds=1), "retry": Retry(max_attempts=1)}

    class Where(AsyncJob):
        async def run(self, ctx):
            return [os.getpid(), threading.current_thread() is threading.main_thread()]

    class WhereInThread(BlockingJob):
        def run(self, ctx):
            return [os.getpid(), threading.current_thread() is threading.main_thread()]

    class WhereInChild(CpuBoundJob):
        def run(self, ctx):
            return [os.getpid(), threading.current_thread() is threading.main_thread()]

    class Blocks(AsyncJob):
        async def run(self, ctx):
            time.sleep(3)

    class Deaf(BlockingJob, **ONCE):
        path: str
        def run(self, ctx):
            while not Path(self.path + ".go").exists():
                time.sleep(0.02)
            Path(self.path + ".went on").touch()

    class DeafInChild(CpuBoundJob, **ONCE):
        path: str
        def run(self, ctx):
            Path(self.path + ".pid").write_text(str(os.getpid()))
            while True:
                pass

    class Listens(BlockingJob, **ONCE):
        path: str
        def run(self, ctx):
            ctx.cancelled.wait()
            Path(self.path + ".stopped").touch()
"""


@pytest.fixture
async def worker(tmp_path, dsn):
    """A worker with the classes of the page, and with those of the claims."""
    user = User(tmp_path, dsn)
    module, _ = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    user.writes("of_the_page.py", module)
    user.writes("claims.py", CLAIMS)
    with user.runs("scheduler-worker", "--app", "of_the_page,claims", "--grace", "0") as process:
        yield process


@pytest.fixture
async def submit(dsn):
    """Submit a job by its kind and fields; return its handle."""
    async with Scheduler.connect(dsn) as scheduler:

        async def submit(kind, **fields):
            return scheduler.handle(await scheduler.store.submit(kind, json.dumps(fields), "{}"))

        yield submit


async def exists(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} should have been made"
        await asyncio.sleep(0.02)
    return path


def is_alive(pid):
    """Tell whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_the_examples_of_the_page_run(worker, submit, tmp_path):
    (tmp_path / "data").write_bytes(b"some data")

    jobs = [
        await submit("Fetch", url="https://example.org"),
        await submit("Checksum", path=str(tmp_path / "data")),
        await submit("CountPrimes", below=1000),
        await submit("Poll", seconds=0.1),
    ]

    results = [await job.result(SOON) for job in jobs]
    assert results == [200, hashlib.sha256(b"some data").hexdigest(), 168, "waited"]


async def test_the_class_says_where_run_is_called(worker, submit):
    where = await (await submit("Where")).result(SOON)
    in_thread = await (await submit("WhereInThread")).result(SOON)
    in_child, in_main_thread = await (await submit("WhereInChild")).result(SOON)

    assert where == [worker.pid, True]
    assert in_thread == [worker.pid, False]
    assert (in_child != worker.pid, in_main_thread) == (True, True)


async def test_a_blocking_call_in_an_async_job_is_named_in_the_log_as_the_page_says(worker, submit):
    await (await submit("Blocks")).result(SOON)

    said = re.sub(r"[\d.]+ s;", "N s;", worker.log.read_text())
    on_the_page = " ".join(re.search(r"the event loop has been.*?stands at:", PAGE, re.DOTALL)[0].split())
    assert re.sub(r"[\d.]+ s;", "N s;", on_the_page) in " ".join(said.split())
    assert "time.sleep(3)" in said


async def test_at_its_timeout_a_thread_is_told_and_goes_on_and_a_process_is_killed(worker, submit, tmp_path):
    jobs = [await submit(kind, path=str(tmp_path / kind)) for kind in ("Listens", "Deaf", "DeafInChild")]

    for job in jobs:
        with pytest.raises(JobTimedOut):
            await job.result(SOON)

    await exists(tmp_path / "Listens.stopped")
    assert "its thread is left to itself" in worker.log.read_text()
    assert not (tmp_path / "Deaf.went on").exists()
    (tmp_path / "Deaf.go").touch()
    await exists(tmp_path / "Deaf.went on")
    assert not is_alive(int((tmp_path / "DeafInChild.pid").read_text()))


async def test_a_child_ignores_the_signals_of_the_group_and_dies_with_its_worker(worker, submit, tmp_path):
    child, _ = await (await submit("WhereInChild")).result(SOON)
    os.kill(child, signal.SIGINT)
    os.kill(child, signal.SIGTERM)
    again, _ = await (await submit("WhereInChild")).result(SOON)
    worker.kill()
    deadline = time.monotonic() + 60
    while is_alive(child):
        assert time.monotonic() < deadline, "the child should have died"
        await asyncio.sleep(0.02)

    assert again == child
