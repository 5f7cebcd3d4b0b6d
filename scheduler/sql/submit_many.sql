-- submit_many(jobs): insert many jobs in one statement and return their ids, in the order given; for a taken key the id of the
-- job that has it, which may be one of the same call. All or nothing: the first job that breaks a rule ends the call,
-- and the DETAIL of its error is its place, as in jobs[7], counted from 0.
-- jobs: [{"kind", "payload", "parents", and any option of submit}]; parents: {name: place} of earlier jobs of this call that this
-- one depends on, by the names that it shall see them by.
-- Ids are drawn before anything is inserted, so their order is exact; where a job has a unique_key they go in one by one.
-- One wake for all. More than 10,000 jobs end with an ANALYZE, which waits for nobody: claims are planned by what it finds.
-- Race: batches are locked first, then the keys, in their order, then parents, ids ascending: two calls that name the same
-- ones in another order never deadlock. Unique keys are locked by a sixty-fourth of them at a time.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.submit_many(p_jobs jsonb) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (scheduler.insert_jobs(p_jobs)).ids;
END $$;

-- submit_graph(jobs): as submit_many, and tell what became of each: {"ids": [ids, in the order given], "older": [those that
-- a taken key stands for, and that were there before], "running": [of these, those that run]}.
CREATE OR REPLACE FUNCTION scheduler.submit_graph(p_jobs jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (SELECT to_jsonb(i) FROM scheduler.insert_jobs(p_jobs) AS i);
END $$;

CREATE OR REPLACE FUNCTION scheduler.insert_jobs(p_jobs jsonb, OUT ids bigint[], OUT older bigint[], OUT running bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
  drawn bigint[] := ARRAY(SELECT nextval('scheduler.jobs_id_seq') FROM generate_series(1, jsonb_array_length(p_jobs)));
  keyed CONSTANT boolean := jsonb_path_exists(p_jobs, '$[*].idempotency_key');
BEGIN
  PERFORM scheduler.hold_batches(p_jobs);
  IF jsonb_path_exists(p_jobs, '$[*].unique_key ? (@ != null)') THEN
    PERFORM pg_advisory_xact_lock(716251359, u.bucket) FROM (
      SELECT DISTINCT hashtext(e.job ->> 'unique_key') & 63 AS bucket FROM jsonb_array_elements(p_jobs) AS e(job)
      WHERE e.job ->> 'unique_key' IS NOT NULL ORDER BY 1) AS u;
    SELECT * INTO ids, older, running FROM scheduler.submit_each(p_jobs);
    RETURN;
  END IF;
  ids := drawn;
  IF keyed THEN -- admit takes each again, for the job inserted under it
    PERFORM scheduler.take_key(k.kind, k.key, k.id, NULL) FROM (
      SELECT e.job ->> 'kind' AS kind, e.job ->> 'idempotency_key' AS key, min(e.id) AS id
      FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(drawn)) AS e(job, id) GROUP BY 1, 2 ORDER BY 1, 2) AS k
    WHERE k.key IS NOT NULL;
    ids := ARRAY(SELECT coalesce(k.job_id, e.id)
      FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(drawn)) WITH ORDINALITY AS e(job, id, nr)
      LEFT JOIN scheduler.idempotency_keys k ON k.kind = e.job ->> 'kind' AND k.key = e.job ->> 'idempotency_key'
      ORDER BY e.nr);
    older := ARRAY(SELECT DISTINCT i FROM unnest(ids) AS i EXCEPT SELECT unnest(drawn));
  END IF;
  PERFORM scheduler.hold_active(ARRAY(SELECT DISTINCT p::bigint
    FROM jsonb_path_query(p_jobs, '$[*].depends_on[*]') AS p WHERE jsonb_typeof(p) = 'number') || older);
  INSERT INTO scheduler.jobs OVERRIDING SYSTEM VALUE SELECT s.*
  FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(drawn)) AS e(job, id) CROSS JOIN LATERAL
    scheduler.submitted_row(e.id, e.job ->> 'kind', coalesce(e.job -> 'payload', '{}'), scheduler.options_of(e.job, ids)) AS s;
  older := coalesce(older, '{}');
  running := ARRAY(SELECT j.id FROM scheduler.jobs_active j WHERE j.id = ANY (older) AND j.worker_id IS NOT NULL);
  PERFORM scheduler.join_batch(m.batch, m.members, older) FROM (
    SELECT (e.job ->> 'member_of')::bigint AS batch, array_agg(e.id) AS members
    FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(ids)) AS e(job, id)
    WHERE e.job ->> 'member_of' IS NOT NULL GROUP BY 1 ORDER BY 1) AS m;
  PERFORM scheduler.name_parents(p_jobs, ids);
  IF cardinality(ids) > 10000 THEN
    ANALYZE (SKIP_LOCKED) scheduler.jobs_active (status, queue, kind, line, rank_at, run_at);
  END IF;
EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
  SELECT * INTO ids, older, running FROM scheduler.submit_each(p_jobs); -- which of them was it?
END $$;

-- One after the other, until one is refused: its error says which.
CREATE OR REPLACE FUNCTION scheduler.submit_each(p_jobs jsonb, OUT ids bigint[], OUT older bigint[], OUT running bigint[])
LANGUAGE plpgsql AS $$
DECLARE
  job jsonb;
  one record;
  made bigint[] := '{}';
  message text; state text; hint text; field text; rule text;
BEGIN
  SELECT '{}', '{}', '{}' INTO ids, older, running;
  FOR job IN SELECT value FROM jsonb_array_elements(p_jobs) LOOP
    SELECT * INTO one FROM scheduler.submit_one(job ->> 'kind', coalesce(job -> 'payload', '{}'), scheduler.options_of(job, ids));
    ids := ids || one.id;
    IF one.created THEN
      made := made || one.id;
    ELSIF one.id <> ALL (made) THEN
      older := older || one.id;
      running := running || CASE WHEN one.running THEN ARRAY[one.id] END;
    END IF;
  END LOOP;
  PERFORM scheduler.name_parents(p_jobs, ids);
EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE, hint = PG_EXCEPTION_HINT, field = COLUMN_NAME,
    rule = CONSTRAINT_NAME;
  RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, DETAIL = format('jobs[%s]', cardinality(ids)), HINT = hint,
    SCHEMA = 'scheduler', TABLE = 'jobs', COLUMN = field, CONSTRAINT = rule;
END $$;

-- The options of one entry, in which places are ids. What names itself or a later one names a job that is not there yet.
CREATE OR REPLACE FUNCTION scheduler.options_of(p_job jsonb, p_ids bigint[]) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE parents jsonb;
BEGIN
  IF NOT p_job ? 'parents' THEN
    RETURN p_job - '{kind,payload}'::text[];
  END IF;
  parents := (SELECT coalesce(jsonb_agg(p_ids[p.place::int + 1]), '[]') FROM jsonb_each_text(p_job -> 'parents') AS p(name, place));
  IF parents @> '[null]' THEN
    PERFORM scheduler.refuse('parents', 'must be the places of earlier jobs', 'put parents before their children; places count from 0');
  END IF;
  RETURN p_job - '{kind,payload,parents}'::text[] || jsonb_build_object('depends_on', coalesce(p_job -> 'depends_on', '[]') || parents);
END $$;

CREATE OR REPLACE FUNCTION scheduler.name_parents(p_jobs jsonb, p_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE scheduler.dependencies d SET name = n.name FROM (
    SELECT e.id AS child, p_ids[p.place::int + 1] AS parent, p.name
    FROM ROWS FROM (jsonb_array_elements(p_jobs), unnest(p_ids)) AS e(job, id)
    CROSS JOIN LATERAL jsonb_each_text(e.job -> 'parents') AS p(name, place)) AS n
  WHERE d.parent = n.parent AND d.child = n.child;
END $$;
