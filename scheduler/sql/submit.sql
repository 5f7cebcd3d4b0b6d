-- submit(kind, payload, options): insert one job and return its id; for a taken idempotency key, the id of the older job.
-- options has the other columns a submitter may set, and delay (an interval) instead of run_at. An option that does not
-- exist, or is of another type, is refused. Only what is given is written: defaults belong to the kind.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.submit(p_kind text, p_payload jsonb DEFAULT '{}', p_options jsonb DEFAULT '{}')
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given scheduler.jobs := scheduler.submission(p_kind, p_payload, coalesce(p_options, '{}'));
  new_id bigint;
BEGIN
  LOOP
    INSERT INTO scheduler.jobs (kind, payload, queue, priority, tenant, run_at, depends_on, on_parent_failure,
      idempotency_key, unique_key, max_attempts, max_crashes, timeout, retry_base, retry_cap, retry_jitter, metadata)
    VALUES (given.kind, given.payload, given.queue, given.priority, given.tenant, given.run_at, given.depends_on,
      given.on_parent_failure, given.idempotency_key, given.unique_key, given.max_attempts, given.max_crashes,
      given.timeout, given.retry_base, given.retry_cap, given.retry_jitter, given.metadata)
    RETURNING id INTO new_id;
    IF new_id IS NULL THEN -- in a later statement, whose snapshot sees the holder
      SELECT k.job_id INTO new_id FROM scheduler.idempotency_keys k
      WHERE k.kind = p_kind AND k.key = given.idempotency_key;
    END IF;
    EXIT WHEN new_id IS NOT NULL; -- else the key is free now
  END LOOP;
  RETURN new_id;
END $$;

-- The row that a submission stands for, without what the scheduler computes.
CREATE OR REPLACE FUNCTION scheduler.submission(p_kind text, p_payload jsonb, o jsonb) RETURNS scheduler.jobs
LANGUAGE plpgsql AS $$
DECLARE
  job scheduler.jobs;
  known CONSTANT jsonb := '{"queue": "string", "priority": "number", "tenant": "string", "run_at": "string", "delay": "string",
    "depends_on": "array", "on_parent_failure": "string", "idempotency_key": "string", "unique_key": "string",
    "max_attempts": "number", "max_crashes": "number", "timeout": "string", "retry_base": "string", "retry_cap": "string",
    "retry_jitter": "boolean", "metadata": "object"}';
  wrong text;
BEGIN
  job.kind := p_kind;
  job.payload := p_payload;
  job.tenant := coalesce(o ->> 'tenant', '');
  job.on_parent_failure := coalesce(o ->> 'on_parent_failure', 'cancel');
  job.depends_on := '{}';
  job.metadata := coalesce(nullif(o -> 'metadata', 'null'), '{}');
  IF o = '{}' THEN
    RETURN job;
  END IF;
  SELECT given.key INTO wrong FROM jsonb_each(o) AS given
  WHERE NOT known ? given.key OR jsonb_typeof(given.value) NOT IN (known ->> given.key, 'null') ORDER BY given.key LIMIT 1;
  IF FOUND THEN
    PERFORM scheduler.refuse(wrong, coalesce('must be a JSON ' || (known ->> wrong), 'is no option of submit'),
      'options are the columns of scheduler.jobs that a submitter may set, and delay; times and durations are strings');
  ELSIF o ? 'delay' AND o ? 'run_at' THEN
    PERFORM scheduler.refuse('delay', 'contradicts run_at', 'give one of the two');
  ELSIF (o ->> 'delay')::interval < '0' THEN
    PERFORM scheduler.refuse('delay', 'must not be negative', 'leave it out to run the job now');
  ELSIF o ->> 'run_at' !~ '\d:\d\d(:\d\d(\.\d+)?)? ?([Zz]|UTC|GMT|[A-Z][A-Za-z]+/[A-Za-z_/-]+|[+-]\d\d(:?\d\d){0,2})$' THEN
    PERFORM scheduler.refuse('run_at', 'must have a time and a time zone', 'as in 2030-01-31 12:00:00+00');
  END IF;
  job.queue := o ->> 'queue';
  job.priority := (o ->> 'priority')::smallint;
  job.run_at := coalesce((o ->> 'run_at')::timestamptz, scheduler.clock() + (o ->> 'delay')::interval);
  IF o ? 'depends_on' THEN
    job.depends_on := ARRAY(SELECT p::bigint FROM jsonb_array_elements_text(coalesce(nullif(o -> 'depends_on', 'null'), '[]')) AS p);
  END IF;
  job.idempotency_key := o ->> 'idempotency_key';
  job.unique_key := o ->> 'unique_key';
  job.max_attempts := (o ->> 'max_attempts')::int;
  job.max_crashes := (o ->> 'max_crashes')::int;
  job.timeout := (o ->> 'timeout')::interval;
  job.retry_base := (o ->> 'retry_base')::interval;
  job.retry_cap := (o ->> 'retry_cap')::interval;
  job.retry_jitter := (o ->> 'retry_jitter')::boolean;
  RETURN job;
END $$;
