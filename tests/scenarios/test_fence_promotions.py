"""Real servers: asynchronous standbys are promoted, backups restored, clusters restarted. Old claims are refused."""

import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import jobs
import pytest
from witness import ended, insert, row, until

from scheduler import DatabaseUnavailable, LeaseLost, Scheduler
from scheduler.borrowed import Borrowed
from scheduler.cluster import wheel_binaries
from scheduler.schema import migrate
from scheduler.store import Store
from worker.attempt import Settlement

sys.path.append(str(Path(__file__).parents[1]))

from chaos.proxy import Proxy
from chaos.servers import SETTINGS, Server

pytestmark = pytest.mark.slow
LEASE = timedelta(seconds=30)


class Servers:
    """A primary, and standbys of it, each behind a wire of its own that can be silenced."""

    def __init__(self, folder):
        self._folder = folder
        self._running = []
        self._wires = []
        self._connections = []

    async def primary(self):
        server = self._new("primary")
        await asyncio.to_thread(server.start)
        await migrate(server.url)
        return server

    async def copy(self, other, *, follow=True):
        """Copy a running server; a copy that follows is a standby, one that does not is a restored backup."""
        wire = await self.wire(lambda: other)
        server = self._new(f"copy-{len(self._running)}")
        password = urlsplit(other.url).password
        address = f"host=127.0.0.1 port={wire.port} user=postgres password={password} sslmode=disable"
        await asyncio.to_thread(server.copy, other, address)
        if not follow:
            (server.data / "standby.signal").unlink()
        await asyncio.to_thread(server.start)
        server.wire = wire
        return server

    async def wire(self, target):
        def address():
            parts = urlsplit(target().url)
            return parts.hostname, parts.port

        wire = Proxy(address)
        await wire.open()
        self._wires.append(wire)
        return wire

    async def connect(self, server):
        self._connections.append(await asyncpg.connect(server.url))
        return self._connections[-1]

    def _new(self, name):
        self._running.append(Server(wheel_binaries(), self._folder / name, SETTINGS))
        return self._running[-1]

    async def close(self):
        for connection in self._connections:
            connection.terminate()
        for wire in self._wires:
            await wire.close()
        for server in self._running:
            await asyncio.to_thread(server.stop)


