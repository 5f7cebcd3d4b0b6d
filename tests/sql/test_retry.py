"""Retrying by hand: what failed, timed out or was cancelled runs again, and what its failure cancelled follows."""

from .steps import claim, end, start, verb

NOTHING = {"retried": [], "revived": [], "not_ended": [], "missing": [], "busy": [], "refused": [], "go_on": None}


async def test_a_failed_job_runs_again(db):
    job = await start(db)
    await end(db, job, "failed", retryable=False)

    assert await verb(db, "retry", [job["id"]]) == NOTHING | {"retried": [job["id"]]}

    (again,) = await claim(db)
    assert (again["attempt"], again["failures"]) == (2, 0)
    assert again["fence"] > job["fence"]
