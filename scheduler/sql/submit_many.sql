-- submit_many(jobs): insert many jobs in one statement and return their ids, in the order given; for a taken idempotency key
-- the id of the older job, which may be one of the same call. All or nothing: the first job that breaks a rule ends the call,
-- and the DETAIL of its error is its place, as in jobs[7], counted from 0.
-- jobs: [{"kind", "payload", and any option of submit}]. Ids are drawn before anything is inserted, so their order is exact.
-- One wake for all. More than 10,000 jobs end with an ANALYZE, which waits for nobody: claims are planned by what it finds.
-- Race: parents are locked first, ids ascending, and then the keys, in their order: two calls that name the same ones in
-- another order never deadlock.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.submit_many(p_jobs jsonb) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
  ids bigint[] := ARRAY(SELECT nextval('scheduler.jobs_id_seq') FROM generate_series(1, jsonb_array_length(p_jobs)));
  keyed CONSTANT boolean := jsonb_path_exists(p_jobs, '$[*].idempotency_key');
BEGIN
  PERFORM scheduler.hold_active(ARRAY(SELECT DISTINCT p::bigint
    FROM jsonb_path_query(p_jobs, '$[*].depends_on[*]') AS p WHERE jsonb_typeof(p) = 'number'));
  IF keyed THEN -- admit takes each again, for the job inserted under it
    PERFORM scheduler.take_key(k.kind, k.key, k.id, NULL) FROM (
      SELECT e.job ->> 'kind' AS kind, e.job ->> 'idempotency_key' AS key, min(e.id) AS id
      FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(ids)) AS e(job, id) GROUP BY 1, 2 ORDER BY 1, 2) AS k
    WHERE k.key IS NOT NULL;
  END IF;
  INSERT INTO scheduler.jobs OVERRIDING SYSTEM VALUE SELECT s.*
  FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(ids)) AS e(job, id) CROSS JOIN LATERAL
    scheduler.submitted_row(e.id, e.job ->> 'kind', coalesce(e.job -> 'payload', '{}'), e.job - '{kind,payload}'::text[]) AS s;
  IF keyed THEN
    ids := ARRAY(SELECT coalesce(k.job_id, e.id)
      FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(ids)) WITH ORDINALITY AS e(job, id, nr)
      LEFT JOIN scheduler.idempotency_keys k ON k.kind = e.job ->> 'kind' AND k.key = e.job ->> 'idempotency_key'
      ORDER BY e.nr);
  END IF;
  IF cardinality(ids) > 10000 THEN
    ANALYZE (SKIP_LOCKED) scheduler.jobs_active (status, queue, kind, line, rank_at, run_at);
  END IF;
  RETURN ids;
EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
  RETURN scheduler.submit_each(p_jobs); -- which of them was it?
END $$;

-- One after the other, until one is refused: its error says which.
CREATE OR REPLACE FUNCTION scheduler.submit_each(p_jobs jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  job jsonb;
  ids bigint[] := '{}';
  message text; state text; hint text; field text; rule text;
BEGIN
  FOR job IN SELECT value FROM jsonb_array_elements(p_jobs) LOOP
    ids := ids || scheduler.submit(job ->> 'kind', coalesce(job -> 'payload', '{}'), job - '{kind,payload}'::text[]);
  END LOOP;
  RETURN ids;
EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE, hint = PG_EXCEPTION_HINT, field = COLUMN_NAME,
    rule = CONSTRAINT_NAME;
  RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = format('jobs[%s]', cardinality(ids)), HINT = hint,
    SCHEMA = 'scheduler', TABLE = 'jobs', COLUMN = field, CONSTRAINT = rule;
END $$;
