-- retry(ids): let jobs that failed, timed out or were cancelled run again, and revive what their failure cancelled.
-- Returns {"retried": [ids], "not_ended": [ids], "missing": [ids], "busy": [ids], "refused": [{"id", "reason"}]} and what
-- revive() says of their descendants: {"revived", "go_on"} and more "refused". While "go_on" is not null, call revive() with it.
-- Failures and crashes count from 0 and the place in the queue is a new one; attempts and fences keep growing. Refused are
-- completed jobs, a job one of whose parents stands failed (retry that one, and this one follows), and a job whose unique or
-- idempotency key another has. The children of an id that has not ended are revived all the same: a retry that was cut
-- short is repeated.
-- Locks SKIP LOCKED: what somebody holds is busy, call again soon. Only for a key that an open transaction holds it waits.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.retry(p_ids bigint[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  report jsonb := '{"retried": [], "not_ended": [], "missing": [], "busy": [], "refused": []}';
  revival jsonb;
  queues text[] := '{}';
  v_id bigint;
  tried record;
BEGIN
  PERFORM scheduler.need_read_committed('retry');
  FOREACH v_id IN ARRAY ARRAY(SELECT DISTINCT i FROM unnest(p_ids) AS i ORDER BY i) LOOP -- parents before their children
    SELECT * INTO tried FROM scheduler.put_back(v_id);
    report := jsonb_insert(report, ARRAY[tried.verdict, '-1'],
      CASE tried.verdict WHEN 'refused' THEN jsonb_build_object('id', v_id, 'reason', tried.reason) ELSE to_jsonb(v_id) END, true);
    queues := queues || tried.queue;
  END LOOP;
  PERFORM scheduler.wake(ARRAY(SELECT DISTINCT unnest(queues)));
  revival := scheduler.revive(jsonb_build_object('parents', report -> 'retried' || (report -> 'not_ended')));
  RETURN report || revival || jsonb_build_object('refused', report -> 'refused' || (revival -> 'refused'));
END $$;

-- Move one finished job back. The verdict is retried, not_ended, missing, busy, or refused with a reason; root is the job
-- whose failure keeps this one from running, queue the one to wake.
-- Inserted first, deleted only once it is: a taken unique_key must not lose the job.
CREATE OR REPLACE FUNCTION scheduler.put_back(
  p_id bigint, OUT verdict text, OUT reason text, OUT root bigint, OUT queue text)
LANGUAGE plpgsql AS $$
DECLARE
  job scheduler.jobs_finished;
  parents record;
  took_key boolean := false;
BEGIN
  SELECT * INTO job FROM scheduler.jobs_finished f WHERE f.id = p_id FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    SELECT CASE WHEN j.finished_at IS NULL THEN 'not_ended' ELSE 'busy' END INTO verdict FROM scheduler.jobs j WHERE j.id = p_id;
    verdict := coalesce(verdict, 'missing');
    RETURN;
  END IF;
  SELECT * INTO parents FROM scheduler.hold_parents_again(p_id, job.on_parent_failure);
  reason := CASE job.status WHEN 'COMPLETED' THEN 'it has completed: submit it again' ELSE parents.reason END;
  root := parents.root;
  IF reason IS NULL AND parents.busy THEN
    verdict := 'busy';
    RETURN;
  END IF;
  IF reason IS NULL AND job.idempotency_key IS NOT NULL THEN
    PERFORM FROM scheduler.idempotency_keys k
    WHERE k.kind = job.kind AND k.key = job.idempotency_key AND k.job_id = p_id FOR UPDATE;
    IF NOT FOUND THEN
      took_key := scheduler.take_key(job.kind, job.idempotency_key, p_id,
        (SELECT k.idempotency_window FROM scheduler.kinds k WHERE k.kind = job.kind));
      reason := CASE WHEN NOT took_key THEN 'another job has its idempotency_key: that one stands for both' END;
    END IF;
  END IF;
  IF reason IS NULL THEN
    IF num_nulls(job.queue, job.priority, job.max_attempts, job.max_crashes, job.timeout, job.retry_base, job.retry_cap,
       job.retry_jitter) > 0 THEN
      PERFORM scheduler.hold_undeclared(job.kind); -- it ended before its kind was declared
    END IF;
    job.run_at := greatest(job.run_at, scheduler.clock());
    job.rank_at := scheduler.rank(job.run_at, job.priority, (SELECT q.step FROM scheduler.queues q WHERE q.queue = job.queue));
    job.unmet := cardinality(parents.active);
    job.status := CASE WHEN job.unmet > 0 THEN 'BLOCKED' WHEN job.run_at > scheduler.clock() THEN 'DELAYED' ELSE 'PENDING' END;
    job.failures := 0;
    job.crashes := 0;
    job.started_at := NULL;
    job.finished_at := NULL;
    job.cancel_requested_at := NULL;
    job.cancelled_by := NULL;
    job.error := NULL;
    INSERT INTO scheduler.jobs_active OVERRIDING SYSTEM VALUE VALUES (job.*) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      DELETE FROM scheduler.jobs_finished f WHERE f.id = p_id;
      UPDATE scheduler.dependencies d SET ended = d.parent <> ALL (parents.active), applied = d.parent <> ALL (parents.active)
      WHERE d.child = p_id;
      PERFORM scheduler.fill_defaults(k.kind) FROM scheduler.kinds k
      WHERE k.kind = job.kind AND k.seen_at IS NOT NULL AND job.timeout IS NULL;
      verdict := 'retried';
      queue := job.queue;
      RETURN;
    END IF;
    reason := 'another unfinished job has its unique_key: wait until that one has ended, or cancel it';
    DELETE FROM scheduler.idempotency_keys k
    WHERE took_key AND k.kind = job.kind AND k.key = job.idempotency_key AND k.job_id = p_id;
  END IF;
  verdict := 'refused';
END $$;

-- Hold the parents of a job that is to run again: the active ones it waits for. A parent that is gone was met: one that did not
-- complete is kept as long as a child that never ran. The edges are held too: resolve() marks those of a child that has
-- ended without holding the child.
CREATE OR REPLACE FUNCTION scheduler.hold_parents_again(
  p_id bigint, p_on_failure text, OUT active bigint[], OUT busy boolean, OUT root bigint, OUT reason text)
LANGUAGE plpgsql AS $$
DECLARE
  parents bigint[] := ARRAY(SELECT d.parent FROM scheduler.dependencies d WHERE d.child = p_id FOR UPDATE SKIP LOCKED);
  ended bigint[];
BEGIN
  active := ARRAY(SELECT j.id FROM scheduler.jobs_active j WHERE j.id = ANY (parents) FOR KEY SHARE SKIP LOCKED);
  ended := ARRAY(SELECT f.id FROM scheduler.jobs_finished f WHERE f.id = ANY (parents) FOR KEY SHARE SKIP LOCKED);
  busy := (SELECT count(*) FROM scheduler.dependencies d WHERE d.child = p_id) > cardinality(parents)
    OR (SELECT count(*) FROM scheduler.jobs j WHERE j.id = ANY (parents)) > cardinality(active || ended);
  IF p_on_failure = 'cancel' THEN
    SELECT coalesce(f.cancelled_by, f.id),
      format('job %s, which this one depends on, ended %s: retry that one, and this one follows', f.id, f.status)
    INTO root, reason FROM scheduler.jobs_finished f
    WHERE f.id = ANY (ended) AND f.status <> 'COMPLETED' ORDER BY f.finished_at, f.id LIMIT 1;
  END IF;
END $$;
