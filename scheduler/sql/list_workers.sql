-- list_workers(): the worker processes at a glance, one JSON object each, the oldest first.
-- {"id", "host", "pid", "version", "queues": [..], "kinds": how many, "slots": {executor: n}, "running", "age" and "seen": seconds
-- since it started and since its last sign of life, "sleeping", "draining", "abandoned": how many handlers of ended attempts
-- it could not stop, "dead": not seen for a minute}
-- callers: viewer, operator
CREATE OR REPLACE FUNCTION scheduler.list_workers() RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE moment timestamptz := scheduler.clock();
BEGIN
  RETURN QUERY
    WITH busy AS MATERIALIZED (
      SELECT j.worker_id, count(*) AS running FROM scheduler.jobs_active j WHERE j.status = 'RUNNING' GROUP BY j.worker_id)
    SELECT to_jsonb(w) - ARRAY['channel', 'started_at', 'seen_at'] || jsonb_build_object('kinds', cardinality(w.kinds),
      'running', coalesce(b.running, 0), 'age', extract(epoch FROM moment - w.started_at)::float8,
      'seen', extract(epoch FROM moment - w.seen_at)::float8, 'dead', w.seen_at < moment - interval '1 minute')
    FROM scheduler.workers w LEFT JOIN busy b ON b.worker_id = w.id ORDER BY w.started_at, w.id;
END $$;
