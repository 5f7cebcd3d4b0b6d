-- release(worker, ids, fences): give running jobs back, to be claimed again at once; nothing is counted against them.
-- A job whose cancellation was asked for meanwhile ends CANCELLED. Returns {"lost", "busy", "parents", "became"} as settle
-- does; what is done and not in "became" is PENDING.
-- Fenced. Locks FOR UPDATE SKIP LOCKED, ids ascending.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.release(p_worker uuid, p_ids bigint[], p_fences bigint[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  done bigint[];
  endings scheduler.ending[];
  queues text[];
  parents bigint[];
  became jsonb;
BEGIN
  PERFORM scheduler.need_read_committed('release');
  WITH held AS MATERIALIZED (
    SELECT j.id, j.attempt, j.started_at, j.cancel_requested_at
    FROM unnest(p_ids, p_fences) AS r(id, fence) JOIN scheduler.jobs_active j ON j.id = r.id
    WHERE j.fence = r.fence AND j.worker_id = p_worker
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED),
  logged AS (
    INSERT INTO scheduler.attempts (job_id, attempt, worker_id, started_at, ended_at, outcome)
    SELECT h.id, h.attempt, p_worker, h.started_at, scheduler.clock(), 'released' FROM held h ON CONFLICT DO NOTHING),
  returned AS (
    UPDATE scheduler.jobs_active j SET status = 'PENDING', worker_id = NULL, lease_expires_at = NULL
    WHERE j.id = ANY (ARRAY(SELECT h.id FROM held h WHERE h.cancel_requested_at IS NULL)) RETURNING j.queue)
  SELECT coalesce(array_agg(h.id), '{}'), ARRAY(SELECT DISTINCT r.queue FROM returned r),
    array_agg(ROW(h.id, 'CANCELLED', 0, 0, NULL, NULL, NULL)::scheduler.ending) FILTER (WHERE h.cancel_requested_at IS NOT NULL),
    coalesce(jsonb_object_agg(h.id, 'CANCELLED') FILTER (WHERE h.cancel_requested_at IS NOT NULL), '{}')
  INTO done, queues, endings, became FROM held h;
  parents := scheduler.finish(endings);
  PERFORM scheduler.wake(queues);
  RETURN scheduler.missed(p_worker, p_ids, p_fences, done) || jsonb_build_object('parents', parents, 'became', became);
END $$;
