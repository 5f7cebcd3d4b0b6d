-- fire(fires, limit): make the jobs of schedules that are due, and tell which are due or will be within 2 seconds.
-- fires: [{"id", "version", "fire_time", "times", "next", "error"}], computed from what this verb told. A compare and set: only a schedule
-- that still has this version, and fire_time for its next_fire, is touched, and its next_fire becomes `next`, which is later: one job
-- per schedule and fire time, whoever computes. `times` are due, oldest first; misfire and overlap decide here which become jobs. While
-- next_fire is unknown, with which version grows, fire_time is null, and only `next` counts; a fixed delay has none until its job has
-- ended. error: it stands still.
-- Returns {"fired": jobs, "now", "schedules": [{"id", "version", "mode", "cron", "time_zone", "every": seconds, "starts_at", "next_fire",
-- "after", "until", "wanted"}]}: `next` is the first time later than both `after` and, once next_fire is known, `until`, to which
-- times are due; so many of the newest are wanted.
-- Race: somebody's open transaction may have submitted with the unique_key of a schedule, or for the first time of its kind. After a
-- tenth of a second all are fired one by one, and only what has to wait is left to a later call.
-- Locks: schedules by id, then those of their jobs that others may wait for; SKIP LOCKED: what is held is left to the next call.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.fire(p_fires jsonb, p_limit int DEFAULT 200) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  fired int := 0;
  waited int := 0;
  moment timestamptz;
  one jsonb;
BEGIN
  IF p_fires <> '[]' THEN
    BEGIN
      fired := scheduler.fire_all(p_fires);
    EXCEPTION WHEN lock_not_available THEN
      FOR one IN SELECT value FROM jsonb_array_elements(p_fires) ORDER BY random() LOOP
        BEGIN
          fired := fired + scheduler.fire_all(jsonb_build_array(one));
        EXCEPTION WHEN lock_not_available THEN
          waited := waited + 1;
          EXIT WHEN waited = 20;
        END;
      END LOOP;
    END;
  END IF;
  moment := scheduler.clock();
  RETURN jsonb_build_object('fired', fired, 'now', moment, 'schedules', (SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM (
      SELECT s.id, s.version, s.mode, s.cron, s.time_zone, extract(epoch FROM s.every)::float8 AS every, s.starts_at, s.next_fire,
        coalesce(s.next_fire, CASE s.mode WHEN 'fixed_delay' THEN -- from the end of the last job; where that is gone, from now
            greatest(moment - s.every, s.starts_at - s.every, s.last_fire, CASE WHEN s.last_job IS NOT NULL THEN
              coalesce((SELECT f.finished_at FROM scheduler.jobs_finished f WHERE f.id = s.last_job), moment) END)
          ELSE greatest(moment, s.starts_at - interval '1 us', s.last_fire) END) AS after, least(moment, s.ends_at - interval '1 us') AS until,
        CASE s.misfire WHEN 'backfill' THEN s.backfill_limit ELSE 1 END AS wanted
      FROM scheduler.schedules s
      WHERE s.id = ANY (ARRAY(
          SELECT n.id FROM scheduler.schedules n WHERE NOT n.paused AND n.error IS NULL AND (n.next_fire < n.ends_at) IS NOT FALSE
            AND n.next_fire IS NULL AND (n.ends_at > moment) IS NOT FALSE AND (n.mode <> 'fixed_delay'
              OR (SELECT true FROM scheduler.jobs_active j WHERE j.schedule_id = n.id LIMIT 1) IS NULL) LIMIT p_limit)
        || ARRAY(
          SELECT n.id FROM scheduler.schedules n WHERE NOT n.paused AND n.error IS NULL AND (n.next_fire < n.ends_at) IS NOT FALSE
            AND n.next_fire <= moment + interval '2 s' ORDER BY n.next_fire, n.id LIMIT p_limit))) AS c));
END $$;

CREATE OR REPLACE FUNCTION scheduler.fire_all(p_fires jsonb) RETURNS int LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
  grace CONSTANT interval := '1 minute'; -- a fire that is later was missed
  held CONSTANT bigint[] := ARRAY(
    SELECT s.id FROM jsonb_to_recordset(p_fires) AS f(id bigint, version int, fire_time timestamptz)
    JOIN scheduler.schedules s ON s.id = f.id
    WHERE s.version = f.version AND s.next_fire IS NOT DISTINCT FROM f.fire_time AND NOT s.paused AND s.error IS NULL
    ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED);
  parents CONSTANT bigint[] := ARRAY(
    SELECT j.id FROM scheduler.jobs_active j JOIN scheduler.schedules s ON s.id = j.schedule_id
    WHERE j.schedule_id = ANY (held) AND s.overlap <> 'allow' ORDER BY j.id FOR KEY SHARE OF j SKIP LOCKED);
  moment CONSTANT timestamptz := scheduler.clock();
  fired int;
