-- retain(limit): delete finished jobs that have been kept long enough, and idempotency keys whose window has ended.
-- Completed jobs are kept for keep_completed of their queue (7 days unless set), the others for keep_failed (30 days).
-- Returns {"pruned": n, "more": there is more to look at now}.
-- For each period in use it walks the index (finished_at, id) once, at most `limit` jobs per call, and remembers how far it
-- came: jobs that are kept longer are not read again and again. What should go and has to stay (see prune) is noted in
-- scheduler.kept and looked at again every hour. When a queue is given other periods the walks begin anew.
-- One at a time: a second one returns at once. Jobs SKIP LOCKED; claims, renewals and settlements meet none of its locks.
-- callers: worker, operator
CREATE OR REPLACE FUNCTION scheduler.retain(p_limit int DEFAULT 500) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  moment timestamptz := scheduler.clock();
  walk scheduler.retention;
  page bigint[];
  due bigint[];
  gone bigint[];
  pruned int := 0;
  more boolean;
BEGIN
  PERFORM scheduler.need_read_committed('retain');
  IF NOT pg_try_advisory_xact_lock(7162513590022) THEN -- any number that no other program is likely to use
    RETURN '{"pruned": 0, "more": false}';
  END IF;
  more := scheduler.forget_keys(moment, p_limit);
  FOR walk IN
    SELECT k.keep, coalesce(r.seen_at, '-infinity'), coalesce(r.seen_id, 0)
    FROM (SELECT DISTINCT unnest(ARRAY[scheduler.keep_of(NULL, 'COMPLETED'), scheduler.keep_of(NULL, 'FAILED')]
      || (SELECT array_agg(q.keep_completed) || array_agg(q.keep_failed) FROM scheduler.queues q))) AS k(keep)
    LEFT JOIN scheduler.retention r ON r.keep = k.keep WHERE k.keep IS NOT NULL LOOP
    SELECT array_agg(p.id), coalesce(array_agg(p.id) FILTER (WHERE p.is_due), '{}'), coalesce(max(p.finished_at), walk.seen_at)
    INTO page, due, walk.seen_at
    FROM (SELECT f.id, f.finished_at, scheduler.keep_of(f.queue, f.status) = walk.keep AS is_due FROM scheduler.jobs_finished f
      WHERE (f.finished_at, f.id) > (walk.seen_at, walk.seen_id) AND f.finished_at <= moment - walk.keep
      ORDER BY f.finished_at, f.id LIMIT p_limit) AS p;
    walk.seen_id := coalesce(page[cardinality(page)], walk.seen_id);
    gone := scheduler.remove(due);
    INSERT INTO scheduler.kept (job_id, look_at)
    SELECT d, moment + interval '1 hour' FROM unnest(due) AS d WHERE d <> ALL (gone) ON CONFLICT DO NOTHING;
    PERFORM scheduler.walked(walk.keep, walk.seen_at, walk.seen_id);
    pruned := pruned + cardinality(gone);
    more := more OR cardinality(page) = p_limit IS TRUE;
  END LOOP;
  -- Another look at what had to stay. A job that runs again, or has ended again since, is left to the walks.
  page := ARRAY(SELECT k.job_id FROM scheduler.kept k WHERE k.look_at <= moment ORDER BY k.look_at LIMIT p_limit);
  due := ARRAY(SELECT f.id FROM scheduler.jobs_finished f
    WHERE f.id = ANY (page) AND f.finished_at <= moment - scheduler.keep_of(f.queue, f.status));
  gone := scheduler.remove(due);
  UPDATE scheduler.kept k SET look_at = moment + interval '1 hour' WHERE k.job_id = ANY (due) AND k.job_id <> ALL (gone);
  DELETE FROM scheduler.kept k WHERE k.job_id = ANY (page) AND (k.job_id <> ALL (due) OR k.job_id = ANY (gone));
  RETURN jsonb_build_object('pruned', pruned + cardinality(gone), 'more', more OR cardinality(page) = p_limit);
END $$;

CREATE OR REPLACE FUNCTION scheduler.walked(p_keep interval, p_seen_at timestamptz, p_seen_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO scheduler.retention AS r VALUES (p_keep, p_seen_at, p_seen_id)
  ON CONFLICT (keep) DO UPDATE SET seen_at = excluded.seen_at, seen_id = excluded.seen_id;
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
  page scheduler.idempotency_keys[] := ARRAY(SELECT k FROM scheduler.idempotency_keys k
    WHERE (k.expires_at, k.job_id) > (coalesce((SELECT r.seen_at FROM scheduler.retention r WHERE r.keep = '0'), '-infinity'),
      coalesce((SELECT r.seen_id FROM scheduler.retention r WHERE r.keep = '0'), 0)) AND k.expires_at <= p_moment
    ORDER BY k.expires_at, k.job_id LIMIT p_limit FOR UPDATE SKIP LOCKED);
BEGIN
  IF page <> '{}' THEN
    -- A new statement: it sees a job that was put back before its key was held here.
    DELETE FROM scheduler.idempotency_keys k WHERE (k.kind, k.key) IN (SELECT p.kind, p.key FROM unnest(page) AS p)
      AND (SELECT true FROM scheduler.jobs_active j WHERE j.id = k.job_id) IS NULL;
    PERFORM scheduler.walked('0', page[cardinality(page)].expires_at, page[cardinality(page)].job_id);
  END IF;
  RETURN cardinality(page) = p_limit;
END $$;
