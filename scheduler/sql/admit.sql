-- admit: what happens to every inserted row. INSERT INTO scheduler.jobs (kind, payload) VALUES (...) is a full citizen:
-- it gets the defaults of its kind, its place in the queue, its parents counted and locked, and a status.
-- It fires only WHEN submitted_at IS NULL: submitters may not write that column, and the verbs that move rows do.
-- Insertion as finished, or with anything that the scheduler computes, is refused.
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.admit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kind_row record;
  moment timestamptz;
BEGIN
  SELECT k.*, q.step INTO kind_row
  FROM scheduler.kinds k LEFT JOIN scheduler.queues q ON q.queue = coalesce(NEW.queue, k.queue) WHERE k.kind = NEW.kind;
  -- Plain rows of a declared kind, nearly all, skip the rules about what they do not set.
  IF kind_row.seen_at IS NULL OR NEW.queue IS NOT NULL OR NEW.tenant <> '' OR NEW.metadata IS DISTINCT FROM '{}'
     OR NEW.priority NOT BETWEEN -100 AND 100 OR NEW.on_parent_failure <> 'cancel'
     OR jsonb_typeof(NEW.payload) IS DISTINCT FROM 'object' OR octet_length(NEW.payload::text) > 262144 OR NEW.depends_on <> '{}'
     OR NEW.status IS DISTINCT FROM 'PENDING' OR NEW.line <> '' OR NEW.unmet + NEW.attempt + NEW.failures + NEW.crashes <> 0
     OR num_nonnulls(NEW.run_at, NEW.timeout, NEW.max_attempts, NEW.max_crashes, NEW.retry_base, NEW.retry_cap,
       NEW.idempotency_key, NEW.unique_key, NEW.rank_at, NEW.fence, NEW.request, NEW.worker_id, NEW.lease_expires_at,
       NEW.started_at, NEW.cancel_requested_at, NEW.cancelled_by, NEW.finished_at, NEW.result, NEW.error) > 0 THEN
    PERFORM scheduler.check_submitted(NEW);
    IF kind_row.seen_at IS NULL THEN
      PERFORM scheduler.hold_undeclared(NEW.kind);
      SELECT k.*, q.step INTO kind_row -- it may have been declared while we waited
      FROM scheduler.kinds k LEFT JOIN scheduler.queues q ON q.queue = coalesce(NEW.queue, k.queue) WHERE k.kind = NEW.kind;
    END IF;
  END IF;
  NEW.queue := coalesce(NEW.queue, kind_row.queue);
  NEW.priority := coalesce(NEW.priority, kind_row.priority);
  NEW.max_attempts := coalesce(NEW.max_attempts, kind_row.max_attempts);
  NEW.max_crashes := coalesce(NEW.max_crashes, kind_row.max_crashes);
  NEW.timeout := coalesce(NEW.timeout, kind_row.timeout);
  -- Of base and cap the one that is given bends the default of the other; while the kind is undeclared both stay open.
  NEW.retry_cap := coalesce(NEW.retry_cap, CASE WHEN kind_row.seen_at IS NOT NULL THEN greatest(kind_row.retry_cap, NEW.retry_base) END);
  NEW.retry_base := coalesce(NEW.retry_base, CASE WHEN kind_row.seen_at IS NOT NULL THEN least(kind_row.retry_base, NEW.retry_cap) END);
  NEW.retry_jitter := coalesce(NEW.retry_jitter, kind_row.retry_jitter);

  IF NEW.idempotency_key IS NOT NULL
     AND NOT scheduler.take_key(NEW.kind, NEW.idempotency_key, NEW.id, kind_row.idempotency_window) THEN
    RETURN NULL;
  END IF;
  IF NEW.depends_on <> '{}' THEN
    IF NEW.id = ANY (NEW.depends_on) THEN -- by a guess, or of a parent that a failover has lost: its id may be given again
      PERFORM scheduler.refuse('depends_on', 'must not contain the job itself', 'name jobs that exist');
    END IF;
    NEW.depends_on := ARRAY(SELECT DISTINCT p FROM unnest(array_replace(NEW.depends_on, -NEW.id, NEW.id)) AS p ORDER BY p);
    NEW.unmet := scheduler.hold_parents(NEW.id, NEW.depends_on, NEW.on_parent_failure);
  END IF;

  moment := scheduler.clock();
  NEW.submitted_at := moment;
  NEW.run_at := coalesce(NEW.run_at, moment);
  NEW.rank_at := scheduler.rank(greatest(moment, NEW.run_at), NEW.priority, kind_row.step);
  NEW.status := CASE WHEN NEW.unmet > 0 THEN 'BLOCKED' WHEN NEW.run_at > moment THEN 'DELAYED' ELSE 'PENDING' END;
  RETURN NEW;
END $$;

-- What may not stand in an inserted row, one error that names the column each. As CHECKs these rules would run again at every
-- claim and settlement.
CREATE OR REPLACE FUNCTION scheduler.check_submitted(p_job scheduler.jobs) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name_pattern CONSTANT text := '^[A-Za-z0-9_.:-]{1,100}$';
  name_rule CONSTANT text := 'must be 1 to 100 letters, digits, or _ . : -';
  computed text;
