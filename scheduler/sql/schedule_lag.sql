-- schedule_lag: how late jobs started, started_at - run_at, per queue, over those that run now or ended in the last five minutes.
-- callers: viewer, operator
CREATE VIEW scheduler.schedule_lag AS
SELECT s.queue, count(*) AS started,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY s.lag) AS p50, percentile_cont(0.99) WITHIN GROUP (ORDER BY s.lag) AS p99,
  max(s.lag) AS worst
FROM (
  SELECT j.queue, j.started_at - j.run_at AS lag FROM scheduler.jobs_active j WHERE j.status = 'RUNNING'
  UNION ALL
  SELECT j.queue, j.started_at - j.run_at FROM scheduler.jobs_finished j
  WHERE j.finished_at > (SELECT scheduler.clock() - interval '5 minutes') AND j.started_at IS NOT NULL) AS s
GROUP BY s.queue;
