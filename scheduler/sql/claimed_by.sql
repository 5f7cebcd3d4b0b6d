-- claimed_by(worker, request): the jobs that one claim call took and that still run, in the shape of claim.
-- For a worker whose reply to claim was lost: nothing is claimed twice, nothing waits for its lease to lapse.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.claimed_by(p_worker uuid, p_request uuid) RETURNS SETOF scheduler.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY
    SELECT j.id, j.fence, j.kind, j.queue, j.tenant, j.payload, j.attempt, j.failures, j.max_attempts,
      extract(epoch FROM j.timeout)::float8, j.idempotency_key, nullif(j.metadata, '{}'), NULL::boolean, NULL::float8,
      CASE WHEN j.depends_on <> '{}' THEN scheduler.parents_for_claim(j.id) END, extract(epoch FROM j.fire_time)::float8
    FROM scheduler.jobs_active j
    WHERE j.status = 'RUNNING' AND j.worker_id = p_worker AND j.request = p_request ORDER BY j.rank_at, j.id;
END $$;
