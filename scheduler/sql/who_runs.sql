-- who_runs(kind): the queue of a kind, the queues from which live workers run it, and the names among which to look for the
-- one that was meant: {"queue": null when undeclared, "served": [..], "kinds": [..], "queues": [..]}.
-- A worker is live when it was seen within a minute and is not draining; it runs a kind when it has slots for it.
-- callers: submitter, operator
CREATE OR REPLACE FUNCTION scheduler.who_runs(p_kind text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (
    WITH live AS (SELECT w.* FROM scheduler.workers w WHERE w.seen_at > scheduler.clock() - interval '1 minute' AND NOT w.draining)
    SELECT jsonb_build_object(
      'queue', (SELECT k.queue FROM scheduler.kinds k WHERE k.kind = p_kind),
      'served', ARRAY(SELECT DISTINCT q FROM live CROSS JOIN unnest(live.queues) AS q
                      JOIN scheduler.kinds k ON k.kind = p_kind AND live.slots ? k.executor WHERE p_kind = ANY (live.kinds)),
      'kinds', ARRAY(SELECT k.kind FROM scheduler.kinds k WHERE k.seen_at IS NOT NULL),
      'queues', ARRAY(SELECT unnest(live.queues) FROM live UNION SELECT k.queue FROM scheduler.kinds k WHERE k.seen_at IS NOT NULL
                      UNION SELECT q.queue FROM scheduler.queues q)));
END $$;
