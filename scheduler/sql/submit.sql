-- submit(kind, payload, options): insert one job and return its id; for a taken idempotency key, the id of the older job.
-- options has the other columns a submitter may set, and delay (an interval) instead of run_at. An option that does not
-- exist, or is of another type, is refused. Only what is given is written: defaults belong to the kind.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.submit(p_kind text, p_payload jsonb DEFAULT '{}', p_options jsonb DEFAULT '{}')
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  job CONSTANT scheduler.jobs := scheduler.submitted_row(nextval('scheduler.jobs_id_seq'), p_kind, p_payload, p_options);
  new_id bigint;
BEGIN
  INSERT INTO scheduler.jobs OVERRIDING SYSTEM VALUE VALUES (job.*) RETURNING id INTO new_id;
  IF new_id IS NULL THEN -- the key is taken, and held by take_key; a later statement's snapshot sees the holder
    SELECT k.job_id INTO new_id FROM scheduler.idempotency_keys k WHERE k.kind = job.kind AND k.key = job.idempotency_key;
  END IF;
  RETURN new_id;
END $$;

-- The row that a submission stands for, before the scheduler computes its part.
CREATE OR REPLACE FUNCTION scheduler.submitted_row(p_id bigint, p_kind text, p_payload jsonb, p_options jsonb) RETURNS scheduler.jobs
LANGUAGE plpgsql AS $$
DECLARE
  types CONSTANT jsonb := '{"queue": "string", "priority": "number", "tenant": "string", "run_at": "string", "delay": "string",
    "depends_on": "array", "on_parent_failure": "string", "idempotency_key": "string", "unique_key": "string",
    "max_attempts": "number", "max_crashes": "number", "timeout": "string", "retry_base": "string", "retry_cap": "string",
    "retry_jitter": "boolean", "metadata": "object"}';
  o jsonb := '{}';
  job scheduler.jobs;
  wrong text;
BEGIN
  IF p_options <> '{}' THEN
    SELECT coalesce(jsonb_object_agg(g.key, g.value) FILTER (WHERE g.value <> 'null'), '{}'),
      min(g.key) FILTER (WHERE NOT types ? g.key OR jsonb_typeof(g.value) NOT IN (types ->> g.key, 'null'))
    INTO o, wrong FROM jsonb_each(p_options) AS g;
    IF wrong IS NOT NULL THEN
      PERFORM scheduler.refuse(wrong, coalesce('must be a JSON ' || (types ->> wrong), 'is no option of submit'),
        'options are the columns of scheduler.jobs that a submitter may set, and delay; times and durations are strings');
    ELSIF o ? 'delay' AND o ? 'run_at' THEN
      PERFORM scheduler.refuse('delay', 'contradicts run_at', 'give one of the two');
    ELSIF (o ->> 'delay')::interval < '0' THEN
      PERFORM scheduler.refuse('delay', 'must not be negative', 'leave it out to run the job now');
    ELSIF o ->> 'run_at' !~ '\d:\d\d(:\d\d(\.\d+)?)? ?([Zz]|UTC|GMT|[A-Z][A-Za-z]+/[A-Za-z_/-]+|[+-]\d\d(:?\d\d){0,2})$' THEN
      PERFORM scheduler.refuse('run_at', 'must have a time and a time zone', 'as in 2030-01-31 12:00:00+00');
    END IF;
  END IF;
  job := jsonb_populate_record(NULL::scheduler.jobs,
    '{"status": "PENDING", "unmet": 0, "attempt": 0, "failures": 0, "crashes": 0, "line": "", "tenant": "",
      "on_parent_failure": "cancel", "depends_on": [], "metadata": {}}' || (o - 'delay'));
  job.id := p_id;
  job.kind := p_kind;
  job.payload := p_payload;
  job.run_at := coalesce(job.run_at, scheduler.clock() + (o ->> 'delay')::interval);
  RETURN job;
END $$;
