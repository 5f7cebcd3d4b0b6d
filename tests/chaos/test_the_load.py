"""What is submitted is what the checker takes it for: batches in spite of lost replies, schedules of a known rhythm."""

from datetime import UTC, datetime, timedelta
from random import Random
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from sql import steps

from scheduler.schedules import Timing

from . import recorder
from .history import Promotion, Submission
from .jobs import Blocks, Breaks, Computes, Fragile, Grows, Overruns, Transfers, Waits
from .later import SECOND, rhythm
from .load import OPEN, Load, Submitter
from .proxy import Proxy
from .recurring import PAUSE, SCHEDULES, Recurring

KINDS = (Blocks, Breaks, Computes, Fragile, Grows, Overruns, Transfers, Waits)


@pytest.fixture
async def submitter(dsn):
    """A submitter, and the wire to its server."""
    address = urlsplit(dsn)
    proxy = Proxy(lambda: (address.hostname, address.port))
    await proxy.open()
    login = address.netloc.rpartition("@")[0]
    by_way = address._replace(netloc=f"{login}@127.0.0.1:{proxy.port}", query="sslmode=disable").geturl()
    submitter = Submitter(Load(by_way, 1, 1.0), Random(1))
    yield submitter, proxy
    submitter._forget()
    await proxy.close()


@pytest.mark.parametrize("verb", ["submit_graph", "close_batch"])
async def test_a_batch_of_which_a_reply_is_lost_is_one_batch_and_is_closed(db, submitter, verb):
    submitter, proxy = submitter
    await steps.declare(db, *(kind.options.kind for kind in KINDS))
    await recorder.install(db)
    proxy.lose_reply_to(verb)

    await submitter._submit_batch()

    history, load = await recorder.read(db), submitter._load
    (batch,) = [told.job for told in load.closed]
    assert proxy.lost == 1
    assert {edge for edge in history.members if edge[0] == edge[1]} == {(batch, batch)}
    assert [closed for closed, _ in history.closed] == [batch]
    told = [told.job for told in load.submissions if told.job is not None]
    assert sorted(told) == sorted(row.id for row in history.rows) == sorted(member for member, _ in history.members)


async def test_a_batch_that_must_be_closed_is_left_to_the_checker_and_the_rest_is_closed(db):
    said, lost, unheard = [await steps.submit(db, batch=True) for _ in range(3)]
    load, told = Load("", 1, 1.0), Submission(token=0, answer="acknowledged", ends=(), timeline=1)
    load.closed = [replace(told, job=said, written=1), replace(told, job=lost, written=3)]

    await load.close_the_rest(db, [Promotion(at=0.0, kept=2)])

    assert [row["child"] for row in await db.fetch(OPEN)] == [said]
    assert await steps.statuses(db, [lost, unheard]) == {lost: "PENDING", unheard: "PENDING"}


async def test_the_checker_expects_of_each_schedule_what_the_calendar_says(db, dsn):
    await recorder.install(db)
    for _ in range(2):  # the second changes nothing
        await Recurring(dsn)._make()
    await db.execute(PAUSE)
    rows = await db.fetch("SELECT *, extract(epoch FROM every)::float8 AS seconds FROM scheduler.schedules ORDER BY id")
    assert [(row["name"], row["version"], row["paused"]) for row in rows] == [(name, 1, True) for name in SCHEDULES]

    for row, known in zip(rows, sorted((await recorder.read(db)).schedules, key=lambda one: one.id), strict=True):
        timing = Timing(mode=row["mode"], cron=row["cron"], every=row["seconds"], starts_at=row["starts_at"])
        if known.mode == "fixed_delay":
            continue
        fires = timing.fires(row["starts_at"] + timedelta(minutes=1))
        named = [(next(fires) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for _ in range(200)]
        start, step = rhythm(known)
        assert {(time - start) % step for time in named} == {0}
        assert named == [named[0] + n * step for n in range(200)]
        assert step in {SECOND, 2 * SECOND}
