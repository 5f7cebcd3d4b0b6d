-- submit(kind, payload, options): insert one job and return its id; for a taken key, the id of the job that has it.
-- options has the other columns a submitter may set; delay (an interval) instead of run_at; on_taken: what a taken unique_key
-- means, keep (the unfinished job that has it stands for this one: the default), replace (and has this payload and this time
-- from now on, unless it runs) or raise; batch (true: an open batch, see close_batch); member_of: the batch whose callback waits
-- for this job, and member: the unfinished member that adds it, if the batch is closed. An option that does not exist, or is
-- of another type, is refused. Only what is given is written: defaults belong to the kind.
-- Locks: the batch, FOR NO KEY UPDATE; then see admit, or of a job whose payload is replaced its row, guarded by the write.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.submit(p_kind text, p_payload jsonb DEFAULT '{}', p_options jsonb DEFAULT '{}')
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (scheduler.submit_one(p_kind, p_payload, p_options)).id;
END $$;

-- Insert one job, or find the one that has its key; `created` and `running` tell which.
CREATE OR REPLACE FUNCTION scheduler.submit_one(
  p_kind text, p_payload jsonb, p_options jsonb, OUT id bigint, OUT created boolean, OUT running boolean) LANGUAGE plpgsql AS $$
DECLARE
  job scheduler.jobs := scheduler.submitted_row(nextval('scheduler.jobs_id_seq'), p_kind, p_payload, p_options);
  batch CONSTANT bigint := (p_options ->> 'member_of')::bigint;
BEGIN
  IF batch IS NOT NULL THEN
    PERFORM scheduler.hold_batches(jsonb_build_array(p_options || jsonb_build_object('kind', p_kind)));
  END IF;
  IF job.unique_key IS NULL OR p_options ->> 'on_taken' = 'raise' THEN
    INSERT INTO scheduler.jobs OVERRIDING SYSTEM VALUE VALUES (job.*) RETURNING jobs.id INTO id;
  ELSE
    SELECT * INTO id, created FROM scheduler.submit_unique(job, p_options ->> 'on_taken' IS NOT DISTINCT FROM 'replace');
  END IF;
  created := coalesce(created, id IS NOT NULL);
  IF id IS NULL THEN -- the key is taken, and held by take_key; a later statement's snapshot sees the holder
    SELECT k.job_id INTO id FROM scheduler.idempotency_keys k WHERE k.kind = job.kind AND k.key = job.idempotency_key;
  END IF;
  running := NOT created AND (SELECT j.worker_id IS NOT NULL FROM scheduler.jobs_active j WHERE j.id = submit_one.id) IS TRUE;
  IF batch IS NOT NULL THEN
    PERFORM scheduler.join_batch(batch, ARRAY[id], CASE WHEN created THEN '{}' ELSE ARRAY[id] END);
  END IF;
END $$;

