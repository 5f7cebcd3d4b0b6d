"""The outbox of a worker against a store that answers as the database does."""

from uuid import uuid4

import pytest

from scheduler import Context
from scheduler.answers import Missed
from worker.attempt import Attempt, Leases, Settlement
from worker.loops import LONGEST
from worker.settler import LARGEST_GROUP, Settler


class Database:
    """Answers settle; some rows are locked by somebody."""

    def __init__(self, locked):
        self.locked = set(locked)
        self.settled = []

    async def settle(self, _worker, outcomes):
        ids = [one.id for one in outcomes]
        self.settled += [i for i in ids if i not in self.locked]
        return Missed(busy=[i for i in ids if i in self.locked])


def settler_with(database, ids):
    settler = Settler(database, uuid4(), Leases(), lambda _: None, lambda: None)
    for number in ids:
        context = Context(job_id=number, kind="k", queue="q", tenant="", attempt=1, failures=0, fence=1, timeout=1.0)
        settler.add(Attempt(context, "{}", None, 0.0), Settlement(number, 1, "completed"))
    return settler


async def test_locked_jobs_do_not_keep_the_outcomes_behind_them():
    locked = range(LARGEST_GROUP)
    database = Database(locked)
    settler = settler_with(database, [*locked, 9_999])

    for _ in range(2):
        await settler.settle()

    assert database.settled == [9_999]
    assert len(settler) == LARGEST_GROUP


async def test_a_job_that_stays_locked_is_asked_for_less_and_less():
    settler = settler_with(Database([1]), [1])

    pauses = [await settler.settle() for _ in range(10)]

    assert pauses == sorted(pauses)
    assert (pauses[0] > 0, pauses[-1]) == (True, LONGEST)


@pytest.mark.parametrize("n", [1, LARGEST_GROUP + 1])
async def test_an_outbox_is_emptied_group_by_group(n):
    database = Database([])
    settler = settler_with(database, range(n))

    while len(settler):
        await settler.settle()

    assert database.settled == list(range(n))
