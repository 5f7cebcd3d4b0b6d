-- upsert_schedule(name, definition, declared, force): make a recurring schedule, or give the one of that name another definition.
-- definition: {"kind", "payload", "cron", "time_zone", "every", "mode", "overlap", "misfire", "backfill_limit", "jitter", "starts_at",
-- "ends_at", "priority", "tenant", "unique_key"}; kind, and cron or every, are needed. Durations are numbers of seconds, or intervals
-- as text; times have a zone. What is left out has its default; starts_at stays as it was. Returns {"id", "version", "change": created,
-- changed, same or superseded}. A worker computes next_fire in a moment, or records why it cannot in `error`.
-- declared: it stands beside the code, and comes again at every start. Of such the newest wins: one that was superseded changes nothing
-- unless forced, so two versions in a rolling deploy do not take turns; and a pause stays.
-- Race: an edit grows `version`, under the lock of the row: a fire in progress is either before it, or changes nothing.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.upsert_schedule(
  p_name text, p_definition jsonb, p_declared boolean DEFAULT false, p_force boolean DEFAULT false)
RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  state CONSTANT text[] := '{id,paused,next_fire,last_fire,last_job,skipped,version,declared,error}';
  types CONSTANT jsonb := '{"kind": "string", "payload": "object", "cron": "string", "time_zone": "string", "every": "number or string",
    "mode": "string", "overlap": "string", "misfire": "string", "backfill_limit": "number", "jitter": "number or string",
    "starts_at": "instant", "ends_at": "instant", "priority": "number", "tenant": "string", "unique_key": "string"}';
  given jsonb;
  rule text;
  known scheduler.schedules;
  new scheduler.schedules;
BEGIN
  SELECT * INTO known FROM scheduler.schedules s WHERE s.name = p_name;
  IF p_declared AND p_definition = known.declared -> 0 THEN -- nearly always: no lock
    RETURN jsonb_build_object('id', known.id, 'version', known.version, 'change', 'same');
  END IF;
  given := scheduler.read_options(p_definition, types, 'option of a schedule');
  IF extract(month FROM (given ->> 'every')::interval) <> 0 OR extract(year FROM (given ->> 'every')::interval) <> 0 THEN
    PERFORM scheduler.refuse('every', 'must not count months', 'use cron, as in 0 0 1 * *');
  END IF;
  PERFORM scheduler.check_submitted(scheduler.submitted_row(0, given ->> 'kind', coalesce(given -> 'payload', '{}'),
    jsonb_strip_nulls((SELECT jsonb_object_agg(o, given -> o) FROM unnest('{priority,tenant,unique_key}'::text[]) AS o))));
  new := jsonb_populate_record(NULL::scheduler.schedules, jsonb_build_object('payload', '{}'::jsonb, 'tenant', '', 'time_zone', 'UTC',
    'mode', CASE WHEN given ? 'cron' THEN 'cron' ELSE 'fixed_rate' END, 'jitter', 0, 'overlap', 'skip', 'misfire', 'coalesce',
    'backfill_limit', 100, 'starts_at', coalesce(known.starts_at,
      least(scheduler.clock(), CASE WHEN p_declared THEN (given ->> 'ends_at')::timestamptz - interval '1 s' END)), -- it may have ended
    'paused', false, 'skipped', 0, 'version', 1) || given);
  new.every := make_interval(secs => extract(epoch FROM new.every)::float8); -- a day has 24 hours
  new.name := p_name;
  new.id := nextval('scheduler.schedules_id_seq');
  new.declared := CASE WHEN p_declared THEN jsonb_build_array(p_definition) ELSE '[]' END;
  INSERT INTO scheduler.schedules OVERRIDING SYSTEM VALUE VALUES (new.*) ON CONFLICT (name) DO NOTHING;
  IF FOUND THEN
    RETURN jsonb_build_object('id', new.id, 'version', 1, 'change', 'created');
  END IF;
  SELECT * INTO STRICT known FROM scheduler.schedules s WHERE s.name = p_name FOR UPDATE;
  IF p_declared AND NOT p_force AND p_definition IN (SELECT value FROM jsonb_array_elements(known.declared)) THEN
    RETURN jsonb_build_object('id', known.id, 'version', known.version,
      'change', CASE WHEN p_definition = known.declared -> 0 THEN 'same' ELSE 'superseded' END);
  END IF;
  IF NOT given ? 'starts_at' THEN
    new.starts_at := known.starts_at;
  END IF;
  UPDATE scheduler.schedules s
  SET declared = CASE WHEN p_declared THEN scheduler.newest_first(p_definition, s.declared) ELSE s.declared END,
    kind = new.kind, payload = new.payload, tenant = new.tenant, priority = new.priority, unique_key = new.unique_key,
    mode = new.mode, cron = new.cron, time_zone = new.time_zone, every = new.every, starts_at = new.starts_at,
    ends_at = new.ends_at, jitter = new.jitter, overlap = new.overlap, misfire = new.misfire,
    backfill_limit = new.backfill_limit, error = NULL,
    next_fire = CASE WHEN ROW(s.mode, s.cron, s.time_zone, s.every, s.starts_at)
      IS NOT DISTINCT FROM ROW(new.mode, new.cron, new.time_zone, new.every, new.starts_at) THEN s.next_fire END,
    version = s.version + CASE WHEN to_jsonb(known) - state = to_jsonb(new) - state AND s.error IS NULL THEN 0 ELSE 1 END
  WHERE s.id = known.id RETURNING s.* INTO new;
  RETURN jsonb_build_object('id', new.id, 'version', new.version,
    'change', CASE WHEN new.version = known.version THEN 'same' ELSE 'changed' END);
EXCEPTION WHEN check_violation THEN -- of the table: its own detail would print the row, payload included
  GET STACKED DIAGNOSTICS rule = CONSTRAINT_NAME;
  IF rule = '' THEN
    RAISE;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'check_violation', SCHEMA = 'scheduler', TABLE = 'schedules', CONSTRAINT = rule, MESSAGE = rule;
END $$;

-- delete_schedule(name): delete a schedule; its jobs stay. Returns whether there was one. A declared one comes back at the next start.
CREATE OR REPLACE FUNCTION scheduler.delete_schedule(p_name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM scheduler.schedules s WHERE s.name = p_name;
  RETURN FOUND;
END $$;
