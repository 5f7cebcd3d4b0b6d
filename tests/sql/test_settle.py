"""Settling: what a job and its log keep of each attempt; promoting what waited; a log that does not grow for ever."""

from datetime import timedelta

from .steps import attempts, claim, end, insert, outcome, promote, release, row, settle, start, status

MINUTE = timedelta(minutes=1)


async def test_a_completed_job_keeps_its_result_and_logs_no_attempt(db, clock):
    job = await start(db)
    await clock.advance(3)

    await end(db, job, result={"answer": [42]})

    ended = await row(db, job["id"])
    assert (ended["status"], ended["result"], ended["error"]) == ("COMPLETED", '{"answer": [42]}', None)
    assert (ended["finished_at"] - ended["started_at"], ended["attempt"]) == (timedelta(seconds=3), 1)
    assert (ended["worker_id"], ended["lease_expires_at"], ended["fence"]) == (None, None, job["fence"])
    assert await attempts(db, job["id"]) == []


async def test_the_log_tells_of_each_attempt_that_did_not_complete(db, clock):
    job_id = await insert(db, max_attempts=2)
    for ending in ("failed", "released", "snoozed", "timed_out"):
        (job,) = await claim(db)
        if ending == "released":
            await release(db, [job])
        else:
            await end(db, job, ending, delay=0, error_type="Oops", error="it broke", traceback="line 1")
        await promote(db)

    log = [tuple(a)[1:] for a in await attempts(db, job_id)]
    now, who = await clock.now(), job["fence"] and (await attempts(db, job_id))[0]["worker_id"]
    told = ("Oops", "it broke", "line 1")
    assert log == [
        (1, who, now, now, "failed", *told),
        (2, who, now, now, "released", None, None, None),
        (3, who, now, now, "snoozed", *told),
        (4, who, now, now, "timed_out", *told),
    ]
    ended = await row(db, job_id)
    assert (ended["status"], ended["failures"], ended["attempt"], ended["error"]) == (
        "TIMED_OUT",
        2,
        4,
        "Oops: it broke",
    )


async def test_an_attempt_that_is_not_to_be_retried_ends_the_job(db):
    job = await start(db, max_attempts=5)

    await end(db, job, "failed", retryable=False, error_type="Bad", error="never")

    ended = await row(db, job["id"])
    assert (ended["status"], ended["failures"], ended["error"]) == ("FAILED", 1, "Bad: never")


async def test_a_group_is_settled_in_one_call_each_by_its_own_outcome(db):
    ids = [await insert(db, max_attempts=1 + n) for n in range(5)]
    jobs = await claim(db, 5)
    endings = ["failed", "failed", "timed_out", "completed", "snoozed"]

    answer = await settle(db, *(outcome(job, ending, delay=9) for job, ending in zip(jobs, endings, strict=True)))

    became = {str(ids[0]): "FAILED", str(ids[1]): "DELAYED", str(ids[2]): "DELAYED", str(ids[4]): "DELAYED"}
    assert answer == {"lost": [], "busy": [], "parents": [], "became": became}
    assert [await status(db, i) for i in ids] == ["FAILED", "DELAYED", "DELAYED", "COMPLETED", "DELAYED"]


async def test_a_result_over_64_kb_fails_the_attempt_in_readable_words_and_harms_no_neighbour(db):
    await insert(db), await insert(db)
    large, fits = await claim(db, 2)

    await settle(db, outcome(large, result={"a": "x" * 65_536}), outcome(fits, result={"a": "x" * 65_000}))

    ended = await row(db, large["id"])
    assert (ended["status"], ended["result"]) == ("FAILED", None)
    assert ended["error"] == "ResultTooLarge: the result is over 64 kB: store it elsewhere and return a reference"
    assert await status(db, fits["id"]) == "COMPLETED"


async def test_long_errors_are_cut_and_never_fail_the_settlement(db):
    job = await start(db)

    await end(db, job, "failed", retryable=False, error_type="E", error="é" * 100_000, traceback="t" * 100_000)

    (log,) = await attempts(db, job["id"])
    assert (len(log["error"]), len(log["traceback"])) == (16_384, 16_384)
    assert await status(db, job["id"]) == "FAILED"


