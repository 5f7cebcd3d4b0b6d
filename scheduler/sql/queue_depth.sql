-- queue_depth: what waits and runs, per queue and kind, and for how long the oldest claimable job has waited.
-- callers: viewer, operator
CREATE VIEW scheduler.queue_depth AS
SELECT coalesce(j.queue, '(undeclared kind)') AS queue, j.kind,
  count(*) FILTER (WHERE j.status = 'BLOCKED') AS blocked,
  count(*) FILTER (WHERE j.status = 'DELAYED') AS delayed,
  count(*) FILTER (WHERE j.status = 'PENDING') AS pending,
  count(*) FILTER (WHERE j.status = 'RUNNING') AS running,
  max(scheduler.clock() - greatest(j.run_at, j.submitted_at)) FILTER (WHERE j.status = 'PENDING') AS oldest_pending
FROM scheduler.jobs_active j GROUP BY 1, 2;