BEGIN
  PERFORM scheduler.need_read_committed('fire');
  WITH locked AS MATERIALIZED (
    SELECT j.schedule_id, count(*) AS jobs FROM unnest(parents) AS p JOIN scheduler.jobs_active j ON j.id = p GROUP BY j.schedule_id),
  due AS MATERIALIZED (
    SELECT s.id, s.overlap, s.misfire = 'skip' AND is_late AS is_dropped, unfinished, f.next, newest, coalesce(f.times, '{}') AS times,
      s.misfire = 'backfill' AND (cardinality(f.times) > 1 OR is_late) AS is_backlog,
      coalesce(f.error, CASE WHEN f.next <= greatest(s.next_fire, s.last_fire, newest) OR f.times[1] < s.next_fire
        THEN 'a worker computed times that do not grow' END) AS error
    FROM jsonb_to_recordset(p_fires) AS f(id bigint, times timestamptz[], next timestamptz, error text)
    JOIN scheduler.schedules s ON s.id = f.id
    CROSS JOIN LATERAL (SELECT max(t) AS newest, max(t) < moment - grace AS is_late FROM unnest(f.times) AS t) AS n
    CROSS JOIN LATERAL (SELECT CASE s.overlap WHEN 'allow' THEN '{}' ELSE
      ARRAY(SELECT j.id FROM scheduler.jobs_active j WHERE j.schedule_id = s.id) END AS unfinished) AS u
    WHERE s.id = ANY (held) AND (greatest(s.next_fire, newest) > moment) IS NOT TRUE
      -- What was computed long ago, by a worker that was halted, or before the clock went back, is computed anew.
      AND (f.next > moment - grace OR s.next_fire IS NULL OR coalesce(f.next >= s.ends_at, f.next IS NULL))
      AND (s.next_fire IS NOT NULL OR s.mode <> 'fixed_delay' -- its job may run again since, or, with two primaries, have ended only there
        OR (SELECT true FROM scheduler.jobs_active j WHERE j.schedule_id = s.id LIMIT 1) IS NULL
        AND (SELECT f.next < e.finished_at + s.every FROM scheduler.jobs_finished e WHERE e.id = s.last_job) IS NOT TRUE)
      AND cardinality(unfinished) = coalesce((SELECT l.jobs FROM locked l WHERE l.schedule_id = s.id), 0)),
  chosen AS MATERIALIZED (
    SELECT nextval('scheduler.jobs_id_seq') AS job, d.id, c.fire_time FROM due d CROSS JOIN LATERAL (
      SELECT t AS fire_time FROM unnest(d.times) AS t WHERE d.error IS NULL AND NOT d.is_dropped AND (d.overlap = 'allow' OR d.is_backlog
        OR cardinality(d.unfinished) < CASE d.overlap WHEN 'skip' THEN 1 ELSE 2 END)
      ORDER BY t DESC LIMIT CASE WHEN d.overlap <> 'allow' AND d.is_backlog THEN (
        SELECT greatest(s.backfill_limit - cardinality(d.unfinished), 0) FROM scheduler.schedules s WHERE s.id = d.id) END) AS c
    ORDER BY d.id, c.fire_time),
  inserted AS (
    INSERT INTO scheduler.jobs (id, kind, payload, tenant, priority, unique_key, schedule_id, fire_time, run_at, depends_on, on_parent_failure)
    OVERRIDING SYSTEM VALUE
    SELECT c.job, s.kind, s.payload, s.tenant, s.priority, s.unique_key, s.id, c.fire_time,
      c.fire_time + s.jitter * (('x' || left(md5(s.id || ':' || extract(epoch FROM c.fire_time)), 7))::bit(28)::int / 268435456.0::float8),
      CASE WHEN s.overlap = 'allow' OR s.unique_key IS NOT NULL THEN '{}' -- else one after the other
        WHEN lag(c.job) OVER line IS NULL THEN d.unfinished ELSE ARRAY[lag(c.job) OVER line] END, 'run'
    FROM chosen c JOIN due d ON d.id = c.id JOIN scheduler.schedules s ON s.id = c.id
    WINDOW line AS (PARTITION BY c.id ORDER BY c.job) ORDER BY c.job
    ON CONFLICT DO NOTHING RETURNING jobs.id, jobs.schedule_id),
  advanced AS (
    UPDATE scheduler.schedules s SET next_fire = CASE WHEN d.error IS NULL THEN d.next END, error = d.error,
      version = s.version + (d.next IS NULL)::int, -- or what was computed for an earlier unknown time would count now
      last_fire = coalesce(CASE WHEN d.error IS NULL THEN d.newest END, s.last_fire), last_job = coalesce(i.newest, s.last_job),
      skipped = s.skipped + CASE WHEN d.error IS NULL THEN cardinality(d.times) - coalesce(i.jobs, 0) ELSE 0 END
    FROM due d LEFT JOIN (SELECT schedule_id, max(id) AS newest, count(*) AS jobs FROM inserted GROUP BY 1) AS i ON i.schedule_id = d.id
    WHERE s.id = d.id RETURNING i.jobs)
  SELECT coalesce(sum(a.jobs), 0) INTO fired FROM advanced a;
  RETURN fired;
END $$;
