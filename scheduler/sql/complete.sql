-- complete(id, fence, result): record in the caller's transaction that the job completed. What the transaction writes and
-- the end of the job become true together, or neither does: exactly once, whatever is lost afterwards.
-- Refuses the whole transaction when the attempt no longer owns the job (SQLSTATE LW001), and a result over 64 kB.
-- From this call on the attempt never settles 'completed': should a failover lose the transaction, the claim may still stand
-- on the new primary, and such a settlement would complete the job there without what was written. However the attempt ends,
-- committed or not or not known, settle it as failed (or what it is), error_type NotCommitted say. If the transaction has
-- committed that changes nothing: became is COMPLETED, and parents name it for resolve. While it is open the answer is busy.
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