BEGIN
  SELECT c.key INTO computed
  FROM jsonb_each_text(to_jsonb(p_job) - 'payload') AS c(key, value) JOIN jsonb_each_text('{"status": "PENDING", "line": "",
    "unmet": "0", "attempt": "0", "failures": "0", "crashes": "0", "rank_at": null, "fence": null, "request": null,
    "worker_id": null, "lease_expires_at": null, "started_at": null, "cancel_requested_at": null, "cancelled_by": null,
    "finished_at": null, "result": null, "error": null}') AS empty(key, value) USING (key)
  WHERE c.value IS DISTINCT FROM empty.value ORDER BY c.key <> 'status', c.key LIMIT 1;
  IF computed IS NOT NULL THEN
    PERFORM scheduler.refuse(computed, 'is not the submitter''s to set',
      format('leave %s out of the INSERT: the scheduler computes it', computed));
  ELSIF p_job.kind IS NULL OR p_job.kind !~ name_pattern THEN
    PERFORM scheduler.refuse('kind', name_rule, 'use the kind of a job class');
  ELSIF p_job.queue !~ name_pattern THEN
    PERFORM scheduler.refuse('queue', name_rule, 'leave it out for the queue of the kind');
  ELSIF NOT (p_job.run_at >= '2000-01-01 00:00+00' AND p_job.run_at < '10000-01-01 00:00+00') THEN
    PERFORM scheduler.refuse('run_at', 'must lie in the years 2000 to 9999', 'leave it out to run the job now');
  ELSIF p_job.priority NOT BETWEEN -100 AND 100 THEN
    PERFORM scheduler.refuse('priority', 'must lie between -100 and 100', 'LOW is 0, MEDIUM 1, HIGH 2, CRITICAL 3');
  ELSIF p_job.timeout <= '0' OR p_job.timeout > '30 days' THEN
    PERFORM scheduler.refuse('timeout', 'must be over 0 and at most 30 days', 'leave it out for that of the kind');
  ELSIF p_job.max_attempts < 1 THEN
    PERFORM scheduler.refuse('max_attempts', 'must be at least 1', '1 means never retried');
  ELSIF p_job.max_crashes < 0 THEN
    PERFORM scheduler.refuse('max_crashes', 'must be at least 0', '0 means that a lost worker ends the job');
  ELSIF p_job.retry_base <= '0' OR p_job.retry_base > '30 days' OR p_job.retry_base > p_job.retry_cap THEN
    PERFORM scheduler.refuse('retry_base', 'must be over 0 and at most retry_cap and 30 days', 'leave it out for that of the kind');
  ELSIF p_job.retry_cap <= '0' OR p_job.retry_cap > '30 days' THEN
    PERFORM scheduler.refuse('retry_cap', 'must be over 0 and at most 30 days', 'leave it out for that of the kind');
  ELSIF p_job.on_parent_failure IS NULL OR p_job.on_parent_failure NOT IN ('cancel', 'run') THEN
    PERFORM scheduler.refuse('on_parent_failure', 'must be cancel or run', 'leave it out for cancel');
  ELSIF octet_length(p_job.tenant) > 200 THEN
    PERFORM scheduler.refuse('tenant', 'must be at most 200 bytes', 'use a short identifier');
  ELSIF jsonb_typeof(p_job.payload) IS DISTINCT FROM 'object' THEN
    PERFORM scheduler.refuse('payload', 'must be a JSON object', 'wrap the value: {"value": ...}');
  ELSIF octet_length(p_job.payload::text) > 262144 THEN
    PERFORM scheduler.refuse('payload', 'must be at most 256 kB as text', 'store the data elsewhere and pass a reference');
  ELSIF jsonb_typeof(p_job.metadata) IS DISTINCT FROM 'object' OR octet_length(p_job.metadata::text) > 16384 THEN
    PERFORM scheduler.refuse('metadata', 'must be a JSON object of at most 16 kB', 'keep tags and trace context in it only');
  ELSIF octet_length(p_job.idempotency_key) > 500 THEN
    PERFORM scheduler.refuse('idempotency_key', 'must be at most 500 bytes', 'hash a long key');
  ELSIF octet_length(p_job.unique_key) > 500 THEN
    PERFORM scheduler.refuse('unique_key', 'must be at most 500 bytes', 'hash a long key');
  ELSIF p_job.depends_on IS NULL OR array_ndims(p_job.depends_on) > 1
        OR EXISTS (SELECT FROM unnest(p_job.depends_on) AS p WHERE p IS NULL) THEN
    PERFORM scheduler.refuse('depends_on', 'must be a flat array of job ids', 'leave NULL out');
  END IF;
END $$;

-- A kind that nobody has declared yet. The row of the kind is made here, so that the commands can show it, and held, so
-- that its first declaration waits for this transaction and then fills in the open defaults of this job too.
CREATE OR REPLACE FUNCTION scheduler.hold_undeclared(p_kind text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO scheduler.kinds (kind) VALUES (p_kind) ON CONFLICT DO NOTHING;
  PERFORM FROM scheduler.kinds k WHERE k.kind = p_kind FOR KEY SHARE;
END $$;

-- The strategies of a queue differ in one number: aging ranks by time with 10 s per level of priority, fifo 0, strict ten years.
CREATE OR REPLACE FUNCTION scheduler.rank(p_since timestamptz, p_priority smallint, p_step interval) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT p_since - make_interval(secs => coalesce(p_priority, 1) * extract(epoch FROM coalesce(p_step, '10 s'))::float8)
$$;

CREATE OR REPLACE TRIGGER admit BEFORE INSERT ON scheduler.jobs_active
  FOR EACH ROW WHEN (NEW.submitted_at IS NULL) EXECUTE FUNCTION scheduler.admit();
CREATE OR REPLACE TRIGGER admit BEFORE INSERT ON scheduler.jobs_finished
  FOR EACH ROW WHEN (NEW.submitted_at IS NULL) EXECUTE FUNCTION scheduler.admit();
