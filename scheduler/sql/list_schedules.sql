-- list_schedules(): the recurring schedules, one JSON object each: the columns of scheduler.schedules but payload, unique_key and
-- declared, durations in seconds, and "unfinished": how many of its jobs are.
-- callers: viewer, operator
CREATE OR REPLACE FUNCTION scheduler.list_schedules() RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  RETURN QUERY
    SELECT to_jsonb(s) - '{payload,unique_key,declared}'::text[] || jsonb_build_object('every', extract(epoch FROM s.every)::float8,
      'jitter', extract(epoch FROM s.jitter)::float8,
      'unfinished', (SELECT count(*) FROM scheduler.jobs_active j WHERE j.schedule_id = s.id))
    FROM scheduler.schedules s ORDER BY s.name;
END $$;
