"""The harm is real: the proxy does what its methods say, and a fault counts only where it hit something."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from sql import steps

from scheduler.cluster import wheel_binaries

from .history import Event, Fault, History
from .proxy import Proxy
from .report import hits
from .servers import Pair


@pytest.fixture
async def proxy(dsn):
    address = urlsplit(dsn)
    proxy = Proxy(lambda: (address.hostname, address.port))
    await proxy.open()
    yield proxy
    await proxy.close()


@pytest.fixture
async def through(dsn, proxy, connect):
    """A connection through the proxy, known to the server as `through`."""
    address = urlsplit(dsn)
    login = address.netloc.rpartition("@")[0]
    by_way = address._replace(netloc=f"{login}@127.0.0.1:{proxy.port}", query="sslmode=disable").geturl()
    return await connect(by_way, server_settings={"application_name": "through"})


async def test_a_call_whose_reply_is_lost_has_done_its_work(db, proxy, through):
    proxy.lose_reply_to("submit")

    with pytest.raises((asyncpg.PostgresError, OSError)):
        await through.fetchval("SELECT scheduler.submit($1)", "k")

    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 1
    assert proxy.lost == 1


async def test_what_is_sent_into_silence_arrives_after_it(db, proxy, through):
    proxy.silence()
    late = asyncio.ensure_future(through.fetchval("SELECT scheduler.submit('k')"))
    for _ in range(20):  # turns of the loop, and of the server
        await db.fetchval("SELECT pg_sleep(0.005)")
    assert await db.fetchval("SELECT count(*) FROM scheduler.jobs") == 0

    proxy.speak()

    assert await late == await db.fetchval("SELECT id FROM scheduler.jobs")


async def test_a_cut_ends_the_session_at_both_ends(db, proxy, through):
    proxy.cut()

    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await through.fetchval("SELECT 1")

    async def is_gone():
        sessions = "SELECT datname FROM pg_stat_activity WHERE application_name = 'through'"
        return not await db.fetchval(f"SELECT EXISTS ({sessions} AND datname = current_database())")

    await steps.until(is_gone, "the server should have noticed")


@pytest.fixture
def folder():
    folder = Path(tempfile.mkdtemp(prefix="leasework-tests-"))
    folder.chmod(0o755)  # PostgreSQL runs as another account where we are root
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def pair(folder):
    pair = Pair(wheel_binaries(), folder)
    try:
        await pair.start()
        yield pair
    finally:
        await pair.stop()


@pytest.mark.slow
async def test_while_there_are_two_primaries_both_take_writes_and_only_those_to_the_new_one_stay(pair, connect):
    old, divided = await connect(pair.primary.url), asyncio.Event()
    await old.execute("CREATE TABLE writes (what text)")

    async def is_copied():
        return await old.fetchval("SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication")

    await steps.until(is_copied, "the standby should have the table")
    splitting = asyncio.create_task(pair.split(0, 5, divided.set))
    await divided.wait()
    new = await connect(pair.primary.url)
    await old.execute("INSERT INTO writes VALUES ('to the old one')")
    await new.execute("INSERT INTO writes VALUES ('to the new one')")
    await splitting

    assert [row["what"] for row in await new.fetch("SELECT what FROM writes")] == ["to the new one"]
    assert (len(pair.promotions), old.is_closed()) == (1, True)


def event(seq, at, was, now, actor="worker-1.1"):
    return Event(
        seq=seq, at=at, xid=seq, actor=actor, job=1, was=was, now=now, attempt=1, fence=1, worker=None, lease=None
    )


def test_a_fault_counts_when_its_worker_was_running_a_job_or_a_statement_was_in_flight():
    history = History(
        events=[event(1, 1.0, None, "PENDING"), event(2, 2.0, "PENDING", "RUNNING"), event(3, 3.0, "RUNNING", None)]
    )
    counted = [
        Fault("kill", 2.5, "worker-1.1"),
        Fault("restart", 2.5),
        Fault("lost reply", 9.0, "worker-1.1", hit=True),
    ]
    missed = [
        Fault("kill", 1.5, "worker-1.1"),
        Fault("kill", 2.5, "worker-2.1"),
        Fault("restart", 3.5),
        Fault("terminate", 2.5, hit=False),
    ]

    history.faults = [*counted, *missed]

    assert hits(history) == counted
