-- complete(id, fence, result): record in the caller's transaction that the job completed. What the transaction writes and
-- the end of the job become true together, or neither does: exactly once, whatever is lost afterwards.
-- Refuses the whole transaction when the attempt no longer owns the job (SQLSTATE LW001), and a result over 64 kB.
-- Once it has committed call resolve(ARRAY[id]), and do not settle the attempt: should a failover lose this transaction, the
-- claim may still stand on the new primary, and a settlement would complete the job there without what was written.
-- Locks FOR UPDATE, and waits for whoever holds the row; a transaction completes one job, after hold().
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.complete(p_id bigint, p_fence bigint, p_result jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE worker uuid;
BEGIN
  PERFORM scheduler.need_read_committed('complete');
  IF octet_length(p_result::text) > 65536 THEN
    PERFORM scheduler.refuse('result', 'is over 64 kB', 'store it elsewhere and return a reference');
  END IF;
  SELECT j.worker_id INTO worker FROM scheduler.jobs_active j
  WHERE j.id = p_id AND j.fence = p_fence AND j.worker_id IS NOT NULL FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM scheduler.lease_lost(p_id, p_fence);
  END IF;
  PERFORM scheduler.mark_ended(done) FROM scheduler.settle_completed(worker, jsonb_build_array(jsonb_build_object(
    'id', p_id, 'fence', p_fence, 'outcome', 'completed', 'result', p_result)));
END $$;
