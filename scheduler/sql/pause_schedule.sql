-- pause_schedule(name, paused): let a schedule fire no more, or, with paused false, again, also after an error. Its jobs go on. What
-- it would have fired meanwhile is not made up for. Returns whether it stood still before.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.pause_schedule(p_name text, p_paused boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  known scheduler.schedules := scheduler.hold_schedule(p_name);
  stood_still CONSTANT boolean := known.paused OR known.error IS NOT NULL;
BEGIN
  UPDATE scheduler.schedules s SET paused = p_paused, error = CASE WHEN p_paused THEN s.error END,
    next_fire = CASE WHEN p_paused OR NOT stood_still THEN s.next_fire END,
    version = s.version + (NOT p_paused AND stood_still)::int -- what was computed before counts no more
  WHERE s.id = known.id;
  RETURN stood_still;
END $$;

-- run_schedule(name): make one job of a schedule now, also while it is paused and whatever else of it runs. Returns its id, its
-- fire_time is now; null when the unique_key is taken. The times of the schedule stay.
CREATE OR REPLACE FUNCTION scheduler.run_schedule(p_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  known scheduler.schedules := scheduler.hold_schedule(p_name);
  job bigint;
BEGIN
  INSERT INTO scheduler.jobs (kind, payload, tenant, priority, unique_key, schedule_id, fire_time)
  VALUES (known.kind, known.payload, known.tenant, known.priority, known.unique_key, known.id, scheduler.clock())
  ON CONFLICT DO NOTHING RETURNING id INTO job;
  UPDATE scheduler.schedules s SET last_job = coalesce(job, s.last_job) WHERE s.id = known.id;
  RETURN job;
END $$;

CREATE OR REPLACE FUNCTION scheduler.hold_schedule(p_name text) RETURNS scheduler.schedules LANGUAGE plpgsql AS $$
DECLARE known scheduler.schedules;
BEGIN
  SELECT * INTO known FROM scheduler.schedules s WHERE s.name = p_name FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM scheduler.refuse('name', format('%L is that of no schedule', p_name), '`scheduler schedules` lists what there is');
  END IF;
  RETURN known;
END $$;
