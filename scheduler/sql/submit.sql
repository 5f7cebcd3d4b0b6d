-- submit(kind, payload, options): insert one job and return its id; for a taken idempotency key, the id of the older job.
-- options has the other columns a submitter may set, and delay (an interval) instead of run_at. An option that does not
-- exist, or is of another type, is refused. Only what is given is written: defaults belong to the kind.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.submit(p_kind text, p_payload jsonb DEFAULT '{}', p_options jsonb DEFAULT '{}')
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  o jsonb := coalesce(p_options, '{}');
  wrong record;
  new_id bigint;
BEGIN
  SELECT given.key, known.type INTO wrong FROM jsonb_each(o) AS given LEFT JOIN jsonb_each_text('{"queue": "string",
    "priority": "number", "tenant": "string", "run_at": "string", "delay": "string", "depends_on": "array",
    "on_parent_failure": "string", "idempotency_key": "string", "unique_key": "string", "max_attempts": "number",
    "max_crashes": "number", "timeout": "string", "retry_base": "string", "retry_cap": "string", "retry_jitter": "boolean",
    "metadata": "object"}') AS known(key, type) USING (key)
  WHERE known.type IS NULL OR jsonb_typeof(given.value) NOT IN (known.type, 'null') ORDER BY given.key LIMIT 1;
  IF FOUND THEN
    PERFORM scheduler.refuse(wrong.key, coalesce('must be a JSON ' || wrong.type, 'is no option of submit'),
      'options are the columns of scheduler.jobs that a submitter may set, and delay; times and durations are strings');
  ELSIF o ? 'delay' AND o ? 'run_at' THEN
    PERFORM scheduler.refuse('delay', 'contradicts run_at', 'give one of the two');
  END IF;
  LOOP
    INSERT INTO scheduler.jobs (kind, payload, queue, priority, tenant, run_at, depends_on, on_parent_failure,
      idempotency_key, unique_key, max_attempts, max_crashes, timeout, retry_base, retry_cap, retry_jitter, metadata)
    VALUES (p_kind, p_payload, o ->> 'queue', (o ->> 'priority')::smallint, coalesce(o ->> 'tenant', ''),
      coalesce((o ->> 'run_at')::timestamptz, scheduler.clock() + (o ->> 'delay')::interval),
      ARRAY(SELECT p::bigint FROM jsonb_array_elements_text(coalesce(nullif(o -> 'depends_on', 'null'), '[]')) AS p),
      coalesce(o ->> 'on_parent_failure', 'cancel'), o ->> 'idempotency_key', o ->> 'unique_key',
      (o ->> 'max_attempts')::int, (o ->> 'max_crashes')::int, (o ->> 'timeout')::interval,
      (o ->> 'retry_base')::interval, (o ->> 'retry_cap')::interval, (o ->> 'retry_jitter')::boolean,
      coalesce(nullif(o -> 'metadata', 'null'), '{}'))
    RETURNING id INTO new_id;
    IF new_id IS NULL THEN -- in a later statement, whose snapshot sees the holder
      SELECT k.job_id INTO new_id FROM scheduler.idempotency_keys k
      WHERE k.kind = p_kind AND k.key = o ->> 'idempotency_key';
    END IF;
    EXIT WHEN new_id IS NOT NULL; -- else the key is free now
  END LOOP;
  RETURN new_id;
END $$;
