-- take_key(kind, key, job, window): reserve an idempotency key for a job; false when another job holds it.
-- A key is held while its job is unfinished, and until its window ends. A key whose job exists nowhere is free: its insert
-- came to nothing after the trigger had run.
-- Race: the holder may be another transaction's. The INSERT waits for it; then the key's row is locked, and only a later
-- statement, whose snapshot is new, looks for its job (in the same statement the committed job is invisible).
-- In REPEATABLE READ a taken key is a serialization failure (40001).
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.take_key(p_kind text, p_key text, p_job bigint, p_window interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
  held scheduler.idempotency_keys;
  expires timestamptz;
BEGIN
  LOOP
    expires := scheduler.clock() + coalesce(p_window, '24 hours');
    INSERT INTO scheduler.idempotency_keys VALUES (p_kind, p_key, p_job, expires) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN true;
    END IF;
    SELECT * INTO held FROM scheduler.idempotency_keys k WHERE k.kind = p_kind AND k.key = p_key FOR UPDATE;
    IF FOUND THEN
      IF EXISTS (SELECT FROM scheduler.jobs_active j WHERE j.id = held.job_id) OR held.expires_at > scheduler.clock()
         AND EXISTS (SELECT FROM scheduler.jobs_finished j WHERE j.id = held.job_id) THEN
        RETURN false;
      END IF;
      UPDATE scheduler.idempotency_keys k SET job_id = p_job, expires_at = expires WHERE k.kind = p_kind AND k.key = p_key;
      RETURN true;
    END IF;
  END LOOP;
END $$;
