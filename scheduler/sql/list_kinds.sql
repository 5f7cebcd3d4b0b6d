-- list_kinds(): the kinds at a glance, one JSON object each.
-- {"kind", "queue", "executor", "seen": seconds since its options were last declared anew, null while nobody has declared it,
-- "waiting", "running", "workers": seen within a minute, "paused", "paused_for": seconds or null, "paused_by"}
-- callers: viewer, operator
CREATE OR REPLACE FUNCTION scheduler.list_kinds() RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE moment timestamptz := scheduler.clock();
BEGIN
  RETURN QUERY
    WITH depth AS MATERIALIZED (
      SELECT j.kind, count(*) FILTER (WHERE j.status <> 'RUNNING') AS waiting, count(*) FILTER (WHERE j.status = 'RUNNING') AS running
      FROM scheduler.jobs_active j GROUP BY j.kind)
    SELECT jsonb_build_object('kind', k.kind, 'queue', k.queue, 'executor', k.executor,
      'seen', extract(epoch FROM moment - k.seen_at)::float8, 'waiting', coalesce(d.waiting, 0), 'running', coalesce(d.running, 0),
      'workers', (SELECT count(*) FROM scheduler.workers w WHERE k.kind = ANY (w.kinds) AND w.seen_at > moment - interval '1 minute'))
      || scheduler.pause_facts(k.paused_until, k.paused_by, moment)
    FROM scheduler.kinds k LEFT JOIN depth d ON d.kind = k.kind ORDER BY k.kind;
END $$;
