-- cancel(ids): end jobs that have not started; ask the worker of a running one to stop it.
-- Returns {"cancelled": [ids], "requested": [ids], "ended": [already finished], "missing": [ids], "parents": [ids for resolve]}.
-- A running job whose cancellation was requested ends CANCELLED at its next failed, timed out, snoozed, released or reaped
-- end; when it completes first it stays COMPLETED. Its worker is notified, and otherwise learns it from its next renewal.
-- Waits for locks, FOR NO KEY UPDATE, ids ascending: a running job can be asked while a handler's transaction holds it (see
-- hold). Those that end are deleted, and that waits for whoever is inserting a child of theirs. Race: a job may finish while
-- it is looked for, so what is not found active is looked for among the finished in a later statement, and once more among
-- the active.
-- callers: worker, operator
CREATE OR REPLACE FUNCTION scheduler.cancel(p_ids bigint[]) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off AS $$
DECLARE
  first jsonb;
  ended bigint[];
  again jsonb;
BEGIN
  PERFORM scheduler.need_read_committed('cancel');
  first := scheduler.cancel_active(p_ids);
  ended := ARRAY(SELECT f.id FROM scheduler.jobs_finished f WHERE f.id = ANY (p_ids) AND NOT first -> 'cancelled' @> to_jsonb(f.id));
  again := scheduler.cancel_active(ARRAY(
    SELECT unnest(p_ids) EXCEPT SELECT unnest(ended)
    EXCEPT SELECT i::bigint FROM jsonb_array_elements_text(first -> 'cancelled' || (first -> 'requested')) AS i));
  RETURN jsonb_build_object(
    'cancelled', first -> 'cancelled' || (again -> 'cancelled'), 'requested', first -> 'requested' || (again -> 'requested'),
    'parents', first -> 'parents' || (again -> 'parents'), 'ended', ended, 'missing', again -> 'missing');
END $$;

CREATE OR REPLACE FUNCTION scheduler.cancel_active(p_ids bigint[]) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  found bigint[];
  requested bigint[];
  endings scheduler.ending[];
  parents bigint[];
BEGIN
  WITH held AS MATERIALIZED (
    SELECT j.id, j.status, j.worker_id FROM scheduler.jobs_active j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR NO KEY UPDATE),
  asked AS (
    UPDATE scheduler.jobs_active j SET cancel_requested_at = coalesce(j.cancel_requested_at, scheduler.clock())
    WHERE j.id = ANY (ARRAY(SELECT h.id FROM held h WHERE h.status = 'RUNNING')))
  SELECT coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.id) FILTER (WHERE h.status = 'RUNNING'), '{}'),
    array_agg(ROW(h.id, 'CANCELLED', 0, 0, NULL, NULL, NULL)::scheduler.ending) FILTER (WHERE h.status <> 'RUNNING')
  INTO found, requested, endings FROM held h;
  parents := scheduler.finish(endings);
  PERFORM pg_notify(w.channel, 'cancel') FROM scheduler.workers w
  WHERE w.id IN (SELECT j.worker_id FROM scheduler.jobs_active j WHERE j.id = ANY (requested));
  RETURN jsonb_build_object('cancelled', ARRAY(SELECT e.id FROM unnest(endings) AS e), 'requested', requested,
    'parents', parents, 'missing', ARRAY(SELECT unnest(p_ids) EXCEPT SELECT unnest(found)));
END $$;
