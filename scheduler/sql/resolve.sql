-- resolve(parents, limit): let the children of ended jobs take notice. A child whose last parent is met becomes PENDING or
-- DELAYED; a child whose policy is cancel and one of whose parents did not complete becomes CANCELLED, in the name of the root.
-- Called in a transaction of its own right after settle, cancel and reap, with the parents they returned; and by a duty with
-- NULL, which takes any edge left over. Returns {"parents": [the next level], "more": edges are left for another call,
-- "busy": [parents whose child is locked by somebody: call again soon], "jobs": [{"ids", "kind", "queue", "tenant", "attempt",
-- "status"}]: the children that are BLOCKED no more, those that are alike together}.
-- Two parents ending together are no race: each marked its own edge `ended` in its own transaction, and whoever holds the
-- child applies every ended edge it sees, once, because applying an edge marks it `applied`. Whoever finds the child locked
-- is told `busy` and comes again. Locks SKIP LOCKED, ids ascending: NO KEY UPDATE to count (a grandchild being inserted
-- holds the child FOR KEY SHARE, and may), UPDATE for those it cancels.
-- callers: worker, operator, submitter
CREATE OR REPLACE FUNCTION scheduler.resolve(p_parents bigint[], p_limit int DEFAULT 1000) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  children bigint[];
  held bigint[];
  doomed bigint[];
  endings scheduler.ending[];
  queues text[];
  parents bigint[] := '{}';
  gone bigint[];
  busy bigint[];
  cancelled jsonb := '[]';
  jobs jsonb;
BEGIN
  PERFORM scheduler.need_read_committed('resolve');
  children := CASE
    WHEN p_parents IS NULL THEN ARRAY(SELECT DISTINCT e.child FROM (SELECT d.child FROM scheduler.dependencies d
      WHERE d.ended AND NOT d.applied LIMIT p_limit) AS e ORDER BY e.child)
    ELSE ARRAY(SELECT DISTINCT e.child FROM (SELECT d.child FROM scheduler.dependencies d
      WHERE d.parent = ANY (p_parents) AND d.ended AND NOT d.applied LIMIT p_limit) AS e ORDER BY e.child) END;
  IF children = '{}' THEN
    RETURN '{"parents": [], "busy": [], "more": false, "jobs": []}';
  END IF;
  WITH locked AS MATERIALIZED (
    SELECT j.id FROM scheduler.jobs_active j WHERE j.id = ANY (children) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED)
  SELECT coalesce(array_agg(l.id), '{}') INTO held FROM locked l;

  -- A new statement, so that it sees what was committed before the locks were held.
  SELECT array_agg(ROW(lost.child, 'CANCELLED', 0, 0, NULL, lost.reason, lost.root)::scheduler.ending) INTO endings
  FROM (SELECT DISTINCT ON (d.child) d.child, coalesce(f.cancelled_by, f.id) AS root,
          format('job %s, which this one depends on, ended %s', f.id, f.status) AS reason
        FROM scheduler.dependencies d JOIN scheduler.jobs_active j ON j.id = d.child
        JOIN scheduler.jobs_finished f ON f.id = d.parent
        WHERE d.child = ANY (held) AND j.id = ANY (held) AND d.ended AND NOT d.applied AND j.status = 'BLOCKED' AND j.on_parent_failure = 'cancel'
          AND f.status <> 'COMPLETED'
        ORDER BY d.child, f.finished_at, f.id) AS lost;
  IF endings IS NOT NULL THEN
    WITH locked AS MATERIALIZED (
      SELECT j.id, j.kind, j.queue, j.tenant, j.attempt FROM scheduler.jobs_active j
      WHERE j.id = ANY (ARRAY(SELECT e.id FROM unnest(endings) AS e)) ORDER BY j.id FOR UPDATE SKIP LOCKED),
    alike AS (
      SELECT array_agg(l.id) AS ids, l.kind, l.queue, l.tenant, l.attempt, 'CANCELLED' AS status FROM locked l
      GROUP BY l.kind, l.queue, l.tenant, l.attempt)
    SELECT ARRAY(SELECT l.id FROM locked l), coalesce(jsonb_agg(to_jsonb(a)), '[]') INTO doomed, cancelled FROM alike a;
    held := ARRAY(SELECT unnest(held) EXCEPT SELECT e.id FROM unnest(endings) AS e) || doomed;
    parents := scheduler.finish(ARRAY(SELECT e FROM unnest(endings) AS e WHERE e.id = ANY (doomed)));
  END IF;

  -- An edge is applied by what it says itself: another parent may have failed since the statement above. Edges of children
  -- that have ended have nobody to tell. Scalar subqueries: as EXISTS they may be hashed, which reads all that ever ended.
  gone := ARRAY(SELECT f.id FROM scheduler.jobs_finished f WHERE f.id = ANY (children));
  WITH applied AS (
    UPDATE scheduler.dependencies d SET applied = true
    WHERE d.child = ANY (children) AND d.ended AND NOT d.applied
      AND (d.child = ANY (gone) OR d.child = ANY (held) AND (
        (SELECT f.status = 'COMPLETED' FROM scheduler.jobs_finished f WHERE f.id = d.parent)
        OR (SELECT j.on_parent_failure = 'run' FROM scheduler.jobs_active j WHERE j.id = d.child)))
    RETURNING d.child),
  met AS MATERIALIZED (SELECT a.child, count(*)::int AS n FROM applied a WHERE a.child = ANY (held) GROUP BY a.child),
  freed AS (
    UPDATE scheduler.jobs_active j
    SET unmet = j.unmet - met.n, status = CASE
      WHEN j.unmet > met.n THEN 'BLOCKED' WHEN j.run_at > scheduler.clock() THEN 'DELAYED'
      ELSE 'PENDING' END::scheduler.job_status
    FROM met WHERE j.id = met.child AND j.status = 'BLOCKED'
    RETURNING j.id, j.kind, j.queue, j.tenant, j.attempt, j.status),
  alike AS (
    SELECT array_agg(f.id) AS ids, f.kind, f.queue, f.tenant, f.attempt, f.status FROM freed f WHERE f.status <> 'BLOCKED'
    GROUP BY f.kind, f.queue, f.tenant, f.attempt, f.status)
  SELECT coalesce(array_agg(DISTINCT a.queue) FILTER (WHERE a.queue IS NOT NULL), '{}'), coalesce(jsonb_agg(to_jsonb(a)), '[]')
  INTO queues, jobs FROM alike a;
  PERFORM scheduler.wake(queues);

  SELECT coalesce(array_agg(DISTINCT d.parent), '{}') INTO busy FROM scheduler.dependencies d
  WHERE d.child = ANY (children) AND d.ended AND NOT d.applied AND (p_parents IS NULL OR d.parent = ANY (p_parents));
  RETURN jsonb_build_object('parents', parents, 'busy', busy, 'jobs', cancelled || jobs, 'more', EXISTS (
    SELECT FROM scheduler.dependencies d WHERE d.ended AND NOT d.applied AND d.child <> ALL (children)
      AND (p_parents IS NULL OR d.parent = ANY (p_parents))));
END $$;
