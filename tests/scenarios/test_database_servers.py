"""Servers that crash, are promoted or cannot be written to: what was acknowledged stays, and workers find their way."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from witness import ended, insert, row, rows, until

sys.path.append(str(Path(__file__).parents[1]))
from chaos.servers import Server

from scheduler import DatabaseUnavailable, Scheduler
from scheduler.cluster import wheel_binaries
from scheduler.schema import migrate

pytestmark = pytest.mark.slow

SETTINGS = {  # synchronous_commit is on; the machine does not crash here, so nothing need be flushed for it
    "fsync": "off",
    "full_page_writes": "off",
    "wal_keep_size": "256MB",
    "wal_retrieve_retry_interval": "100ms",
}


@pytest.fixture
def make_server():
    folder = Path(tempfile.mkdtemp(prefix="leasework-tests-"))
    folder.chmod(0o755)
    made = []

    def make_server():
        made.append(Server(wheel_binaries(), folder / f"server-{len(made)}", SETTINGS))
        return made[-1]

    yield make_server
    for server in made:
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def server(make_server):
    server = make_server()
    await asyncio.to_thread(server.start)
    await migrate(server.url)
    return server


@contextlib.asynccontextmanager
async def connected(server):
    connection = await asyncpg.connect(server.url)
    yield connection
    await connection.close()


TELLER = """
def note(transition):
    with open({path!r}, "a") as file:
        print(transition.outcome or transition.verb, transition.job_id, transition.attempt, file=file)
"""


async def test_f38_b22_what_was_acknowledged_survives_crashes_of_the_server_under_load(server, launch, tmp_path, gate):
    told = tmp_path / "told"
    (tmp_path / "teller.py").write_text(TELLER.format(path=str(told)))
    environment = {"PYTHONPATH": str(tmp_path), "SCHEDULER_ON_TRANSITION": "teller:note"}
    workers = [await launch(address=server.url, lease=30, environment=environment).ready() for _ in range(2)]
    submitted, enough = [], asyncio.Event()

    async def keep_submitting():
        kinds = "Short", "EchoInThread", "Note"
        while not enough.is_set():
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                async with connected(server) as db:
                    while not enough.is_set():
                        kind = kinds[len(submitted) % 3]
                        payload = {"path": gate("ledger").path} if kind == "Note" else {}
                        submitted.append(await insert(db, kind, payload))
            await asyncio.sleep(0.05)

    submitting = [asyncio.create_task(keep_submitting()) for _ in range(4)]
    for n in range(5):
        before = len(submitted)
        await until(lambda before=before: len(submitted) > before + 150, "jobs should be submitted")
        await until(lambda n=n: n * 50 < told.read_text().count("completed"), "jobs should complete")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    enough.set()
    await asyncio.gather(*submitting)

    async with connected(server) as db:
        everything = [job_id for (job_id,) in await db.fetch("SELECT id FROM scheduler.jobs")]
        found = await ended(db, *everything, seconds=120)
    assert len(set(submitted)) == len(submitted)
    assert set(submitted) <= set(found)
    assert {(job["status"], job["failures"], job["crashes"]) for job in found.values()} == {("COMPLETED", 0, 0)}
    acknowledged = defaultdict(set)
    for line in told.read_text().splitlines():
        what, job_id, attempt = line.split()
        acknowledged[what].add((int(job_id), int(attempt)))
    newest = {job_id: job["attempt"] for job_id, job in found.items()}
    assert len(acknowledged["completed"]) > 200
    assert {(job_id, newest[job_id]) for job_id, _ in acknowledged["completed"]} == acknowledged["completed"]
    assert all(attempt <= newest[job_id] for job_id, attempt in acknowledged["claim"])
    assert len(gate("ledger").notes("began")) >= [job["kind"] for job in found.values()].count("Note") > 0
    for worker in workers:
        assert worker.popen.poll() is None
        assert "Traceback" not in worker.log


async def test_b22_an_idle_worker_finds_jobs_after_a_restart_of_the_server(server, launch):
    worker = await launch(address=server.url).ready()
    await asyncio.to_thread(server.stop)
    await worker.says("PostgreSQL cannot be reached")
    await asyncio.to_thread(server.start)

    async with connected(server) as db:
        job = await ended(db, await insert(db, "Echo"))

    assert (job["status"], job["attempt"]) == ("COMPLETED", 1)
    assert (job["started_at"] - job["submitted_at"]).total_seconds() < 10
    assert "Traceback" not in worker.log


async def test_a_worker_follows_a_failover_by_itself_where_the_address_names_both_servers(
    server, make_server, launch, gate
):
    gate, standby = gate(), make_server()
    await asyncio.to_thread(standby.copy, server, server_address(server))
    await asyncio.to_thread(standby.start)
    both = urlsplit(server.url)
    hosts = f"{urlsplit(standby.url).netloc.rpartition('@')[2]},{both.netloc.rpartition('@')[2]}"
    address = both._replace(
        netloc=f"{both.netloc.rpartition('@')[0]}@{hosts}", query="target_session_attrs=read-write"
    ).geturl()
    worker = await launch(address=address, lease=60).ready()
    async with connected(server) as db:
        held = await insert(db, "Wait", {"path": gate.path})
        await gate.begun()
        async with connected(standby) as copy:
            await until(lambda: is_running(copy, held), "the claim should be replicated")

    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(standby.promote)
    gate.open()

    async with connected(standby) as db:
        found = await ended(db, held, await insert(db, "Echo"))
    assert {(job["status"], job["attempt"], job["crashes"]) for job in found.values()} == {("COMPLETED", 1, 0)}
    assert worker.popen.poll() is None
    assert "Traceback" not in worker.log


def server_address(server):
    parts = urlsplit(server.url)
    return f"host=127.0.0.1 port={parts.port} user=postgres password={parts.password} sslmode=disable"


async def is_running(db, job_id):
    found = await row(db, job_id)
    return found and found["status"] == "RUNNING"


async def test_a_standby_is_a_database_that_is_away_until_it_is_promoted(server, make_server, launch):
    standby = make_server()
    await asyncio.to_thread(standby.copy, server, server_address(server))
    await asyncio.to_thread(standby.start)

    refused = launch(address=standby.url)
    assert await refused.exits() == 4
    assert "cannot execute" in refused.log
    async with Scheduler.connect(standby.url) as scheduler:
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await scheduler.store.submit("Echo", "{}", "{}")
    await asyncio.to_thread(standby.promote)

    await launch(address=standby.url).ready()
    async with connected(standby) as db:
        ids = [await insert(db, "Echo") for _ in range(3)]
        await ended(db, *ids)
        assert {job["attempt"] for job in (await rows(db, ids)).values()} == {1}
