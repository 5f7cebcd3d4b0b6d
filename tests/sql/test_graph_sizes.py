"""Large graphs stay in bounded batches: what a call reads and changes does not grow with the size of the graph."""

import json

import pytest

from .steps import cancel, claim, declare, outcome, resolve, resolve_all, row, settle, statuses, submit, verb

CASCADE = """
WITH made AS (
  INSERT INTO scheduler.jobs (kind, depends_on) SELECT 'k', ARRAY[$1::bigint] FROM generate_series(1, $2) RETURNING id)
SELECT count(*) FROM made"""


async def read(db):
    """Return how many rows of edges the session has read by an index so far, or from end to end."""
    if db.get_server_version().major < 15:
        pytest.skip("PostgreSQL 14 publishes its counts when it likes")
    await db.execute("SELECT pg_stat_force_next_flush()")
    await db.execute("SELECT pg_stat_clear_snapshot()")
    query = """SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables
        WHERE schemaname = 'scheduler' AND relname = 'dependencies'"""
    return await db.fetchval(query)


@pytest.mark.parametrize("members", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_fan_in_reads_a_few_edges_per_member_whatever_their_number(db, members):
    await declare(db, {"kind": "callback", "queue": "default"})
    batch = await submit(db, "callback", batch=True)
    await verb(db, "submit_graph", json.dumps([{"kind": "k", "member_of": batch}] * members))
    await db.fetchval("SELECT scheduler.close_batch($1)", batch)
    before = await read(db)

    while jobs := await claim(db, 100):
        await resolve_all(db, (await settle(db, *map(outcome, jobs)))["parents"])

    assert (await row(db, batch))["status"] == "PENDING"
    assert (await read(db) - before) / members < 30


@pytest.mark.parametrize("children", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_a_cascade_goes_in_bounded_batches_whatever_its_size(db, children):
    root = await submit(db)
    assert await db.fetchval(CASCADE, root, children) == children
    parents, calls, most = (await cancel(db, root))["parents"], 0, 0

    while parents:
        answer = await resolve(db, parents)
        calls += 1
        most = max(most, sum(len(moved["ids"]) for moved in answer["jobs"]))
        parents = sorted({*answer["parents"], *answer["busy"], *(parents if answer["more"] else ())})

    assert (most, calls) == (1_000, children / 1_000)
    left = await db.fetch("SELECT status::text, cancelled_by, count(*) FROM scheduler.jobs GROUP BY 1, 2 ORDER BY 3")
    assert [tuple(found) for found in left] == [("CANCELLED", None, 1), ("CANCELLED", root, children)]
    assert set(await statuses(db, [root])) == {root}
