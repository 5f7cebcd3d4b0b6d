-- list_jobs(filter): jobs newest first, as JSON without payload and result.
-- filter: {"status": [..], "kind", "queue", "tenant", "before": id, "limit": n}; an unknown key is refused.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.list_jobs(p_filter jsonb DEFAULT '{}') RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE unknown text;
BEGIN
  SELECT k INTO unknown FROM jsonb_object_keys(p_filter) AS k
  WHERE k NOT IN ('status', 'kind', 'queue', 'tenant', 'before', 'limit') LIMIT 1;
  IF unknown IS NOT NULL THEN
    PERFORM scheduler.refuse(unknown, 'is no filter of list_jobs', 'use status, kind, queue, tenant, before or limit');
  END IF;
  RETURN QUERY
    SELECT scheduler.job_facts(j) FROM scheduler.jobs j
    WHERE (p_filter -> 'status' IS NULL OR p_filter -> 'status' @> to_jsonb(j.status::text))
      AND (p_filter ->> 'kind' IS NULL OR j.kind = p_filter ->> 'kind')
      AND (p_filter ->> 'queue' IS NULL OR j.queue = p_filter ->> 'queue')
      AND (p_filter ->> 'tenant' IS NULL OR j.tenant = p_filter ->> 'tenant')
      AND (p_filter ->> 'before' IS NULL OR j.id < (p_filter ->> 'before')::bigint)
    ORDER BY j.id DESC LIMIT coalesce((p_filter ->> 'limit')::int, 50);
END $$;

-- What every listing shows of a job; payload and result may be secrets and stay out.
CREATE OR REPLACE FUNCTION scheduler.job_facts(p_job scheduler.jobs) RETURNS jsonb
LANGUAGE sql AS $$
  SELECT jsonb_strip_nulls(to_jsonb(p_job) - ARRAY['payload', 'result', 'line', 'request', 'rank_at'])
$$;
