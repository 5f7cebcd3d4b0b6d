-- finish(endings): move jobs, already locked FOR UPDATE by the caller, to their final status, mark the edges to their
-- children ended, and return the ids of those that have children (for resolve).
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.finish(p_endings scheduler.ending[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE ids bigint[];
BEGIN
  IF p_endings IS NULL THEN
    RETURN '{}';
  END IF;
  WITH gone AS (
    DELETE FROM scheduler.jobs_active j USING unnest(p_endings) AS e WHERE j.id = e.id
    RETURNING j AS job, jsonb_build_object('status', e.status, 'error', e.error, 'cancelled_by', e.root,
      'failures', j.failures + e.failed, 'crashes', j.crashes + e.crashed, 'unmet', 0, 'worker_id', NULL, 'lease_expires_at', NULL,
      'finished_at', scheduler.clock()) AS changes),
  kept AS (
    INSERT INTO scheduler.jobs_finished OVERRIDING SYSTEM VALUE
    SELECT f.* FROM gone g CROSS JOIN LATERAL jsonb_populate_record(g.job, g.changes) AS f RETURNING id)
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
