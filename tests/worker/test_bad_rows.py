"""Rows that Python cannot read and results that PostgreSQL cannot store end one job each, with readable words."""

import json

import jobs
import pytest
from witness import attempts, ended, insert, insert_many, row

DEEP = '{"value": ' + "[" * 6000 + "]" * 6000 + "}"
TOO_LARGE = "result: has 70,002 bytes of JSON, at most 65,536 are allowed"

# Each kind's unreadable payloads, and words of the error.
UNREADABLE = [
    ("Typed", '{"number": "seven"}', "payload.number: must be int, not str"),
    ("Typed", "{}", "payload.number: is missing"),
    ("Typed", '{"number": 1, "nmber": 2}', "payload.nmber: is not a field of Typed"),
    ("Typed", '{"number": 1.5}', "payload.number: must be int"),
    ("Typed", '{"number": 1, "text": ["\\ud83d\\ude00"]}', "payload.text: must be str, not array"),
    ("Echo", DEEP, "payload: nests too deeply to be read"),
    ("EchoInThread", DEEP, "payload: nests too deeply to be read"),
    ("EchoInProcess", DEEP, "payload: nests too deeply to be read"),
    ("TypedInProcess", '{"number": null}', "payload.number: must be int, not null"),
]
UNSTORABLE = {
    "nan": "result: holds NaN or infinity",
    "infinity": "result: holds NaN or infinity",
    "nul_result": "result: holds the character NUL",
    "surrogate_result": "result: holds a lone surrogate",
    "object": "result: holds a value of type object",
    "naive_datetime": "result: holds a datetime without a time zone",
    "too_large": TOO_LARGE,
    "too_deep": "result: nests deeper than 64 levels",
    "far_too_deep": "result: ",
    "huge_integer": "result: cannot be JSON",
}


@pytest.mark.parametrize("slots", [1, 20])
async def test_a_row_that_cannot_be_read_fails_alone(db, work, slots):
    kinds = sorted({kind for kind, _, _ in UNREADABLE} - {"Typed", "TypedInProcess"})
    neighbours = [job_id for kind in kinds for job_id in await insert_many(db, 10, kind)]
    bad = []
    for kind, payload, _ in UNREADABLE:
        statement = "INSERT INTO scheduler.jobs (kind, payload) VALUES ($1, $2) RETURNING id"
        bad.append(await db.fetchval(statement, kind, payload))
    neighbours += [job_id for kind in kinds for job_id in await insert_many(db, 10, kind)]

    await work(async_slots=slots, threads=slots, processes=min(slots, 2))

    found = await ended(db, *bad, *neighbours)
    for job_id, (_, _, words) in zip(bad, UNREADABLE, strict=True):
        job, (attempt,) = found[job_id], await attempts(db, job_id)
        assert (job["status"], job["attempt"]) == ("FAILED", 1)  # a second attempt would read the same
        assert (attempt["error_type"], words in attempt["error"]) == ("InvalidPayload", True), attempt["error"]
    assert {(found[job_id]["status"], found[job_id]["attempt"]) for job_id in neighbours} == {("COMPLETED", 1)}


async def test_the_words_for_a_bad_row_do_not_show_its_values(db, work):
    await work()

    job_id = await insert(db, "Typed", {"number": "secret-4711"})

    await ended(db, job_id)
    assert "secret-4711" not in json.dumps([dict(attempt) for attempt in await attempts(db, job_id)], default=str)


async def test_rows_of_an_unknown_kind_wait_in_sight_and_harm_nobody(scheduler, db, work):
    strange = await insert_many(db, 50, "from_another_service")
    await work(async_slots=1)

    own = await insert_many(db, 20, "Echo")

    assert {job["attempt"] for job in (await ended(db, *own)).values()} == {1}
    assert {(await row(db, job_id))["status"] for job_id in strange} == {"PENDING"}
    assert len(await scheduler.jobs(kind="from_another_service", limit=100)) == 50


@pytest.mark.parametrize("kind", ["Act", "ActInThread", "ActInProcess"])
async def test_f56_a_result_that_cannot_be_stored_fails_its_job_alone(db, work, kind):
    await work()
    bad = {action: await insert(db, kind, {"action": action}) for action in UNSTORABLE}
    neighbours = await insert_many(db, 20, kind.replace("Act", "Echo"), {"value": 1})

    found = await ended(db, *bad.values(), *neighbours)

    for action, words in UNSTORABLE.items():
        job, (attempt,) = found[bad[action]], await attempts(db, bad[action])
        assert (action, job["status"], job["attempt"], job["result"]) == (action, "FAILED", 1, None)
        assert (attempt["error_type"], words in attempt["error"]) == ("InvalidResult", True), attempt["error"]
    assert {(found[job_id]["status"], found[job_id]["result"]) for job_id in neighbours} == {("COMPLETED", "1")}


async def test_f56_a_result_of_300_mb_fails_its_job_alone(db, work):
    await work()
    job_id = await insert(db, "Act", {"action": "enormous"})
    neighbours = await insert_many(db, 20, "Echo")

    job = await ended(db, job_id)

    assert (job["status"], job["attempt"]) == ("FAILED", 1)
    assert "result: has 300,000,002 bytes of JSON, at most 65,536 are allowed" in job["error"]
    assert {job["attempt"] for job in (await ended(db, *neighbours)).values()} == {1}


@pytest.mark.parametrize("kind", ["Act", "ActInProcess"])
async def test_an_outcome_that_sql_refuses_fails_its_job_alone(db, work, kind):
    await work()

    job_id = await insert(db, kind, {"action": "huge_number"})
    neighbours = await insert_many(db, 20, kind.replace("Act", "Echo"))

    job = await ended(db, job_id)
    assert (job["status"], job["attempt"]) == ("FAILED", 1)
    assert {job["attempt"] for job in (await ended(db, *neighbours)).values()} == {1}


async def test_a_kind_that_a_child_does_not_know_fails_readably(db, work, monkeypatch):
    monkeypatch.setattr(jobs.EchoInProcess, "__module__", "json")  # a module that is there, and has no such class
    await work(kinds=[jobs.EchoInProcess])

    job_id = await insert(db, "EchoInProcess")

    assert (await ended(db, job_id))["error"] == "UnknownKind: no class of kind 'EchoInProcess' in the child"


async def test_a_child_that_cannot_start_fails_its_job_with_the_reason(db, work, monkeypatch):
    monkeypatch.setattr(jobs.EchoInProcess, "__module__", "no_such_module")
    await work(kinds=[jobs.EchoInProcess])

    job_id = await insert(db, "EchoInProcess", max_attempts=1)

    job = await ended(db, job_id)
    assert "the child process cannot be used: ModuleNotFoundError: No module named 'no_such_module'" in job["error"]
