-- list_jobs(filters): jobs newest first, as JSON without payload and result.
-- filters: {"status": [..], "kind", "queue", "tenant", "error": text that the error contains, in capitals or not, "older_than" and
-- "newer_than": seconds since it was submitted, "before": id, "limit": n}. One that does not exist, or is of another type, is
-- refused.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.list_jobs(p_filters jsonb DEFAULT '{}') RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE ids bigint[] := ARRAY(SELECT m.id FROM scheduler.matching(p_filters, 50) AS m);
BEGIN
  RETURN QUERY SELECT scheduler.job_facts(j) FROM scheduler.jobs j WHERE j.id = ANY (ids) ORDER BY j.id DESC;
END $$;

-- count_jobs(filters): how many jobs match, by status: {"FAILED": 12}. It reads them all unless a limit is given.
CREATE OR REPLACE FUNCTION scheduler.count_jobs(p_filters jsonb DEFAULT '{}') RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (SELECT coalesce(jsonb_object_agg(c.status, c.n), '{}')
    FROM (SELECT m.status, count(*) AS n FROM scheduler.matching(p_filters, NULL) AS m GROUP BY m.status) AS c);
END $$;

-- job_ids(filters): the ids of matching jobs, newest first, a thousand unless a limit is given: for verbs that take ids.
CREATE OR REPLACE FUNCTION scheduler.job_ids(p_filters jsonb DEFAULT '{}') RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN ARRAY(SELECT m.id FROM scheduler.matching(p_filters, 1000) AS m ORDER BY m.id DESC);
END $$;

-- Planned for the values at hand: a status that is given leaves one partition out.
CREATE OR REPLACE FUNCTION scheduler.matching(p_filters jsonb, p_limit int)
RETURNS TABLE (id bigint, status scheduler.job_status) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
  moment timestamptz := scheduler.clock();
  statuses scheduler.job_status[];
BEGIN
  p_filters := scheduler.read_options(p_filters, '{"status": "array", "kind": "string", "queue": "string", "tenant": "string",
    "error": "string", "older_than": "number", "newer_than": "number", "before": "number", "limit": "number"}', 'filter');
  statuses := (SELECT array_agg(s::scheduler.job_status) FROM jsonb_array_elements_text(p_filters -> 'status') AS s);
  RETURN QUERY
    SELECT j.id, j.status FROM scheduler.jobs j
    WHERE (statuses IS NULL OR j.status = ANY (statuses))
      AND (p_filters ->> 'kind' IS NULL OR j.kind = p_filters ->> 'kind')
      AND (p_filters ->> 'queue' IS NULL OR j.queue = p_filters ->> 'queue')
      AND (p_filters ->> 'tenant' IS NULL OR j.tenant = p_filters ->> 'tenant')
      AND (p_filters ->> 'error' IS NULL OR strpos(lower(j.error), lower(p_filters ->> 'error')) > 0)
      AND (p_filters ->> 'older_than' IS NULL OR j.submitted_at <= moment - make_interval(secs => (p_filters ->> 'older_than')::float8))
      AND (p_filters ->> 'newer_than' IS NULL OR j.submitted_at >= moment - make_interval(secs => (p_filters ->> 'newer_than')::float8))
      AND (p_filters ->> 'before' IS NULL OR j.id < (p_filters ->> 'before')::bigint)
    ORDER BY j.id DESC LIMIT coalesce((p_filters ->> 'limit')::int, p_limit);
END $$;

-- What every listing shows of a job; payload and result may be secrets and stay out.
CREATE OR REPLACE FUNCTION scheduler.job_facts(p_job scheduler.jobs) RETURNS jsonb
LANGUAGE sql AS $$
  SELECT jsonb_strip_nulls(to_jsonb(p_job) - ARRAY['payload', 'result', 'line', 'request', 'rank_at'])
$$;
