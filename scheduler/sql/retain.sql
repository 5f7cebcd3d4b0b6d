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
  v_keep interval;
  walk scheduler.retention;
  page bigint[];
  due bigint[];
  gone bigint[];
  pruned int := 0;
  more boolean := scheduler.forget_keys(moment, p_limit);
BEGIN
  PERFORM scheduler.need_read_committed('retain');
  FOR v_keep IN
    SELECT DISTINCT k FROM unnest(ARRAY[scheduler.keep_of(NULL, 'COMPLETED'), scheduler.keep_of(NULL, 'FAILED')]
      || (SELECT array_agg(q.keep_completed) || array_agg(q.keep_failed) FROM scheduler.queues q)) AS k
    WHERE k IS NOT NULL ORDER BY k LOOP
    walk := scheduler.hold_walk(v_keep);
    SELECT array_agg(p.id), coalesce(array_agg(p.id) FILTER (WHERE p.is_due), '{}'), coalesce(max(p.finished_at), walk.seen_at)
    INTO page, due, walk.seen_at
    FROM (SELECT f.id, f.finished_at, scheduler.keep_of(f.queue, f.status) = v_keep AS is_due FROM scheduler.jobs_finished f
      WHERE (f.finished_at, f.id) > (walk.seen_at, walk.seen_id) AND f.finished_at <= moment - v_keep
      ORDER BY f.finished_at, f.id LIMIT p_limit) AS p;
    walk.seen_id := coalesce(page[cardinality(page)], walk.seen_id);
    gone := scheduler.remove(due);
    INSERT INTO scheduler.kept (job_id, look_at)
    SELECT d, moment + interval '1 hour' FROM unnest(due) AS d WHERE d <> ALL (gone) ON CONFLICT DO NOTHING;
    UPDATE scheduler.retention r SET seen_at = walk.seen_at, seen_id = walk.seen_id WHERE r.keep = v_keep AND r IS DISTINCT FROM walk;
    pruned := pruned + cardinality(gone);
    more := more OR cardinality(page) = p_limit IS TRUE;
  END LOOP;
  -- Another look at what had to stay. A job that runs again, or has ended again since, is left to the walks.
  page := ARRAY(SELECT k.job_id FROM scheduler.kept k WHERE k.look_at <= moment
    ORDER BY k.look_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
  due := ARRAY(SELECT f.id FROM scheduler.jobs_finished f
    WHERE f.id = ANY (page) AND f.finished_at <= moment - scheduler.keep_of(f.queue, f.status));
  gone := scheduler.remove(due);
  UPDATE scheduler.kept k SET look_at = moment + interval '1 hour' WHERE k.job_id = ANY (due) AND k.job_id <> ALL (gone);
  DELETE FROM scheduler.kept k WHERE k.job_id = ANY (page) AND (k.job_id <> ALL (due) OR k.job_id = ANY (gone));
  RETURN jsonb_build_object('pruned', pruned + cardinality(gone), 'more', more OR cardinality(page) = p_limit);
END $$;

-- How long a job of this queue and status is kept; a queue that nobody has declared has the defaults.
CREATE OR REPLACE FUNCTION scheduler.keep_of(p_queue text, p_status scheduler.job_status) RETURNS interval
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT CASE p_status WHEN 'COMPLETED' THEN q.keep_completed ELSE q.keep_failed END FROM scheduler.queues q WHERE q.queue = p_queue),
    CASE p_status WHEN 'COMPLETED' THEN interval '7 days' ELSE interval '30 days' END);
END $$;

-- Delete keys whose window has ended, but for those of unfinished jobs, which go with their jobs; return whether there may be more.
CREATE OR REPLACE FUNCTION scheduler.forget_keys(p_moment timestamptz, p_limit int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  walk scheduler.retention := scheduler.hold_walk('0');
  page scheduler.idempotency_keys[] := ARRAY(SELECT k FROM scheduler.idempotency_keys k
    WHERE (k.expires_at, k.job_id) > (walk.seen_at, walk.seen_id) AND k.expires_at <= p_moment
    ORDER BY k.expires_at, k.job_id LIMIT p_limit FOR UPDATE SKIP LOCKED);
  last scheduler.idempotency_keys := page[cardinality(page)];
BEGIN
  UPDATE scheduler.retention r SET seen_at = last.expires_at, seen_id = last.job_id WHERE r.keep = '0' AND page <> '{}';
  -- A new statement: it sees a job that was put back before its key was held here.
  DELETE FROM scheduler.idempotency_keys k WHERE (k.kind, k.key) IN (SELECT p.kind, p.key FROM unnest(page) AS p)
    AND (SELECT true FROM scheduler.jobs_active j WHERE j.id = k.job_id) IS NULL;
  RETURN cardinality(page) = p_limit;
END $$;

-- How far the walk for a period has come; null while another worker is on it.
CREATE OR REPLACE FUNCTION scheduler.hold_walk(p_keep interval) RETURNS scheduler.retention LANGUAGE plpgsql AS $$
DECLARE walk scheduler.retention;
BEGIN
  INSERT INTO scheduler.retention VALUES (p_keep, '-infinity', 0) ON CONFLICT DO NOTHING;
  SELECT * INTO walk FROM scheduler.retention r WHERE r.keep = p_keep FOR UPDATE SKIP LOCKED;
  RETURN walk;
END $$;