-- The job of a unique_key: the one that has it, or a new one. No id: its idempotency_key is taken, which comes first.
-- Looked for before the insert, so that a holder is waited for while nothing is held. Race: a holder may end after it was
-- met, or begin before it could be changed; then everything is looked at again. An idempotency_key, too, is the holder's now.
CREATE OR REPLACE FUNCTION scheduler.submit_unique(job scheduler.jobs, p_replace boolean, OUT id bigint, OUT created boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
  ready boolean := job.idempotency_key IS NULL;
  v_queue text;
BEGIN
  PERFORM scheduler.check_submitted(job);
  LOOP
    IF ready AND p_replace THEN
      UPDATE scheduler.jobs_active j SET payload = job.payload, run_at = n.run_at, rank_at = scheduler.rank(n.run_at, j.priority, n.step),
        status = CASE WHEN j.status = 'BLOCKED' THEN 'BLOCKED' WHEN n.run_at > scheduler.clock() THEN 'DELAYED'
          ELSE 'PENDING' END::scheduler.job_status
      FROM (SELECT h.id, coalesce(job.run_at, scheduler.clock()) AS run_at, q.step FROM scheduler.jobs_active h
        LEFT JOIN scheduler.queues q ON q.queue = h.queue WHERE h.kind = job.kind AND h.unique_key = job.unique_key OFFSET 0) AS n
      WHERE j.id = n.id AND j.worker_id IS NULL RETURNING j.id, j.queue INTO id, v_queue;
      PERFORM scheduler.wake(ARRAY[v_queue]);
    END IF;
    IF ready AND id IS NULL THEN
      SELECT j.id INTO id FROM scheduler.jobs_active j
      WHERE j.kind = job.kind AND j.unique_key = job.unique_key AND (NOT p_replace OR j.worker_id IS NOT NULL);
    END IF;
    created := id IS NULL;
    IF NOT created THEN
      UPDATE scheduler.idempotency_keys k SET job_id = submit_unique.id
      WHERE k.kind = job.kind AND k.key = job.idempotency_key AND k.job_id = job.id;
      RETURN;
    END IF;
    INSERT INTO scheduler.jobs OVERRIDING SYSTEM VALUE VALUES (job.*) ON CONFLICT DO NOTHING RETURNING jobs.id INTO id;
    EXIT WHEN id IS NOT NULL OR (SELECT k.job_id <> job.id FROM scheduler.idempotency_keys k
      WHERE k.kind = job.kind AND k.key = job.idempotency_key);
    ready := true;
  END LOOP;
END $$;

-- The row that a submission stands for, before the scheduler computes its part. An open batch depends on itself, which it says by
-- its id with a minus: the id itself may stand there for a job that a failover has lost.
CREATE OR REPLACE FUNCTION scheduler.submitted_row(p_id bigint, p_kind text, p_payload jsonb, p_options jsonb) RETURNS scheduler.jobs
LANGUAGE plpgsql AS $$
DECLARE
  types CONSTANT jsonb := '{"queue": "string", "priority": "number", "tenant": "string", "run_at": "instant", "delay": "string",
    "depends_on": "array", "on_parent_failure": "string", "idempotency_key": "string", "unique_key": "string",
    "max_attempts": "number", "max_crashes": "number", "timeout": "string", "retry_base": "string", "retry_cap": "string",
    "retry_jitter": "boolean", "metadata": "object", "on_taken": "string", "batch": "boolean", "member_of": "number",
    "member": "number"}';
  o jsonb := '{}';
  job scheduler.jobs;
BEGIN
  IF p_options <> '{}' THEN
    o := scheduler.read_options(p_options, types, 'option of submit');
    IF o ? 'delay' AND o ? 'run_at' THEN
      PERFORM scheduler.refuse('delay', 'contradicts run_at', 'give one of the two');
    ELSIF (o ->> 'delay')::interval < '0' THEN
      PERFORM scheduler.refuse('delay', 'must not be negative', 'leave it out to run the job now');
    ELSIF o ->> 'on_taken' NOT IN ('keep', 'replace', 'raise') THEN
      PERFORM scheduler.refuse('on_taken', 'must be keep, replace or raise', 'leave it out for keep');
    ELSIF o ? 'on_taken' AND NOT o ? 'unique_key' THEN
      PERFORM scheduler.refuse('on_taken', 'is what a taken unique_key means', 'give a unique_key, too');
    END IF;
  END IF;
  job := jsonb_populate_record(NULL::scheduler.jobs,
    '{"status": "PENDING", "unmet": 0, "attempt": 0, "failures": 0, "crashes": 0, "line": "", "tenant": "",
      "on_parent_failure": "cancel", "depends_on": [], "metadata": {}}' || (o - 'delay'));
  job.id := p_id;
  job.kind := p_kind;
  job.payload := p_payload;
  job.run_at := coalesce(job.run_at, scheduler.clock() + (o ->> 'delay')::interval);
  IF (o ->> 'batch')::boolean THEN
    job.depends_on := job.depends_on || -p_id;
  END IF;
  RETURN job;
END $$;
