-- renew(worker, ids, fences, lease): extend the leases of everything a worker runs, one statement for all; a sign of life, too.
-- Returns {"lost": [ids], "cancel": [ids], "busy": [ids]}: stop the lost attempts now; stop those asked to cancel; ask again
-- soon for the busy ones, whose row somebody else holds (one locked row never stops the renewal of the others).
-- Fenced. FOR NO KEY UPDATE SKIP LOCKED, ids ascending; the clock is read after the locks are held. lease_expires_at is in
-- no index, so renewals stay HOT. Its commit need not reach the disk: a crash of the server grants every lease anew.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.renew(p_worker uuid, p_ids bigint[], p_fences bigint[], p_lease interval)
RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  renewed bigint[];
  cancelling bigint[];
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE scheduler.workers w SET seen_at = scheduler.clock() WHERE w.id = p_worker;
  WITH held AS MATERIALIZED (
    SELECT j.id FROM unnest(p_ids, p_fences) AS r(id, fence) JOIN scheduler.jobs_active j ON j.id = r.id
    WHERE j.fence = r.fence AND j.worker_id = p_worker
    ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED),
  extended AS (
    UPDATE scheduler.jobs_active j SET lease_expires_at = scheduler.clock() + p_lease
    WHERE j.id = ANY (ARRAY(SELECT h.id FROM held h)) RETURNING j.id, j.cancel_requested_at)
  SELECT coalesce(array_agg(e.id), '{}'), coalesce(array_agg(e.id) FILTER (WHERE e.cancel_requested_at IS NOT NULL), '{}')
  INTO renewed, cancelling FROM extended e;
  RETURN scheduler.missed(p_worker, p_ids, p_fences, renewed) || jsonb_build_object('cancel', cancelling);
END $$;

-- What a worker's verb did not get hold of: lost when the claim is no longer the worker's, busy when its row is only locked.
CREATE OR REPLACE FUNCTION scheduler.missed(p_worker uuid, p_ids bigint[], p_fences bigint[], p_done bigint[])
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  busy bigint[] := '{}';
  lost bigint[] := '{}';
BEGIN
  IF cardinality(p_done) < cardinality(p_ids) THEN
    SELECT coalesce(array_agg(r.id) FILTER (WHERE j.id IS NOT NULL), '{}'),
           coalesce(array_agg(r.id) FILTER (WHERE j.id IS NULL), '{}') INTO busy, lost
    FROM (SELECT DISTINCT m.id, m.fence FROM unnest(p_ids, p_fences) AS m(id, fence) WHERE m.id <> ALL (p_done)) AS r
    LEFT JOIN scheduler.jobs_active j
      ON j.id = r.id AND j.fence = r.fence AND j.worker_id = p_worker;
  END IF;
  RETURN jsonb_build_object('busy', busy, 'lost', lost);
END $$;
