-- retry(ids): let jobs that failed, timed out or were cancelled run again, and tell which children follow them.
-- Returns {"retried": [ids], "not_ended": [ids], "missing": [ids], "busy": [ids], "refused": [{"id", "reason"}], "children": [ids],
-- "more"}. children: jobs that the failure of one of these had cancelled: call retry() with them, too, level by level; with
-- "more", and with these ids again.
-- Failures and crashes count from 0 and the place in the queue is a new one; attempts and fences keep growing. Refused are
-- completed jobs, a job one of whose parents stands failed, and a job whose unique or idempotency key another has. A job that a
-- failure had cancelled, and that another one keeps cancelled, is cancelled in the name of that one from now on.
-- Locks SKIP LOCKED: what somebody holds is busy, call again soon. It waits only for a key that an open transaction holds.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.retry(p_ids bigint[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  report jsonb := '{"retried": [], "not_ended": [], "missing": [], "busy": [], "refused": []}';
  parents bigint[] := '{}';
  children bigint[];
  queues text[] := '{}';
  v_id bigint;
  tried record;
BEGIN
  PERFORM scheduler.need_read_committed('retry');
  FOREACH v_id IN ARRAY ARRAY(SELECT DISTINCT i FROM unnest(p_ids) AS i ORDER BY i) LOOP -- parents before their children
    SELECT * INTO tried FROM scheduler.put_back(v_id);
    report := jsonb_insert(report, ARRAY[tried.verdict, '-1'],
      CASE tried.verdict WHEN 'refused' THEN jsonb_build_object('id', v_id, 'reason', tried.reason) ELSE to_jsonb(v_id) END, true);
    IF tried.verdict IN ('retried', 'not_ended') THEN -- the latter too: a retry that was cut short is repeated
      parents := parents || v_id;
      queues := queues || tried.queue;
    END IF;
  END LOOP;
  PERFORM scheduler.wake(ARRAY(SELECT DISTINCT unnest(queues)));
  children := ARRAY(
    SELECT d.child FROM scheduler.dependencies d JOIN scheduler.jobs_finished c ON c.id = d.child
    WHERE d.parent = ANY (parents) AND c.status = 'CANCELLED' AND c.cancelled_by IS NOT NULL
      AND (SELECT r.status <> 'COMPLETED' FROM scheduler.jobs_finished r WHERE r.id = c.cancelled_by) IS NOT TRUE
    UNION SELECT d.child FROM scheduler.dependencies d -- those that resolve() may be cancelling now
    WHERE d.parent = ANY (parents) AND d.ended AND NOT d.applied LIMIT 10000);
  RETURN report || jsonb_build_object('children', children, 'more', cardinality(children) = 10000);
END $$;

-- The verdict on one job: retried, not_ended, missing, busy, or refused with a reason; with the queue to wake.
-- Inserted first, deleted only then: a taken unique_key must not lose the job.
-- Race: resolve() may be cancelling a child of a job that was just put back. Whoever holds the child decides: held here, its
-- edge is open again before resolve() can look; held there, it is busy here, and will be found cancelled.
-- A child that its failure did not stop, and that still waits for others, waits for it again: a batch, say.
CREATE OR REPLACE FUNCTION scheduler.put_back(p_id bigint, OUT verdict text, OUT reason text, OUT queue text)
LANGUAGE plpgsql AS $$
DECLARE
  job scheduler.jobs_finished;
  parents record;
  waiting bigint[];
BEGIN
  SELECT * INTO job FROM scheduler.jobs_finished f WHERE f.id = p_id FOR UPDATE SKIP LOCKED;
  SELECT * INTO parents FROM scheduler.hold_parents_again(p_id, job.on_parent_failure);
  IF job.id IS NULL THEN
    SELECT CASE WHEN j.finished_at IS NULL THEN 'not_ended' ELSE 'busy' END INTO verdict FROM scheduler.jobs j WHERE j.id = p_id;
    verdict := coalesce(verdict, 'missing');
    IF verdict = 'not_ended' AND parents.unapplied THEN
      PERFORM FROM scheduler.jobs_active j WHERE j.id = p_id FOR NO KEY UPDATE SKIP LOCKED;
      verdict := CASE WHEN FOUND THEN 'not_ended' ELSE 'busy' END;
      UPDATE scheduler.dependencies d SET ended = false
      WHERE FOUND AND d.child = p_id AND d.ended AND NOT d.applied AND d.parent = ANY (parents.active);
    END IF;
    RETURN;
  END IF;
  reason := CASE job.status WHEN 'COMPLETED' THEN 'it has completed: submit it again' ELSE parents.reason END;
  waiting := scheduler.waiting_on(p_id);
  waiting := ARRAY(SELECT j.id FROM scheduler.jobs_active j
    WHERE j.id = ANY (waiting) AND j.unmet > 0 ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED);
  IF reason IS NULL AND (parents.busy OR NOT waiting @> scheduler.waiting_on(p_id)) THEN
    verdict := 'busy';
    RETURN;
  END IF;
  reason := coalesce(reason, scheduler.move_back(job, parents.active));
  IF reason IS NULL THEN
    verdict := 'retried';
    queue := job.queue;
    UPDATE scheduler.dependencies d SET ended = false, applied = false WHERE d.parent = p_id AND d.child = ANY (waiting);
    UPDATE scheduler.jobs_active j SET unmet = j.unmet + 1 WHERE j.id = ANY (waiting);
  ELSE
    verdict := 'refused';
    UPDATE scheduler.jobs_finished f SET cancelled_by = parents.root, error = reason
    WHERE f.id = p_id AND f.cancelled_by <> coalesce(parents.root, 0);
  END IF;
END $$;

-- The children of a finished job that have taken notice of it and wait for others.
CREATE OR REPLACE FUNCTION scheduler.waiting_on(p_id bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(SELECT d.child FROM scheduler.dependencies d
    WHERE d.parent = p_id AND d.applied AND (SELECT j.unmet > 0 FROM scheduler.jobs_active j WHERE j.id = d.child));
END $$;

-- Hold the parents of a job that is to run again: the active ones it waits for. A parent that is gone was met: one that did not
-- complete is kept as long as a child that never ran. The edges are held too, as resolve() marks those of a child that has
-- ended without holding the child. An open batch that runs again is closed: whoever would close it may be gone.
CREATE OR REPLACE FUNCTION scheduler.hold_parents_again(p_id bigint, p_on_failure text,
  OUT active bigint[], OUT unapplied boolean, OUT busy boolean, OUT root bigint, OUT reason text)
LANGUAGE plpgsql AS $$
DECLARE
  parents bigint[] := ARRAY(SELECT d.parent FROM scheduler.dependencies d WHERE d.child = p_id AND d.parent <> p_id FOR UPDATE SKIP LOCKED);
  finished bigint[];
BEGIN
  active := ARRAY(SELECT j.id FROM scheduler.jobs_active j WHERE j.id = ANY (parents) FOR KEY SHARE SKIP LOCKED);
  finished := ARRAY(SELECT f.id FROM scheduler.jobs_finished f WHERE f.id = ANY (parents) FOR KEY SHARE SKIP LOCKED);
  SELECT coalesce(bool_or(d.ended AND NOT d.applied), false), count(*) > cardinality(parents)
      OR (SELECT count(*) FROM scheduler.jobs j WHERE j.id = ANY (parents)) > cardinality(active || finished)
  INTO unapplied, busy FROM scheduler.dependencies d WHERE d.child = p_id AND d.parent <> p_id;
  IF p_on_failure = 'cancel' THEN
    SELECT coalesce(f.cancelled_by, f.id),
      format('job %s, which this one depends on, ended %s: retry that one, and this one follows', f.id, f.status)
    INTO root, reason -- OFFSET: or the planner walks all finished jobs in the order of their ends to find these
    FROM (SELECT * FROM scheduler.jobs_finished e WHERE e.id = ANY (finished) AND e.status <> 'COMPLETED' OFFSET 0) AS f
    ORDER BY f.finished_at, f.id LIMIT 1;
  END IF;
END $$;

-- Move a finished job, held by the caller, to the active ones; or return why not. A key that its window has freed is taken again.
CREATE OR REPLACE FUNCTION scheduler.move_back(job scheduler.jobs_finished, p_active bigint[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  took_key boolean := false;
  is_open CONSTANT boolean := num_nulls(job.queue, job.priority, job.max_attempts, job.max_crashes, job.timeout, job.retry_base,
    job.retry_cap, job.retry_jitter) > 0; -- it ended before its kind was declared
BEGIN
  PERFORM FROM scheduler.idempotency_keys k
  WHERE k.kind = job.kind AND k.key = job.idempotency_key AND k.job_id = job.id FOR UPDATE;
  IF NOT FOUND AND job.idempotency_key IS NOT NULL THEN
    took_key := scheduler.take_key(job.kind, job.idempotency_key, job.id,
      (SELECT k.idempotency_window FROM scheduler.kinds k WHERE k.kind = job.kind));
    IF NOT took_key THEN
      RETURN 'another job has its idempotency_key: that one stands for both';
    END IF;
  END IF;
  IF is_open THEN
    PERFORM scheduler.hold_undeclared(job.kind);
  END IF;
  job.run_at := greatest(job.run_at, scheduler.clock());
  job.rank_at := scheduler.rank(job.run_at, job.priority, (SELECT q.step FROM scheduler.queues q WHERE q.queue = job.queue));
  job.unmet := cardinality(p_active);
  job.status := CASE WHEN job.unmet > 0 THEN 'BLOCKED' WHEN job.run_at > scheduler.clock() THEN 'DELAYED' ELSE 'PENDING' END;
  SELECT 0, 0 INTO job.failures, job.crashes;
  SELECT NULL, NULL INTO job.started_at, job.finished_at;
  SELECT NULL, NULL, NULL INTO job.cancel_requested_at, job.cancelled_by, job.error;
  INSERT INTO scheduler.jobs_active OVERRIDING SYSTEM VALUE VALUES (job.*) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    DELETE FROM scheduler.idempotency_keys k
    WHERE took_key AND k.kind = job.kind AND k.key = job.idempotency_key AND k.job_id = job.id;
    RETURN 'another unfinished job has its unique_key: wait until that one has ended, or cancel it';
  END IF;
  DELETE FROM scheduler.jobs_finished f WHERE f.id = job.id;
  UPDATE scheduler.dependencies d SET ended = d.parent <> ALL (p_active), applied = d.parent <> ALL (p_active)
  WHERE d.child = job.id;
  PERFORM scheduler.fill_defaults(k.kind) FROM scheduler.kinds k
  WHERE is_open AND k.kind = job.kind AND k.seen_at IS NOT NULL;
  RETURN NULL;
END $$;
