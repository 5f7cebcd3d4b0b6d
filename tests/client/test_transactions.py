"""A job submitted on a caller's connection is part of that connection's transaction, whichever driver it is of."""

import pytest
from notes import Note

from scheduler import InvalidJob, Submission


async def texts(db):
    """What is committed: the texts of all jobs, in the order of their ids."""
    return [row[0] for row in await db.fetch("SELECT payload ->> 'text' FROM scheduler.jobs ORDER BY id")]


async def test_a_job_exists_once_the_callers_transaction_commits_and_not_before(caller, db):
    handle = await caller.submit(Note("a"), priority=2, metadata={"trace": "x"})
    before = await texts(db)
    await caller.commit()

    assert before == []
    assert await db.fetchval("SELECT id FROM scheduler.jobs") == handle.id
    row = await db.fetchrow("SELECT payload ->> 'text', priority, metadata ->> 'trace' FROM scheduler.jobs")
    assert tuple(row) == ("a", 2, "x")


async def test_a_job_does_not_exist_when_the_callers_transaction_rolls_back(caller, db):
    await caller.submit(Note("a"))
    await caller.submit_many([Note("b"), Note("c")])
    await caller.rollback()

    assert await texts(db) == []


async def test_a_savepoint_rolled_back_takes_its_jobs_along_and_no_others(caller, db):
    await caller.submit(Note("before"))
    with pytest.raises(ZeroDivisionError):
        async with caller.savepoint():
            await caller.submit(Note("within"))
            raise ZeroDivisionError
    async with caller.savepoint():
        await caller.submit(Note("within another"))
    await caller.submit(Note("after"))
    await caller.commit()

    assert await texts(db) == ["before", "within another", "after"]


async def test_many_jobs_are_part_of_the_callers_transaction_in_their_order(caller, db):
    jobs = [Note(str(n)) for n in range(50)]

    handles = await caller.submit_many([*jobs, Submission(Note("50"), priority=3)], priority=0)
    before = await texts(db)
    await caller.commit()

    assert before == []
    assert await texts(db) == [str(n) for n in range(51)]
    assert [handle.id for handle in handles] == [
        row["id"] for row in await db.fetch("SELECT id FROM scheduler.jobs ORDER BY (payload ->> 'text')::int")
    ]
    assert await db.fetchval("SELECT priority FROM scheduler.jobs WHERE payload ->> 'text' = '50'") == 3


REFUSED = {
    "a rule of admit": ({"priority": 101}, "priority", "must lie between -100 and 100: LOW is 0, MEDIUM 1, HIGH 2"),
    "a rule of submit": ({"tenant": "x" * 201}, "tenant", "must be at most 200 bytes: use a short identifier"),
    "a constraint": (
        {"unique_key": "one", "on_taken": "raise"},
        "unique_key",
        "is held by an unfinished job of this kind",
    ),
    "a value out of range": ({"priority": 10**6}, "job", "cannot be stored by PostgreSQL: "),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refusal_names_the_same_field_and_rule_on_every_connection(caller, scheduler, case):
    options, field, rule = REFUSED[case]
    await scheduler.submit(Note(), unique_key="one")

    with pytest.raises(InvalidJob) as refused:
        async with caller.savepoint():
            await caller.submit(Note(), **options)
    with pytest.raises(InvalidJob) as refused_among_many:
        async with caller.savepoint():
            await caller.submit_many([Note(), Submission(Note(), **options), Note()])

    assert (refused.value.field, refused.value.index) == (field, None)
    assert refused.value.rule.startswith(rule)
    assert (refused_among_many.value.field, refused_among_many.value.index) == (field, 1)
    assert refused_among_many.value.rule == refused.value.rule


async def test_after_a_refusal_the_transaction_goes_on_from_a_savepoint(caller, db):
    await caller.submit(Note("before"))
    with pytest.raises(InvalidJob):
        async with caller.savepoint():
            await caller.submit(Note("refused"), priority=101)
    await caller.submit(Note("after"))
    await caller.commit()

    assert await texts(db) == ["before", "after"]


async def test_without_a_savepoint_a_refusal_has_aborted_the_transaction_and_the_driver_says_so(caller, db):
    await caller.submit(Note("before"))
    with pytest.raises(InvalidJob):
        await caller.submit(Note("refused"), priority=101)

    with pytest.raises(Exception, match="aborted") as aborted:
        await caller.submit(Note("after"))
    await caller.rollback()

    assert not type(aborted.value).__module__.startswith("scheduler")
    assert await texts(db) == []
