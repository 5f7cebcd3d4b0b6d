-- retain(limit): delete finished jobs that have been kept long enough, and idempotency keys whose window has ended.
-- Completed jobs are kept for keep_completed of their queue (7 days unless set), the others for keep_failed (30 days).
-- Returns {"pruned": n, "more": there is more to look at now}.
-- For each period in use it walks the index (finished_at, id) once, at most `limit` jobs per call, and remembers how far it
-- came: jobs that are kept longer are not read again and again. What should go and has to stay (see prune) is noted in
-- scheduler.kept and looked at again every hour. When a queue is given other periods the walks begin anew.
-- Locks SKIP LOCKED: two of these never wait for each other. Claims, renewals and settlements meet none of its locks.
-- callers: worker, operator
CREATE OR REPLACE FUNCTION scheduler.retain(p_limit int DEFAULT 500) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  moment timestamptz := scheduler.clock();
  pruned int := 0;
  more boolean := false;
  v_keep interval;
  walked record;
BEGIN
  PERFORM scheduler.need_read_committed('retain');
  FOR v_keep IN
    SELECT q.keep_completed FROM scheduler.queues q WHERE q.keep_completed IS NOT NULL
    UNION SELECT q.keep_failed FROM scheduler.queues q WHERE q.keep_failed IS NOT NULL
    UNION SELECT scheduler.keep_of(NULL, 'COMPLETED') UNION SELECT scheduler.keep_of(NULL, 'FAILED') ORDER BY 1 LOOP
    SELECT * INTO walked FROM scheduler.walk_finished(v_keep, moment, p_limit);
    pruned := pruned + walked.pruned;
    more := more OR walked.more;
  END LOOP;
  SELECT * INTO walked FROM scheduler.walk_kept(moment, p_limit);
  pruned := pruned + walked.pruned;
  RETURN jsonb_build_object('pruned', pruned, 'more', more OR walked.more OR scheduler.walk_keys(moment, p_limit));
END $$;

-- How long a job of this queue and status is kept; a queue that nobody has declared has the defaults.
CREATE OR REPLACE FUNCTION scheduler.keep_of(p_queue text, p_status scheduler.job_status) RETURNS interval
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT CASE p_status WHEN 'COMPLETED' THEN q.keep_completed ELSE q.keep_failed END FROM scheduler.queues q WHERE q.queue = p_queue),
    CASE p_status WHEN 'COMPLETED' THEN interval '7 days' ELSE interval '30 days' END);
END $$;

-- Where the walk for this period stands; null when another worker is on it.
CREATE OR REPLACE FUNCTION scheduler.hold_walk(p_keep interval) RETURNS scheduler.retention LANGUAGE plpgsql AS $$
DECLARE
  v_periods jsonb := (SELECT coalesce(jsonb_object_agg(q.queue, ARRAY[q.keep_completed, q.keep_failed]), '{}')
    FROM scheduler.queues q WHERE num_nonnulls(q.keep_completed, q.keep_failed) > 0);
  walk scheduler.retention;
BEGIN
  INSERT INTO scheduler.retention VALUES (p_keep, v_periods, '-infinity', 0) ON CONFLICT DO NOTHING;
  SELECT * INTO walk FROM scheduler.retention r WHERE r.keep = p_keep FOR UPDATE SKIP LOCKED;
  IF walk.periods <> v_periods THEN
    walk.seen_at := '-infinity';
    walk.periods := v_periods;
  END IF;
  RETURN walk;
END $$;

CREATE OR REPLACE FUNCTION scheduler.walk_finished(
  p_keep interval, p_moment timestamptz, p_limit int, OUT pruned int, OUT more boolean)
LANGUAGE plpgsql AS $$
DECLARE
  walk scheduler.retention := scheduler.hold_walk(p_keep);
  ripe timestamptz := p_moment - p_keep;
  due bigint[];
  gone bigint[];
