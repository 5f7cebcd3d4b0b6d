"""Renewals go on while the database is slow."""

from datetime import timedelta

from witness import ended, insert, row, until

# The first call on a connection takes longer than the pause between two heartbeats, as on a machine that is overloaded.
SLOW_WHERE_NEW = """
ALTER FUNCTION scheduler.missed(uuid, bigint[], bigint[], bigint[]) RENAME TO missed_at_once;
CREATE FUNCTION scheduler.missed(p_worker uuid, p_ids bigint[], p_fences bigint[], p_done bigint[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
  IF cardinality(p_ids) > 0 AND current_setting('test.warm', true) IS DISTINCT FROM 'yes' THEN
    PERFORM pg_sleep(1.5), set_config('test.warm', 'yes', false);
  END IF;
  RETURN scheduler.missed_at_once(p_worker, p_ids, p_fences, p_done);
END $$"""


async def test_a_database_slow_to_take_up_a_connection_renews_leases_all_the_same(db, work, gate):
    await db.execute(SLOW_WHERE_NEW)
    await work(lease=3)  # a heartbeat of 1 s
    gate = gate()
    job_id = await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    async def has_outlived_its_first_lease():  # by far: its worker would have stopped it by its own clock
        job = await row(db, job_id)
        return job["worker_id"] and job["lease_expires_at"] > job["started_at"] + timedelta(seconds=9)

    await until(has_outlived_its_first_lease, "the lease should have been renewed again and again", seconds=60)

    gate.open()
    assert (await ended(db, job_id))["status"] == "COMPLETED"
