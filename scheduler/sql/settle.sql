-- settle(worker, outcomes): record how attempts ended, one round trip for a whole group.
-- outcomes: [{"id", "fence", "outcome": completed | failed | timed_out | cancelled | snoozed, "result", "error_type", "error",
-- "traceback", "delay", "retryable"}]; delay in seconds: of a snooze, or what the handler asked for instead of the backoff.
-- Returns {"lost": [ids], "busy": [ids], "parents": [ids], "became": {id: status}}. lost: the claim is another's, nothing was
-- changed. busy: somebody holds the row; send the outcome again soon, and go on renewing. parents: call resolve() with them.
-- became: the status of what did not simply become COMPLETED.
-- Fenced. An outcome sent again after its reply was lost is not reported lost when it is what stands recorded; nor is any
-- outcome of an attempt that completed in a transaction of its own (see complete): it changes nothing, and became COMPLETED.
-- Locks FOR UPDATE SKIP LOCKED, ids ascending. A delay given by the handler is only ever stretched by jitter.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.settle(p_worker uuid, p_outcomes jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  ids bigint[];
  fences bigint[];
  done bigint[];
  report jsonb;
  parents bigint[] := '{}';
  others record;
  became jsonb := '{}';
  recorded jsonb;
BEGIN
  PERFORM scheduler.need_read_committed('settle');
  SELECT c.ids, c.fences, c.done INTO ids, fences, done FROM scheduler.settle_completed(p_worker, p_outcomes) AS c;
  parents := scheduler.mark_ended(done);
  IF cardinality(done) < cardinality(ids) THEN
    SELECT s.* INTO others FROM scheduler.settle_incomplete(p_worker, p_outcomes) AS s;
    done := done || others.done;
    parents := parents || others.parents;
    became := others.became;
  END IF;
  report := scheduler.missed(p_worker, ids, fences, done);
  IF report -> 'lost' <> '[]' THEN -- or recorded before: then its children wait for whoever was to be told of it
    recorded := scheduler.recorded(p_worker, p_outcomes, report -> 'lost');
    became := became || recorded;
    parents := parents || ARRAY(SELECT DISTINCT d.parent FROM scheduler.dependencies d
      WHERE d.parent = ANY (ids) AND recorded ? d.parent::text AND d.ended AND NOT d.applied);
    report := report || jsonb_build_object('lost', (SELECT coalesce(jsonb_agg(l.id), '[]')
      FROM jsonb_array_elements(report -> 'lost') AS l(id) WHERE NOT recorded ? l.id::text));
  END IF;
  RETURN report || jsonb_build_object('parents', parents, 'became', became);
END $$;

-- The completed ones, nearly all: locked, moved and answered in one statement (a fifth less time than through finish).
CREATE OR REPLACE FUNCTION scheduler.settle_completed(
  p_worker uuid, p_outcomes jsonb, OUT ids bigint[], OUT fences bigint[], OUT done bigint[])
LANGUAGE plpgsql AS $$
BEGIN
  WITH sent AS MATERIALIZED (
    SELECT r.id, r.fence, r.outcome, r.result
    FROM jsonb_to_recordset(p_outcomes) AS r(id bigint, fence bigint, outcome text, result jsonb)),
  held AS MATERIALIZED (
    SELECT s.id, nullif(s.result, 'null') AS result FROM sent s JOIN scheduler.jobs_active j ON j.id = s.id
    WHERE s.outcome = 'completed' AND octet_length(s.result::text) > 65536 IS NOT TRUE
      AND j.fence = s.fence AND j.worker_id = p_worker
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED),
  gone AS (
    DELETE FROM scheduler.jobs_active j USING held h WHERE j.id = h.id
    RETURNING j.id, j.kind, j.payload, j.queue, j.priority, j.tenant, j.run_at, j.depends_on, j.on_parent_failure,
      j.idempotency_key, j.unique_key, j.max_attempts, j.max_crashes, j.timeout, j.retry_base, j.retry_cap,
      j.retry_jitter, j.metadata, j.rank_at, j.line, j.attempt, j.fence, j.request, j.started_at,
      j.cancel_requested_at, j.submitted_at, j.schedule_id, j.fire_time, j.failures, j.crashes, h.result),
  kept AS (
    INSERT INTO scheduler.jobs_finished (
      id, kind, payload, queue, priority, tenant, run_at, depends_on, on_parent_failure,
      idempotency_key, unique_key, max_attempts, max_crashes, timeout, retry_base, retry_cap,
      retry_jitter, metadata, rank_at, line, attempt, fence, request, started_at,
      cancel_requested_at, submitted_at, schedule_id, fire_time, failures, crashes, result, status, finished_at)
    OVERRIDING SYSTEM VALUE
    SELECT g.*, 'COMPLETED', scheduler.clock() FROM gone g RETURNING id)
  SELECT (SELECT array_agg(s.id) FROM sent s), (SELECT array_agg(s.fence) FROM sent s), coalesce(array_agg(k.id), '{}')
  INTO ids, fences, done FROM kept k;
END $$;

-- What did not complete: retried, snoozed, or ended through finish.
CREATE OR REPLACE FUNCTION scheduler.settle_incomplete(
  p_worker uuid, p_outcomes jsonb, OUT done bigint[], OUT parents bigint[], OUT became jsonb)
LANGUAGE plpgsql AS $$
DECLARE endings scheduler.ending[];
BEGIN
  WITH sent AS MATERIALIZED (
    SELECT r.*, octet_length(r.result::text) > 65536 IS TRUE AS too_big
    FROM jsonb_to_recordset(p_outcomes) AS r(id bigint, fence bigint, outcome text, result jsonb, error_type text,
      error text, traceback text, delay double precision, retryable boolean)),
  held AS MATERIALIZED (
    SELECT s.id, CASE WHEN s.too_big THEN 'failed' ELSE s.outcome END AS outcome,
      CASE WHEN s.too_big THEN 'ResultTooLarge' ELSE s.error_type END AS error_type,
      CASE WHEN s.too_big THEN 'the result is over 64 kB: store it elsewhere and return a reference'
        ELSE left(s.error, 16384) END AS error,
      left(s.traceback, 16384) AS traceback,
      CASE WHEN s.delay IS NOT NULL THEN make_interval(secs => least(greatest(s.delay, 0), 31622400)) END AS delay,
      NOT s.too_big AND s.retryable IS NOT FALSE AS retryable,
      j.attempt, j.started_at, j.failures, j.max_attempts, j.cancel_requested_at
    FROM sent s JOIN scheduler.jobs_active j ON j.id = s.id
    WHERE (s.outcome <> 'completed' OR s.too_big) AND j.fence = s.fence AND j.worker_id = p_worker
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED),
  ruled AS MATERIALIZED (
    SELECT h.*, CASE
        WHEN h.outcome = 'cancelled' OR h.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
        WHEN h.attempt < 2147483647 AND (h.outcome = 'snoozed' OR h.retryable AND h.failures + 1 < h.max_attempts) THEN 'DELAYED'
        WHEN h.outcome = 'timed_out' THEN 'TIMED_OUT'
        ELSE 'FAILED' END::scheduler.job_status AS status
    FROM held h),
  logged AS (
    INSERT INTO scheduler.attempts (job_id, attempt, worker_id, started_at, ended_at, outcome, error_type, error, traceback)
    SELECT r.id, r.attempt, p_worker, r.started_at, scheduler.clock(), r.outcome, r.error_type, r.error, r.traceback
    FROM ruled r ON CONFLICT DO NOTHING),
  snoozed AS (
    UPDATE scheduler.jobs_active j
    SET status = 'DELAYED', worker_id = NULL, lease_expires_at = NULL, run_at = scheduler.clock() + coalesce(r.delay, '0'),
        rank_at = scheduler.rank(scheduler.clock() + coalesce(r.delay, '0'), j.priority,
          (SELECT q.step FROM scheduler.queues q WHERE q.queue = j.queue))
    FROM ruled r WHERE j.id = r.id AND r.status = 'DELAYED' AND r.outcome = 'snoozed'),
  retried AS (
    UPDATE scheduler.jobs_active j
    SET status = 'DELAYED', worker_id = NULL, lease_expires_at = NULL, failures = j.failures + 1,
        run_at = scheduler.clock() + CASE
          WHEN r.delay IS NULL THEN scheduler.backoff(j.failures + 1, j.retry_base, j.retry_cap, j.retry_jitter)
          ELSE r.delay * (1 + CASE WHEN j.retry_jitter THEN random() / 10 ELSE 0 END) END
    FROM ruled r WHERE j.id = r.id AND r.status = 'DELAYED' AND r.outcome <> 'snoozed')
  SELECT coalesce(array_agg(r.id), '{}'),
    array_agg(ROW(r.id, r.status, CASE WHEN r.status IN ('FAILED', 'TIMED_OUT') THEN 1 ELSE 0 END, 0, NULL,
      nullif(concat_ws(': ', r.error_type, r.error), ''), NULL)::scheduler.ending) FILTER (WHERE r.status <> 'DELAYED'),
    coalesce(jsonb_object_agg(r.id, r.status), '{}')
  INTO done, endings, became FROM ruled r;
  parents := scheduler.finish(endings);
  IF p_outcomes @> '[{"outcome": "snoozed"}]' THEN -- a job may snooze for ever: its log may not grow for ever
    DELETE FROM scheduler.attempts a WHERE a.job_id = ANY (done) AND a.outcome = 'snoozed'
      AND a.attempt <= (SELECT j.attempt - 100 FROM scheduler.jobs_active j WHERE j.id = a.job_id);
  END IF;
END $$;

-- Of the lost outcomes those that an earlier, unanswered call has recorded as they are, and the status that it gave: DELAYED
-- unless the job has ended with this very claim; and those of attempts that have completed, by such a call or by complete().
CREATE OR REPLACE FUNCTION scheduler.recorded(p_worker uuid, p_outcomes jsonb, p_lost jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (
    SELECT coalesce(jsonb_object_agg(s.id, coalesce(f.status, 'DELAYED')), '{}')
    FROM jsonb_to_recordset(p_outcomes) AS s(id bigint, fence bigint, outcome text)
    LEFT JOIN scheduler.jobs_finished f ON f.id = s.id AND f.fence = s.fence
    WHERE p_lost @> to_jsonb(s.id) AND (
      f.status = 'COMPLETED'
      OR EXISTS (SELECT FROM scheduler.attempts a WHERE a.job_id = s.id AND a.worker_id = p_worker
        AND a.attempt = (s.fence & 4294967295)::int AND (a.outcome = s.outcome OR a.error_type = 'ResultTooLarge'))));
END $$;
