"""The harm is real: the proxy does what its methods say, and a fault counts only where it hit something."""

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest
from sql import steps

from .history import Event, Fault, History
from .proxy import Proxy
from .report import hits


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