async def test_a_snooze_counts_as_no_failure_and_waits_as_long_as_asked(db, clock):
    job = await start(db, max_attempts=1)

    await end(db, job, "snoozed", delay=90)

    snoozed = await row(db, job["id"])
    assert (snoozed["status"], snoozed["failures"]) == ("DELAYED", 0)
    assert snoozed["run_at"] == await clock.now() + timedelta(seconds=90)


async def test_a_snooze_without_a_delay_is_due_at_once(db, clock):
    job = await start(db)

    await end(db, job, "snoozed")

    assert (await row(db, job["id"]))["run_at"] == await clock.now()


async def test_the_log_of_a_job_that_snoozes_for_ever_keeps_the_last_hundred(db, clock):
    job_id = await insert(db)
    for _ in range(120):
        (job,) = await claim(db)
        await end(db, job, "snoozed", delay=0)
        await promote(db)

    assert [a["attempt"] for a in await attempts(db, job_id)] == list(range(21, 121))


async def test_failures_stay_in_the_log_of_a_job_that_snoozes(db, clock):
    job_id = await insert(db)
    for n in range(105):
        (job,) = await claim(db)
        await end(db, job, "snoozed" if n else "failed", delay=0)
        await promote(db)

    assert (await attempts(db, job_id))[0]["outcome"] == "failed"


async def test_promote_moves_what_is_due_and_says_when_to_come_again(db, clock):
    start_at = await clock.now()
    for minutes in (1, 2, 2, 5):
        await insert(db, run_at=start_at + minutes * MINUTE)
    assert await promote(db) == {"promoted": 0, "next_in": 60, "jobs": []}

    await clock.advance(120)

    answer = await promote(db)
    assert (answer["promoted"], answer["next_in"]) == (3, 180)
    await clock.advance(200)
    answer = await promote(db)
    assert (answer["promoted"], answer["next_in"]) == (1, None)


async def test_promote_names_what_it_moved_jobs_that_are_alike_together(db, clock):
    due = await clock.now() + MINUTE
    alike = [await insert(db, run_at=due) for _ in range(2)]
    other = await insert(db, run_at=due, tenant="t")
    await clock.advance(60)

    found = {facts.pop("tenant"): facts for facts in (await promote(db))["jobs"]}

    facts = {"kind": "k", "queue": "default", "attempt": 0}
    assert found == {"": facts | {"ids": alike}, "t": facts | {"ids": [other]}}


async def test_promote_ends_at_its_limit_and_says_to_come_again_at_once(db, clock):
    for seconds in range(1, 6):
        await insert(db, run_at=await clock.now() + timedelta(seconds=seconds))
    await clock.advance(10)

    first = await promote(db, 3)

    assert (first["promoted"], first["next_in"]) == (3, -6)
    assert (await promote(db, 3))["promoted"] == 2


async def test_a_locked_job_holds_up_no_promotion_of_others(db, connect, clock):
    locked, free = [await insert(db, run_at=await clock.now() + MINUTE) for _ in range(2)]
    await clock.advance(60)
    other = await connect()

    async with other.transaction():
        await other.execute("SELECT FROM scheduler.jobs_active WHERE id = $1 FOR UPDATE", locked)
        assert (await promote(db))["promoted"] == 1

    assert [await status(db, i) for i in (locked, free)] == ["DELAYED", "PENDING"]


async def test_what_is_held_by_a_child_being_inserted_is_promoted(db, connect, clock):
    parent = await insert(db, run_at=await clock.now() + MINUTE)
    await clock.advance(60)
    submitter = await connect()

    async with submitter.transaction():
        await insert(submitter, depends_on=[parent])
        assert (await promote(db))["promoted"] == 1


async def test_a_released_job_is_claimable_at_once_and_nothing_counts_against_it(db):
    job = await start(db)

    answer = await release(db, [job])

    assert answer == {"lost": [], "busy": [], "parents": [], "became": {}}
    (again,) = await claim(db)
    released = await row(db, job["id"])
    assert (again["id"], released["failures"], released["crashes"], again["attempt"]) == (job["id"], 0, 0, 2)