BEGIN
  pruned := 0;
  more := false;
  IF walk.keep IS NULL THEN
    RETURN;
  END IF;
  WITH page AS MATERIALIZED (
    SELECT f.id, f.finished_at, scheduler.keep_of(f.queue, f.status) = p_keep AS is_due FROM scheduler.jobs_finished f
    WHERE (f.finished_at, f.id) > (walk.seen_at, walk.seen_id) AND f.finished_at <= ripe
    ORDER BY f.finished_at, f.id LIMIT p_limit)
  SELECT coalesce(array_agg(p.id) FILTER (WHERE p.is_due), '{}'), count(*) = p_limit,
    coalesce((array_agg(p.finished_at ORDER BY p.finished_at DESC, p.id DESC))[1], walk.seen_at),
    coalesce((array_agg(p.id ORDER BY p.finished_at DESC, p.id DESC))[1], walk.seen_id)
  INTO due, more, walk.seen_at, walk.seen_id FROM page p;
  gone := scheduler.remove(due);
  pruned := cardinality(gone);
  INSERT INTO scheduler.kept (job_id, look_at)
  SELECT d, p_moment + interval '1 hour' FROM unnest(due) AS d WHERE d <> ALL (gone) ON CONFLICT DO NOTHING;
  UPDATE scheduler.retention r SET seen_at = walk.seen_at, seen_id = walk.seen_id, periods = walk.periods
  WHERE r.keep = walk.keep AND r IS DISTINCT FROM walk;
END $$;

-- Another look at what had to stay. A job that runs again, or has ended again since, is left to the walk.
CREATE OR REPLACE FUNCTION scheduler.walk_kept(p_moment timestamptz, p_limit int, OUT pruned int, OUT more boolean)
LANGUAGE plpgsql AS $$
DECLARE
  page bigint[] := ARRAY(SELECT k.job_id FROM scheduler.kept k WHERE k.look_at <= p_moment
    ORDER BY k.look_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
  due bigint[] := ARRAY(SELECT f.id FROM scheduler.jobs_finished f
    WHERE f.id = ANY (page) AND f.finished_at <= p_moment - scheduler.keep_of(f.queue, f.status));
  gone bigint[] := scheduler.remove(due);
BEGIN
  pruned := cardinality(gone);
  more := cardinality(page) = p_limit;
  UPDATE scheduler.kept k SET look_at = p_moment + interval '1 hour' WHERE k.job_id = ANY (due) AND k.job_id <> ALL (gone);
  DELETE FROM scheduler.kept k WHERE k.job_id = ANY (page) AND (k.job_id <> ALL (due) OR k.job_id = ANY (gone));
END $$;

-- Keys whose window has ended, but for those of unfinished jobs: they go with their jobs. Returns whether there may be more.
CREATE OR REPLACE FUNCTION scheduler.walk_keys(p_moment timestamptz, p_limit int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  walk scheduler.retention := scheduler.hold_walk('0');
  kinds text[];
  keys text[];
BEGIN
  WITH expired AS MATERIALIZED (
    SELECT k.kind, k.key, k.expires_at, k.job_id FROM scheduler.idempotency_keys k
    WHERE (k.expires_at, k.job_id) > (walk.seen_at, walk.seen_id) AND k.expires_at <= p_moment
    ORDER BY k.expires_at, k.job_id LIMIT p_limit FOR UPDATE SKIP LOCKED)
  SELECT array_agg(e.kind), array_agg(e.key), coalesce(max(e.expires_at), walk.seen_at),
    coalesce((array_agg(e.job_id ORDER BY e.expires_at DESC, e.job_id DESC))[1], walk.seen_id)
  INTO kinds, keys, walk.seen_at, walk.seen_id FROM expired e;
  -- A new statement: it sees a job that was put back before its key was held here.
  DELETE FROM scheduler.idempotency_keys k WHERE (k.kind, k.key) IN (SELECT * FROM unnest(kinds, keys))
    AND (SELECT true FROM scheduler.jobs_active j WHERE j.id = k.job_id) IS NULL;
  UPDATE scheduler.retention r SET seen_at = walk.seen_at, seen_id = walk.seen_id, periods = walk.periods
  WHERE r.keep = walk.keep AND r IS DISTINCT FROM walk;
  RETURN cardinality(keys) = p_limit IS TRUE;
END $$;
