-- reap(lease, limit): return jobs whose lease has lapsed to PENDING; end a job that has now lost more than max_crashes workers.
-- Returns {"reaped": [ids], "parents": [ids], "jobs": [{"ids", "kind", "queue", "tenant", "attempt", "status",
-- "outcome", "duration", "error_type", "error"}]}: where each went, and how its attempt ended, after how many seconds.
-- Does nothing until one lease after the server started or the epoch changed: while the database was away nobody could
-- renew, and an outage is nobody's crash. So what was claimed before it and not renewed since is given back uncounted (its
-- outcome is `released`): its worker had to stop it by its own clock where the outage was longer than the lease.
-- Race: a renewal or a settlement may be under way; the guard stands in the locking statement. Locks FOR UPDATE SKIP LOCKED, in
-- any order; the limit counts what was locked, so that a page of jobs that others hold hides none behind it.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.reap(p_lease interval, p_limit int DEFAULT 1000) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  reaped bigint[];
  endings scheduler.ending[];
  queues text[];
  parents bigint[];
  jobs jsonb;
  words constant text := 'the worker did not renew its lease';
  up timestamptz; -- since when leases can be renewed
BEGIN
  PERFORM scheduler.need_read_committed('reap');
  PERFORM scheduler.current_epoch(); -- on a standby just promoted it is this that begins the lease of grace
  up := greatest(pg_postmaster_start_time(), (SELECT e.changed_at FROM scheduler.epoch e));
  IF scheduler.clock() < p_lease + up THEN
    RETURN '{"reaped": [], "parents": [], "jobs": []}';
  END IF;
  WITH held AS MATERIALIZED (
    SELECT j.id, j.kind, j.queue, j.tenant, j.attempt, j.worker_id, j.started_at, j.crashes, j.max_crashes, j.cancel_requested_at,
      j.started_at > up OR j.lease_expires_at > up + p_lease AS crashed
    FROM scheduler.jobs_active j WHERE j.status = 'RUNNING' AND j.lease_expires_at < scheduler.clock()
    LIMIT p_limit FOR UPDATE SKIP LOCKED),
  ruled AS MATERIALIZED (
    SELECT h.*, CASE WHEN h.cancel_requested_at IS NOT NULL THEN 'CANCELLED' WHEN h.crashed AND h.crashes >= h.max_crashes THEN 'FAILED'
      ELSE 'PENDING' END::scheduler.job_status AS status FROM held h),
  logged AS (
    INSERT INTO scheduler.attempts (job_id, attempt, worker_id, started_at, ended_at, outcome, error_type, error)
    SELECT r.id, r.attempt, r.worker_id, r.started_at, scheduler.clock(),
      CASE WHEN r.crashed THEN 'lost' ELSE 'released' END, 'WorkerLost', words
    FROM ruled r ON CONFLICT DO NOTHING),
  returned AS (
    UPDATE scheduler.jobs_active j SET status = 'PENDING', worker_id = NULL, lease_expires_at = NULL,
      crashes = j.crashes + (j.id = ANY (ARRAY(SELECT r.id FROM ruled r WHERE r.crashed)))::int
    WHERE j.id = ANY (ARRAY(SELECT r.id FROM ruled r WHERE r.status = 'PENDING')) RETURNING j.queue)
  SELECT coalesce(array_agg(r.id), '{}'), ARRAY(SELECT DISTINCT b.queue FROM returned b),
    array_agg(ROW(r.id, r.status, 0, r.crashed::int, NULL, CASE WHEN r.status = 'FAILED' THEN
      format('WorkerLost: %s workers were lost while they ran this job (max_crashes %s)', r.crashes + 1, r.max_crashes) END,
      NULL)::scheduler.ending) FILTER (WHERE r.status <> 'PENDING'),
    coalesce(jsonb_agg(jsonb_build_object('ids', ARRAY[r.id], 'kind', r.kind, 'queue', r.queue, 'tenant', r.tenant,
      'attempt', r.attempt, 'status', r.status, 'outcome', CASE WHEN r.crashed THEN 'lost' ELSE 'released' END, 'error_type', 'WorkerLost', 'error', words,
      'duration', extract(epoch FROM scheduler.clock() - r.started_at)::float8)), '[]')
  INTO reaped, queues, endings, jobs FROM ruled r;
  parents := scheduler.finish(endings);
  PERFORM scheduler.wake(queues);
  RETURN jsonb_build_object('reaped', reaped, 'parents', parents, 'jobs', jobs);
END $$;