@pytest.fixture
async def servers():
    with tempfile.TemporaryDirectory(prefix="leasework-tests-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)  # noqa: PTH101 - PostgreSQL runs as another account
        servers = Servers(Path(name))
        yield servers
        await servers.close()


async def caught_up(db, *standbys):
    """Wait until standbys have replayed what is written now."""
    here = await db.fetchval("SELECT pg_current_wal_lsn()::text")
    replayed = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn"
    for standby in standbys:
        connection = await asyncpg.connect(standby.url)
        await until(lambda c=connection: c.fetchval(replayed, here), "the standby should follow")
        await connection.close()


async def claim(db):
    worker = uuid4()
    claimed = await Store(db).claim(worker, uuid4(), ["default"], ["k"], 1, LEASE)
    assert claimed[0]["id"] is not None
    return worker, claimed[0]["id"], claimed[0]["fence"]


async def refuses(db, claimed):
    """Tell whether every verb refuses an old claim."""
    worker, job_id, fence = claimed
    store = Store(db)
    before = dict(await row(db, job_id))
    lost = [
        (await store.renew(worker, [job_id], [fence], LEASE)).lost,
        (await store.release(worker, [job_id], [fence])).lost,
        *[(await store.settle(worker, [Settlement(job_id, fence, how)])).lost for how in ("completed", "failed")],
    ]
    for verb in (Store(Borrowed(db), own=False).hold, store_complete(db)):
        with pytest.raises(LeaseLost):
            await verb(job_id, fence)
    return lost == [[job_id]] * 4 and dict(await row(db, job_id)) == before


def store_complete(db):
    return lambda job_id, fence: Store(db).complete(job_id, fence, "null")


async def test_f39_old_claims_are_refused_after_a_promotion_a_second_one_a_restore_and_a_new_epoch(servers):
    primary = await servers.primary()
    db = await servers.connect(primary)
    await db.execute("""SELECT scheduler.declare('[{"kind": "k"}]')""")
    await insert(db, "k")
    first, second = await servers.copy(primary), await servers.copy(primary)
    await caught_up(db, first, second)
    for standby in (first, second):
        standby.wire.silence()
    zombies = [await claim(db)]

    # Both standbys saw nothing of that claim; the second one nothing of the first one's time as a primary either.
    await asyncio.to_thread(primary.kill)
    for standby in (first, second):
        standby.wire.cut()
        await asyncio.to_thread(standby.promote)
        db = await servers.connect(standby)
        zombies.append(await claim(db))
        assert [await refuses(db, zombie) for zombie in zombies[:-1]] == [True] * (len(zombies) - 1)
        backup = await servers.copy(standby, follow=False)  # without the settlement and the claim that come now
        worker, job_id, fence = zombies[-1]
        await Store(db).release(worker, [job_id], [fence])
        zombies.append(await claim(db))
        await asyncio.to_thread(standby.kill)
        await asyncio.sleep(1)  # a server takes over in another second

    # A backup put back as it was cannot be told from the server it was taken of: that is what new_epoch is for.
    db = await servers.connect(backup)
    assert await db.fetchval("SELECT scheduler.new_epoch()") > zombies[-1][2] >> 32
    worker, job_id, fence = zombies[-2]
    await Store(db).release(worker, [job_id], [fence])
    zombies.append(await claim(db))
    assert [await refuses(db, zombie) for zombie in zombies[:-1]] == [True] * (len(zombies) - 1)
    fences = [fence for _, _, fence in zombies]
    assert fences == sorted(set(fences))


async def test_f40_a_worker_of_the_old_primary_is_refused_on_the_new_one_and_stops_what_it_ran(
    servers, work, gate, caplog
):
    """Both are primaries for a while, and both hand out the same job."""
    gate = gate()
    old = await servers.primary()
    db = await servers.connect(old)
    new = await servers.copy(old)
    current = old
    wire = await servers.wire(lambda: current)
    address = urlsplit(old.url)
    dsn = address._replace(netloc=f"{address.netloc.rpartition(':')[0]}:{wire.port}", query="sslmode=disable").geturl()
    await work(dsn, kinds=[jobs.Wait], renew_every=0.5, lease=20)
    paused = await insert(db, "Wait", {"path": gate.path}, queue="later")
    await caught_up(db, new)
    new.wire.silence()
    await db.execute("UPDATE scheduler.jobs_active SET queue = 'default' WHERE id = $1", paused)
    await gate.begun()
    old_fence = (await row(db, paused))["fence"]

    new.wire.cut()
    await asyncio.to_thread(new.promote)
    db = await servers.connect(new)
    await db.execute("UPDATE scheduler.jobs_active SET queue = 'elsewhere' WHERE id = $1", paused)
    other = uuid4()
    (again, *_) = await Store(db).claim(other, uuid4(), ["elsewhere"], ["Wait"], 1, LEASE)
    current = new
    wire.cut()

    await gate.noted("stopped")
    assert (again["attempt"], again["fence"] > old_fence) == (1, True)
    now = await row(db, paused)
    assert (now["status"], now["worker_id"], now["fence"]) == ("RUNNING", other, again["fence"])
    assert (await Store(db).settle(other, [Settlement(paused, again["fence"], "completed")])).lost == []
    assert (await ended(db, paused))["status"] == "COMPLETED"
    later = await insert(db, "Wait", {"path": gate.path})  # and the worker serves the new primary
    gate.open()
    assert (await ended(db, later))["fence"] >> 32 == again["fence"] >> 32
    assert "its lease is lost" in caplog.text


async def test_b23_a_worker_that_finds_a_standby_tries_again_until_it_is_promoted(servers, work, gate, caplog):
    old = await servers.primary()
    db = await servers.connect(old)
    new = await servers.copy(old)
    current = old
    wire = await servers.wire(lambda: current)
    address = urlsplit(old.url)
    dsn = address._replace(netloc=f"{address.netloc.rpartition(':')[0]}:{wire.port}", query="sslmode=disable").geturl()
    await work(dsn, kinds=[jobs.Wait, jobs.Echo], renew_every=0.5, lease=120)
    gate = gate()
    running = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    waiting = await insert(db, "Echo", {"value": 1}, run_at=await db.fetchval("SELECT now() + interval '1 day'"))
    await caught_up(db, new)

    current = new
    wire.cut()
    for words in ("renew: PostgreSQL", "promote: PostgreSQL"):
        await until(
            lambda words=words: f"{words} cannot be reached: cannot exec" in caplog.text, "it should be refused"
        )
    gate.open()  # its outcome has to wait, too
    with pytest.raises(DatabaseUnavailable, match="cannot execute"):
        async with Scheduler.connect(new.url) as scheduler:
            await scheduler.cancel(waiting)
    await asyncio.to_thread(old.kill)
    await asyncio.to_thread(new.promote)
    db = await servers.connect(new)
    await db.execute("UPDATE scheduler.jobs_active SET run_at = now() WHERE id = $1", waiting)

    found = await ended(db, running, waiting)
    assert {(job["status"], job["attempt"]) for job in found.values()} == {("COMPLETED", 1)}
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []  # each was a known trouble


async def test_b35_a_restart_of_the_database_in_the_middle_of_a_job_costs_it_nothing(servers, work, gate):
    server = await servers.primary()
    db = await servers.connect(server)
    await work(server.url, kinds=[jobs.Wait], renew_every=0.5, lease=60)
    gate = gate()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)

    db = await servers.connect(server)
    renewed = "SELECT lease_expires_at > pg_postmaster_start_time() + interval '60 s' FROM scheduler.jobs_active"
    await until(lambda: db.fetchval(renewed), "the lease should be renewed")
    gate.open()
    job = await ended(db, job_id)
    assert (job["status"], job["attempt"], job["crashes"]) == ("COMPLETED", 1, 0)


async def test_f41_a_submit_that_no_standby_confirms_is_unknown_and_made_once_by_its_key(servers):
    server = await servers.primary()
    db = await servers.connect(server)
    await db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    await db.execute("SELECT pg_reload_conf()")
    await until(lambda: shown(server), "the setting should hold")
    async with Scheduler.connect(server.url) as scheduler:
        unknown = asyncio.create_task(scheduler.submit(jobs.Echo(value=1), idempotency_key="order-5"))
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        await until(lambda: db.fetchval(query), "the commit should wait for a standby")
        unknown.cancel()
        with suppress(asyncio.CancelledError):
            await unknown
        await db.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await db.execute("SELECT pg_reload_conf()")

        handle = await scheduler.submit(jobs.Echo(value=1), idempotency_key="order-5")

    assert await db.fetch("SELECT id FROM scheduler.jobs") == [(handle.id,)]


async def shown(server):
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval("SHOW synchronous_standby_names") == "*"
    finally:
        await connection.close()
