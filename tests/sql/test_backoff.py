"""How long a failed job waits: min(cap, base * 2^(failures - 1)), a share of it, or what the callee asked for."""

from datetime import timedelta

import pytest

from .steps import claim, declare, end, insert, promote, row, start

BACKOFF = "SELECT extract(epoch FROM scheduler.backoff($1, $2, $3, $4, $5))::float8"
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("cap", [1, 2, 4, 8, 16, 32, 64, 1000])
async def test_the_wait_doubles_with_each_failure_until_the_cap_cuts_it(db, cap):
    waits = [await db.fetchval(BACKOFF, n, SECOND, cap * SECOND, False, 0.5) for n in range(1, 12)]

    assert waits == [min(cap, 2 ** (n - 1)) for n in range(1, 12)]


async def test_jitter_draws_between_nothing_and_the_whole_wait(db):
    waits = [await db.fetchval(BACKOFF, 5, SECOND, 3600 * SECOND, True, share) for share in (0.0, 0.25, 1.0)]

    assert waits == [0, 4, 16]


async def test_the_share_is_random_unless_given(db):
    query = "SELECT extract(epoch FROM scheduler.backoff(7, '1 s', '1 h', true))::float8 FROM generate_series(1, 200)"
    waits = [wait for (wait,) in await db.fetch(query)]

    assert all(0 <= wait <= 64 for wait in waits)
    assert min(waits) < 16
    assert max(waits) > 48


@pytest.mark.parametrize("failures", [0, 62, 1025, 10_000, 2**31 - 1])
async def test_f75_no_number_of_failures_overflows(db, failures):
    thirty_days = timedelta(days=30)

    wait = await db.fetchval(BACKOFF, failures, thirty_days, thirty_days, False, 0.5)

    assert wait == thirty_days.total_seconds()


async def test_a_failed_job_waits_by_the_table(db, clock):
    await declare(db, {"kind": "patient", "retry_base": 1, "retry_cap": 20, "max_attempts": 8, "retry_jitter": False})
    job_id, waits = await insert(db, "patient"), []

    while job := next(iter(await claim(db, kinds=["patient"])), None):
        await end(db, job, "failed")
        wait = ((await row(db, job_id))["run_at"] - await clock.now()).total_seconds()
        waits.append(wait)
        await clock.advance(wait)
        await promote(db)

    assert waits[:-1] == [1, 2, 4, 8, 16, 20, 20]
    assert (await row(db, job_id))["status"] == "FAILED"


async def test_f75_failure_10_000_of_a_job_is_stored_as_any_other(db, clock):
    job = await start(db, max_attempts=20_000)
    await db.execute("UPDATE scheduler.jobs_active SET failures = 9999 WHERE id = $1", job["id"])

    await end(db, job, "failed")

    failed = await row(db, job["id"])
    assert (failed["status"], failed["failures"]) == ("DELAYED", 10_000)
    assert failed["run_at"] == await clock.now() + timedelta(hours=1)


@pytest.mark.parametrize("jitter", [True, False])
@pytest.mark.parametrize("delay", [0.5, 3600, 31_622_400])
async def test_a_delay_asked_for_is_never_cut_short(db, clock, delay, jitter):
    for _ in range(10):
        job = await start(db, retry_jitter=jitter, retry_cap=timedelta(seconds=1))
        await end(db, job, "failed", delay=delay)

        wait = (await row(db, job["id"]))["run_at"] - await clock.now()
        assert timedelta(seconds=delay) <= wait <= timedelta(seconds=delay) * (1.1 if jitter else 1)


async def test_with_jitter_a_failed_job_waits_up_to_the_whole_wait(db, clock):
    waits = []
    for _ in range(20):
        job = await start(db, retry_jitter=True, retry_base=timedelta(seconds=100))
        await end(db, job, "timed_out")
        waits.append(((await row(db, job["id"]))["run_at"] - await clock.now()).total_seconds())

    assert all(0 <= wait <= 100 for wait in waits)
    assert len(set(waits)) == 20
