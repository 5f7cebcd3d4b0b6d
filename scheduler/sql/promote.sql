-- promote(limit): make delayed jobs that are due claimable. Their rank was set when they were delayed and stays.
-- Returns {"promoted": n, "next_in": seconds until the next delayed job is due, or null, "jobs": [{"ids", "kind", "queue",
-- "tenant", "attempt"}]}: what was promoted, the jobs that are alike together (one object each costs a tenth of the call).
-- Locks FOR NO KEY UPDATE SKIP LOCKED; any number of workers may promote at once.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.promote(p_limit int DEFAULT 1000) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  promoted int;
  queues text[];
  jobs jsonb;
BEGIN
  WITH due AS MATERIALIZED (
    SELECT j.id FROM scheduler.jobs_active j WHERE j.status = 'DELAYED' AND j.run_at <= (SELECT scheduler.clock())
    ORDER BY j.run_at, j.id LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED),
  waiting AS (
    UPDATE scheduler.jobs_active j SET status = 'PENDING' WHERE j.id = ANY (ARRAY(SELECT d.id FROM due d))
    RETURNING j.id, j.kind, j.queue, j.tenant, j.attempt),
  alike AS (
    SELECT array_agg(w.id) AS ids, w.kind, w.queue, w.tenant, w.attempt FROM waiting w
    GROUP BY w.kind, w.queue, w.tenant, w.attempt)
  SELECT coalesce(sum(cardinality(a.ids)), 0), coalesce(array_agg(DISTINCT a.queue) FILTER (WHERE a.queue IS NOT NULL), '{}'),
    coalesce(jsonb_agg(to_jsonb(a)), '[]')
  INTO promoted, queues, jobs FROM alike a;
  PERFORM scheduler.wake(queues);
  RETURN jsonb_build_object('promoted', promoted, 'next_in', scheduler.due_in(), 'jobs', jobs);
END $$;
