-- outcomes(ids): status, result and error of jobs; an id that exists nowhere has no row. For whoever waits for results.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.outcomes(p_ids bigint[])
RETURNS TABLE (id bigint, status scheduler.job_status, result jsonb, error text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY SELECT j.id, j.status, j.result, j.error FROM scheduler.jobs j WHERE j.id = ANY (p_ids);
END $$;
