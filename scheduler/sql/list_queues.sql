-- list_queues(): the queues at a glance, one JSON object each.
-- {"queue": null for jobs of kinds nobody has declared, "blocked", "delayed", "pending", "running", "oldest": seconds the oldest
-- pending job has waited, "workers": that serve it and were seen within a minute, "paused", "paused_for": seconds or null,
-- "paused_by", "ordering", "keep_completed", "keep_failed": seconds}. It reads what is unfinished, never what has ended.
-- callers: viewer, operator
CREATE OR REPLACE FUNCTION scheduler.list_queues() RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE moment timestamptz := scheduler.clock();
BEGIN
  RETURN QUERY
    WITH depth AS MATERIALIZED (
      SELECT j.queue, count(*) FILTER (WHERE j.status = 'BLOCKED') AS blocked,
        count(*) FILTER (WHERE j.status = 'DELAYED') AS delayed, count(*) FILTER (WHERE j.status = 'PENDING') AS pending,
        count(*) FILTER (WHERE j.status = 'RUNNING') AS running,
        min(greatest(j.run_at, j.submitted_at)) FILTER (WHERE j.status = 'PENDING') AS since
      FROM scheduler.jobs_active j GROUP BY j.queue),
    served AS MATERIALIZED (
      SELECT s.queue, count(*) AS workers FROM scheduler.workers w CROSS JOIN unnest(w.queues) AS s(queue)
      WHERE w.seen_at > moment - interval '1 minute' GROUP BY s.queue),
    named AS (
      SELECT q.queue FROM scheduler.queues q UNION SELECT k.queue FROM scheduler.kinds k WHERE k.queue IS NOT NULL
      UNION SELECT d.queue FROM depth d UNION SELECT s.queue FROM served s)
    SELECT jsonb_build_object('queue', n.queue, 'blocked', coalesce(d.blocked, 0), 'delayed', coalesce(d.delayed, 0),
      'pending', coalesce(d.pending, 0), 'running', coalesce(d.running, 0), 'oldest', extract(epoch FROM moment - d.since)::float8,
      'workers', coalesce(s.workers, 0), 'ordering', coalesce(q.ordering, 'aging'),
      'keep_completed', extract(epoch FROM scheduler.keep_of(n.queue, 'COMPLETED')),
      'keep_failed', extract(epoch FROM scheduler.keep_of(n.queue, 'FAILED')))
      || scheduler.pause_facts(q.paused_until, q.paused_by, moment)
    FROM named n LEFT JOIN depth d ON d.queue IS NOT DISTINCT FROM n.queue LEFT JOIN served s ON s.queue = n.queue
    LEFT JOIN scheduler.queues q ON q.queue = n.queue ORDER BY n.queue;
END $$;

-- The end of a pause in seconds, as infinity is no time that every driver can read.
CREATE OR REPLACE FUNCTION scheduler.pause_facts(p_until timestamptz, p_by text, p_moment timestamptz) RETURNS jsonb
LANGUAGE sql AS $$
  SELECT jsonb_build_object('paused', p_until > p_moment IS TRUE,
    'paused_for', CASE WHEN p_until > p_moment AND p_until < 'infinity' THEN extract(epoch FROM p_until - p_moment)::float8 END,
    'paused_by', CASE WHEN p_until > p_moment THEN p_by END)
$$;
