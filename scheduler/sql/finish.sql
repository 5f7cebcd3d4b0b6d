-- finish(endings): move jobs, already locked FOR UPDATE by the caller, to their final status, mark the edges to their
-- children ended, and return the ids of those that have children (for resolve).
-- A move is DELETE + INSERT in one statement: a SELECT on jobs sees each job exactly once, and no claimer meets the
-- serialization failure of a row-movement UPDATE. Children are not touched here: see resolve.
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.finish(p_endings scheduler.ending[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE ids bigint[];
BEGIN
  IF p_endings IS NULL THEN
    RETURN '{}';
  END IF;
  WITH gone AS (
    DELETE FROM scheduler.jobs_active j USING unnest(p_endings) AS e WHERE j.id = e.id
    RETURNING j.id, j.kind, j.payload, j.queue, j.priority, j.tenant, j.run_at, j.depends_on, j.on_parent_failure,
      j.idempotency_key, j.unique_key, j.max_attempts, j.max_crashes, j.timeout, j.retry_base, j.retry_cap,
      j.retry_jitter, j.metadata, j.rank_at, j.line, j.attempt, j.fence, j.request, j.started_at,
      j.cancel_requested_at, j.submitted_at, j.schedule_id, j.fire_time,
      j.failures + e.failed AS failures, j.crashes + e.crashed AS crashes, e.status, e.result, e.error, e.root),
  kept AS (
    INSERT INTO scheduler.jobs_finished (
      id, kind, payload, queue, priority, tenant, run_at, depends_on, on_parent_failure,
      idempotency_key, unique_key, max_attempts, max_crashes, timeout, retry_base, retry_cap,
      retry_jitter, metadata, rank_at, line, attempt, fence, request, started_at,
      cancel_requested_at, submitted_at, schedule_id, fire_time,
      failures, crashes, status, result, error, cancelled_by, finished_at)
    OVERRIDING SYSTEM VALUE
    SELECT g.*, scheduler.clock() FROM gone g RETURNING id)
  SELECT array_agg(k.id) INTO ids FROM kept k;
  RETURN scheduler.mark_ended(ids);
END $$;

-- Mark the edges from jobs that have just ended; return those of the jobs that have children.
CREATE OR REPLACE FUNCTION scheduler.mark_ended(p_parents bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE parents bigint[];
BEGIN
  WITH marked AS (
    UPDATE scheduler.dependencies d SET ended = true WHERE d.parent = ANY (p_parents) AND NOT d.ended RETURNING d.parent)
  SELECT coalesce(array_agg(DISTINCT m.parent), '{}') INTO parents FROM marked m;
  RETURN parents;
END $$;
