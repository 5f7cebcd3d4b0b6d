"""Random graphs, batches, outcomes and orders of events, against a model that knows the rules and no SQL.

Everything is drawn from a fixed seed; the larger number of examples is among the slow tests.
"""

import asyncio

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scheduler.states import ACTIVE

from .steps import PATIENCE, cancel, claim, end, resolve, submit, verb

STEPS = (
    "submit",
    "submit",
    "member",
    "member",
    "close",
    "complete",
    "complete",
    "fail",
    "fail",
    "cancel",
    "retry",
    "resolve",
)
PLAN = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=25, max_size=60
)


def examples(number):
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    phases = [Phase.explicit, Phase.generate]  # an example that fails is short enough as it is
    return settings(max_examples=number, deadline=None, derandomize=True, suppress_health_check=quiet, phases=phases)


class World:
    """What was done, as the model remembers it: who depends on whom, and which batches are open."""

    def __init__(self, db, worker):
        self.db, self.worker = db, worker
        self.ids, self.parents, self.policy, self.open, self.free = [], {}, {}, set(), set()

    async def do(self, step, one, other, flag):
        """Do one step; what the rules forbid is refused, and changes nothing."""
        job_id = self.ids[one % len(self.ids)] if self.ids else 0
        another = self.ids[other % len(self.ids)] if self.ids else 0
        if step == "submit":
            parents = {job_id, another} - {0} if one < 7 else set()
            policy = "run" if other % 2 else "cancel"
            new = await submit(self.db, depends_on=sorted(parents), on_parent_failure=policy, batch=flag)
            self.add(new, parents, policy)
            self.open |= {new} if flag else set()
        elif step == "member":
            job_id = sorted(self.open)[one % len(self.open)] if self.open and flag else job_id
            try:
                new = await submit(self.worker, member_of=job_id)
            except asyncpg.CheckViolationError:
                return
            assert job_id in self.open
            self.add(new, (), "cancel")
            self.parents[job_id].add(new)
        elif step == "close" and self.open:
            job_id = sorted(self.open)[one % len(self.open)]
            await self.db.execute("SELECT scheduler.close_batch($1)", job_id)
            self.open.discard(job_id)
        elif step in {"complete", "fail"}:
            for job in await claim(self.worker):
                await end(self.worker, job, "completed" if step == "complete" else "failed", retryable=False)
        elif step == "cancel" and job_id:
            await cancel(self.db, job_id)
        elif step == "retry":
            ended = [i for i, row in (await self.rows()).items() if row["status"] in {"FAILED", "CANCELLED"}]
            await self.retry(*ended[one : one + 1])
        elif step == "resolve":
            await resolve(self.db, limit=1 if flag else 1000)

    def add(self, job_id, parents, policy):
        self.ids.append(job_id)
        self.parents[job_id], self.policy[job_id] = set(parents), policy

    async def retry(self, *todo):
        while todo:
            answer = await verb(self.db, "retry", todo)
            assert answer["busy"] == []
            self.open -= set(answer["retried"])  # a batch that runs again is closed
            todo = [child for child in answer["children"] if child not in todo]

    async def rows(self):
        query = "SELECT id, status::text, attempt, cancelled_by FROM scheduler.jobs WHERE id = ANY ($1)"
        return {row["id"]: row for row in await self.db.fetch(query, self.ids)}

    async def settle(self):
        """Let all take notice, and end all that can: nothing may be left that waits for nothing."""
        for _ in range(1000):
            while (answer := await resolve(self.db))["jobs"] or answer["more"]:
                pass
            self.check(await self.rows())
            if not (jobs := await claim(self.worker, 100)):
                break
            for job in jobs:
                await end(self.worker, job)
        left = {job_id: row for job_id, row in (await self.rows()).items() if row["status"] in ACTIVE}
        behind = {job_id for job_id in left if job_id in self.open or self.parents[job_id] & left.keys()}
        assert left.keys() == behind, "stuck"

    def check(self, rows):
        for job_id, row in rows.items():
            ended = [rows[parent]["status"] for parent in self.parents[job_id]]
            waits = job_id in self.open or any(status in ACTIVE for status in ended)
            doomed = self.policy[job_id] == "cancel" and any(s not in ACTIVE | {"COMPLETED"} for s in ended)
            if row["status"] == "BLOCKED":
                assert waits, f"job {job_id} waits for nobody"
                assert not doomed, f"job {job_id} waits in spite of a parent that did not complete"
            if row["status"] == "PENDING" and row["attempt"] == 0:
                assert not doomed, f"job {job_id} runs in spite of a parent that did not complete"
            if row["cancelled_by"] is not None:
                assert rows[row["cancelled_by"]]["status"] != "COMPLETED"

    async def started_early(self):
        """Return jobs that came free since the last look, though one of their parents had not ended."""
        rows = await self.rows()
        free = {job_id for job_id, row in rows.items() if row["status"] == "PENDING"}
        fresh, self.free = free - self.free, free
        return [i for i in fresh if i in self.open or any(rows[p]["status"] in ACTIVE for p in self.parents[i])]


async def live(world, plan):
    await world.db.execute("TRUNCATE scheduler.jobs, scheduler.dependencies, scheduler.attempts")
    for step in plan:
        await world.do(*step)
        assert await world.started_early() == [], step
    await world.settle()


@pytest.fixture
def play(db, connect):
    """Run plans, one after the other, each in an empty database."""

    async def play(plans):
        worker = await connect()
        for plan in plans:
            await asyncio.wait_for(live(World(db, worker), plan), 3 * PATIENCE)

    return play


def drawn(number):
    """Draw plans from the fixed seed."""
    plans = []

    @examples(number)
    @given(PLAN)
    def draw(plan):
        plans.append(plan)

    draw()
    return plans


async def test_random_graphs_and_batches_never_start_early_and_never_get_stuck(play):
    await play(drawn(50))


@pytest.mark.slow
async def test_many_random_graphs_and_batches_never_start_early_and_never_get_stuck(play):
    await play(drawn(200))
