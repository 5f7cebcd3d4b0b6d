-- prune(ids): delete finished jobs for good, with their attempts, their edges and their idempotency keys.
-- Returns {"pruned": [ids], "kept": [{"id", "reason"}], "missing": [ids]}. Kept are a parent of a job that has not ended, or that
-- failed with a child that never ran (a retry revives it), a child of a job that has not ended, a job whose idempotency key
-- is still held, and one that somebody holds.
-- Locks FOR UPDATE SKIP LOCKED, and only what is deleted: nobody waits here for anything, nor two of these for each other.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.prune(p_ids bigint[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE pruned bigint[];
BEGIN
  PERFORM scheduler.need_read_committed('prune');
  pruned := scheduler.remove(p_ids);
  RETURN (
    SELECT jsonb_build_object('pruned', pruned,
      'kept', coalesce(jsonb_agg(jsonb_build_object('id', i.id, 'reason', CASE WHEN j.finished_at IS NULL
        THEN 'it has not ended: cancel it first'
        ELSE coalesce(scheduler.kept_because(j.id, j.status, j.kind, j.idempotency_key), 'another transaction holds it: try again') END)
        ORDER BY i.id) FILTER (WHERE j.id IS NOT NULL), '[]'),
      'missing', coalesce(jsonb_agg(i.id ORDER BY i.id) FILTER (WHERE j.id IS NULL), '[]'))
    FROM (SELECT DISTINCT unnest(p_ids) AS id) AS i LEFT JOIN scheduler.jobs j ON j.id = i.id
    WHERE i.id <> ALL (pruned));
END $$;

-- Delete those of these finished jobs that may go; return them. In rounds, children first: a parent may have to stay for the sake
-- of a child that goes in the same call. What has to stay is never locked: children are being submitted to it.
CREATE OR REPLACE FUNCTION scheduler.remove(p_ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  removed bigint[] := '{}';
  batch bigint[];
BEGIN
  LOOP
    batch := ARRAY(SELECT f.id FROM scheduler.jobs_finished f
      WHERE f.id = ANY (p_ids) AND scheduler.kept_because(f.id, f.status, f.kind, f.idempotency_key) IS NULL);
    batch := ARRAY(SELECT f.id FROM scheduler.jobs_finished f WHERE f.id = ANY (batch) ORDER BY f.id FOR UPDATE SKIP LOCKED);
    -- A new statement, so that it sees what was committed before the locks were held: a child, or a key that was taken over.
    WITH gone AS (
      DELETE FROM scheduler.jobs_finished f
      WHERE f.id = ANY (batch) AND scheduler.kept_because(f.id, f.status, f.kind, f.idempotency_key) IS NULL
      RETURNING f.id, f.kind, f.idempotency_key),
    keys AS (
      DELETE FROM scheduler.idempotency_keys k WHERE (k.kind, k.key) IN (
        SELECT h.kind, h.key FROM gone g JOIN scheduler.idempotency_keys h
          ON h.kind = g.kind AND h.key = g.idempotency_key AND h.job_id = g.id FOR UPDATE OF h SKIP LOCKED))
    SELECT coalesce(array_agg(g.id), '{}') INTO batch FROM gone g;
    EXIT WHEN batch = '{}';
    DELETE FROM scheduler.attempts a WHERE a.job_id = ANY (batch);
    DELETE FROM scheduler.dependencies d WHERE d.child = ANY (batch);
    removed := removed || batch;
    EXIT WHEN cardinality(removed) >= cardinality(p_ids);
  END LOOP;
  RETURN removed;
END $$;

-- Why a finished job may not be deleted; null when it may. Scalar subqueries: a join may read every active job instead.
CREATE OR REPLACE FUNCTION scheduler.kept_because(p_id bigint, p_status scheduler.job_status, p_kind text, p_key text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT format('job %s, which depends on it, has not ended', d.child) FROM scheduler.dependencies d
     WHERE d.parent = p_id AND (SELECT true FROM scheduler.jobs_active j WHERE j.id = d.child)
     ORDER BY d.child DESC LIMIT 1), -- the newest first: they are the ones that have not ended
    (SELECT format('job %s, which it depends on, has not ended', d.parent)
     FROM scheduler.dependencies d WHERE d.child = p_id AND NOT (d.ended AND d.applied) LIMIT 1),
    CASE WHEN p_status <> 'COMPLETED' THEN (
      SELECT format('job %s, which depends on it, never ran, and a retry would revive it: prune that one first', d.child)
      FROM scheduler.dependencies d
      WHERE d.parent = p_id AND d.child <> p_id AND (SELECT c.attempt = 0 FROM scheduler.jobs_finished c WHERE c.id = d.child) LIMIT 1) END,
    CASE WHEN p_key IS NOT NULL THEN (
      SELECT 'its idempotency_key is held until its window ends' FROM scheduler.idempotency_keys k
      WHERE k.kind = p_kind AND k.key = p_key AND k.job_id = p_id AND k.expires_at > scheduler.clock()) END);
END $$;
