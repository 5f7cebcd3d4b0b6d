-- hold(id, fence): make the caller's transaction part of this attempt. Until it ends, nobody can take the job away; if
-- somebody has done so already, the whole transaction is refused (SQLSTATE LW001, lease lost).
-- So what a handler writes in it is written by an attempt that owned the job when it committed, or not at all. Lock it
-- first, then write. The lease may lapse meanwhile: reap leaves a held job alone and comes again. Renewals go on beside it.
-- Locks FOR KEY SHARE, and waits for whoever is ending the attempt.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.hold(p_id bigint, p_fence bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
BEGIN
  PERFORM FROM scheduler.jobs_active j WHERE j.id = p_id AND j.fence = p_fence AND j.worker_id IS NOT NULL FOR KEY SHARE;
  IF NOT FOUND THEN
    PERFORM scheduler.lease_lost(p_id, p_fence);
  END IF;
END $$;

CREATE OR REPLACE FUNCTION scheduler.lease_lost(p_id bigint, p_fence bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'LW001',
    MESSAGE = format('attempt %s of job %s no longer owns the job', p_fence & 4294967295, p_id),
    HINT = 'let this transaction roll back: the job has ended, or another attempt runs it';
END $$;
