-- list_queues(): the queues at a glance, one JSON object each.
-- {"queue": null for jobs of kinds nobody has declared, "blocked", "delayed", "pending", "running", "oldest": seconds the oldest
-- pending job has waited, "workers": seen within a minute, "paused", "paused_for": seconds or null, "paused_by", "ordering",
-- "keep_completed", "keep_failed": seconds}. It reads what is unfinished, never what has ended.
-- callers: viewer, operator
CREATE OR REPLACE FUNCTION scheduler.list_queues() RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE moment timestamptz := scheduler.clock();
BEGIN
  RETURN QUERY
    WITH depth AS MATERIALIZED (
      SELECT j.queue, jsonb_build_object('blocked', count(*) FILTER (WHERE j.status = 'BLOCKED'),
        'delayed', count(*) FILTER (WHERE j.status = 'DELAYED'), 'pending', count(*) FILTER (WHERE j.status = 'PENDING'),
        'running', count(*) FILTER (WHERE j.status = 'RUNNING'), 'oldest', extract(epoch FROM moment -
          min(greatest(j.run_at, j.submitted_at)) FILTER (WHERE j.status = 'PENDING'))::float8) AS counts
      FROM scheduler.jobs_active j GROUP BY j.queue)
    SELECT '{"blocked": 0, "delayed": 0, "pending": 0, "running": 0, "oldest": null}' || coalesce(d.counts, '{}')
      || jsonb_build_object('queue', n.queue, 'ordering', coalesce(q.ordering, 'aging'), 'workers', (
          SELECT count(*) FROM scheduler.workers w WHERE n.queue = ANY (w.queues) AND w.seen_at > moment - interval '1 minute'),
        'keep_completed', extract(epoch FROM scheduler.keep_of(n.queue, 'COMPLETED'))::float8,
        'keep_failed', extract(epoch FROM scheduler.keep_of(n.queue, 'FAILED'))::float8)
      || scheduler.pause_facts(q.paused_until, q.paused_by, moment)
    FROM (SELECT q.queue FROM scheduler.queues q UNION SELECT k.queue FROM scheduler.kinds k WHERE k.queue IS NOT NULL
      UNION SELECT unnest(w.queues) FROM scheduler.workers w UNION SELECT d.queue FROM depth d) AS n
    LEFT JOIN depth d ON d.queue IS NOT DISTINCT FROM n.queue LEFT JOIN scheduler.queues q ON q.queue = n.queue ORDER BY n.queue;
END $$;

-- The end of a pause in seconds: infinity is no time that every driver can read.
CREATE OR REPLACE FUNCTION scheduler.pause_facts(p_until timestamptz, p_by text, p_moment timestamptz) RETURNS jsonb
LANGUAGE sql AS $$
  SELECT jsonb_build_object('paused', p_until > p_moment IS TRUE, 'paused_by', CASE WHEN p_until > p_moment THEN p_by END,
    'paused_for', CASE WHEN p_until > p_moment AND p_until < 'infinity' THEN extract(epoch FROM p_until - p_moment)::float8 END)
$$;
