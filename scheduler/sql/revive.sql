-- revive(go_on): put back what was cancelled because a job failed that now runs again, and what was cancelled because of that.
-- go_on: {"parents": [ids], "after": id, "children": [ids]}: whose children to look at, the last child looked at of the first
-- of them, and children that were busy. Returns {"revived": [ids], "refused": [{"id", "reason"}], "go_on": the same, or null}.
-- A child is revived when a failure had cancelled it and each of its parents has completed or runs again. Children that ran
-- stay as they are, and so do those that were cancelled by hand. One that another parent keeps cancelled is cancelled in the
-- name of that one from now on: cancelled_by always names a job that stands failed.
-- Race: resolve() may be cancelling a child in the name of the parent that has just been put back. Whoever holds the child
-- decides: held here, its edge is open again before resolve() can look; held there, it is busy, and found cancelled later.
-- At most a thousand edges per call, level by level; locks as retry.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.revive(p_go_on jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  report jsonb := '{"revived": [], "refused": []}';
  parents bigint[] := ARRAY(SELECT jsonb_array_elements_text(p_go_on -> 'parents')::bigint);
  children bigint[] := ARRAY(SELECT jsonb_array_elements_text(coalesce(p_go_on -> 'children', '[]'))::bigint);
  last bigint := coalesce((p_go_on ->> 'after')::bigint, 0);
  edges int := 1000 - cardinality(children);
  busy bigint[] := '{}';
  queues text[] := '{}';
  v_id bigint;
  tried record;
BEGIN
  PERFORM scheduler.need_read_committed('revive');
  LOOP
    FOREACH v_id IN ARRAY children LOOP
      SELECT * INTO tried FROM scheduler.revive_child(v_id);
      queues := queues || tried.queue;
      IF tried.verdict = 'busy' THEN
        busy := busy || v_id;
      ELSIF tried.verdict IS NOT NULL THEN
        report := jsonb_insert(report, ARRAY[tried.verdict, '-1'],
          CASE tried.verdict WHEN 'refused' THEN jsonb_build_object('id', v_id, 'reason', tried.reason) ELSE to_jsonb(v_id) END, true);
        IF (SELECT true FROM scheduler.dependencies d WHERE d.parent = v_id LIMIT 1) THEN
          parents := parents || v_id;
        END IF;
      END IF;
    END LOOP;
    EXIT WHEN parents = '{}' OR edges <= 0;
    children := ARRAY(SELECT d.child FROM scheduler.dependencies d
      WHERE d.parent = parents[1] AND d.child > last ORDER BY d.child LIMIT edges);
    edges := edges - 1 - cardinality(children);
    IF edges < 0 THEN -- there may be more children of this one
      last := children[cardinality(children)];
    ELSE
      parents := parents[2:];
      last := 0;
    END IF;
  END LOOP;
  PERFORM scheduler.wake(ARRAY(SELECT DISTINCT unnest(queues)));
  RETURN report || jsonb_build_object('go_on', CASE WHEN parents || busy <> '{}' THEN
    jsonb_build_object('parents', parents, 'after', last, 'children', busy) END);
END $$;

-- The verdict on one child of a job that was put back: revived, refused, busy, or null when there is nothing to do or to say.
CREATE OR REPLACE FUNCTION scheduler.revive_child(p_id bigint, OUT verdict text, OUT reason text, OUT queue text)
LANGUAGE plpgsql AS $$
DECLARE
  child record;
  tried record;
BEGIN
  SELECT j.status, j.cancelled_by INTO child FROM scheduler.jobs j WHERE j.id = p_id;
  IF child.status = 'BLOCKED' THEN
    PERFORM FROM scheduler.jobs_active j WHERE j.id = p_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      verdict := 'busy';
      RETURN;
    END IF;
    UPDATE scheduler.dependencies d SET ended = false
    WHERE d.child = p_id AND d.ended AND NOT d.applied AND d.parent = ANY (ARRAY(
      SELECT j.id FROM scheduler.jobs_active j JOIN scheduler.dependencies e ON e.parent = j.id
      WHERE e.child = p_id FOR KEY SHARE OF j SKIP LOCKED));
  ELSIF child.status = 'CANCELLED' AND child.cancelled_by IS NOT NULL THEN
    SELECT * INTO tried FROM scheduler.put_back(p_id);
    queue := tried.queue;
    verdict := CASE tried.verdict WHEN 'retried' THEN 'revived' WHEN 'refused' THEN 'refused' ELSE 'busy' END;
    IF verdict = 'refused' THEN
      UPDATE scheduler.jobs_finished f SET cancelled_by = tried.root, error = tried.reason
      WHERE f.id = p_id AND f.cancelled_by IS DISTINCT FROM tried.root;
      reason := tried.reason;
      verdict := CASE WHEN FOUND THEN 'refused' END;
    END IF;
  END IF;
END $$;
