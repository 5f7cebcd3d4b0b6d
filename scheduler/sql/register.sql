-- register(worker, facts): put a worker process on the list, or correct what the list says of it.
-- facts: {"host", "pid", "version", "queues", "kinds", "slots", "channel", "draining", "abandoned"}. Claims do not need it; waking up does.
-- Forgets workers that have not been seen for a day.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.register(p_worker uuid, p_facts jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  queues text[] := ARRAY(SELECT jsonb_array_elements_text(p_facts -> 'queues'));
  kinds text[] := ARRAY(SELECT jsonb_array_elements_text(p_facts -> 'kinds'));
BEGIN
  INSERT INTO scheduler.workers AS w (id, host, pid, version, queues, kinds, slots, channel, draining, abandoned, started_at,
    seen_at)
  VALUES (p_worker, p_facts ->> 'host', (p_facts ->> 'pid')::int, p_facts ->> 'version', queues, kinds, p_facts -> 'slots',
    p_facts ->> 'channel', coalesce((p_facts ->> 'draining')::boolean, false), coalesce((p_facts ->> 'abandoned')::int, 0),
    scheduler.clock(), scheduler.clock())
  ON CONFLICT (id) DO UPDATE SET queues = excluded.queues, kinds = excluded.kinds, slots = excluded.slots,
    draining = excluded.draining, abandoned = excluded.abandoned, seen_at = excluded.seen_at, sleeping = w.sleeping AND NOT excluded.draining;
  DELETE FROM scheduler.workers w WHERE w.id IN (
    SELECT o.id FROM scheduler.workers o WHERE o.seen_at < scheduler.clock() - interval '1 day' FOR UPDATE SKIP LOCKED);
END $$;

-- doze(worker, sleeping): whether an insert should wake this worker. Set it, poll once more, then sleep: a job whose insert
-- looked before this committed is found by that poll or the next.
CREATE OR REPLACE FUNCTION scheduler.doze(p_worker uuid, p_sleeping boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE scheduler.workers w SET sleeping = p_sleeping, seen_at = scheduler.clock() WHERE w.id = p_worker;
END $$;

-- deregister(worker): the process has ended.
CREATE OR REPLACE FUNCTION scheduler.deregister(p_worker uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM scheduler.workers w WHERE w.id = p_worker
$$;
