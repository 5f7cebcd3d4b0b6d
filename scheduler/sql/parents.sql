-- parents(id, after): what became of the jobs that a job depends on, the members of a batch among them: {"parents": [{"id", "name":
-- by which a graph called it, "status", "result", "error"}], "more"}. Ids ascending, from behind `after`, at most 1 MB of JSON;
-- with "more", ask again from behind the last one. A parent that was pruned is missing: of a job put back by an operator only.
-- One row after the other, so that no more than a page is ever read of large results.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.parents(p_id bigint, p_after bigint DEFAULT 0) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  page jsonb[] := '{}';
  size int := 0;
  parent jsonb;
BEGIN
  FOR parent IN
    SELECT jsonb_build_object('id', j.id, 'status', j.status)
      || CASE WHEN d.name IS NULL THEN '{}' ELSE jsonb_build_object('name', d.name) END
      || CASE WHEN j.result IS NULL THEN '{}' ELSE jsonb_build_object('result', j.result) END
      || CASE WHEN j.error IS NULL THEN '{}' ELSE jsonb_build_object('error', j.error) END
    FROM (SELECT e.parent, e.name FROM scheduler.dependencies e
      WHERE e.child = p_id AND e.parent > p_after AND e.parent <> p_id ORDER BY e.parent OFFSET 0) AS d
    CROSS JOIN LATERAL (SELECT * FROM scheduler.jobs f WHERE f.id = d.parent OFFSET 0) AS j
  LOOP
    size := size + octet_length(parent::text) + 2;
    IF size > 1048576 THEN
      RETURN jsonb_build_object('parents', to_jsonb(page), 'more', true);
    END IF;
    page := page || parent;
  END LOOP;
  RETURN jsonb_build_object('parents', to_jsonb(page), 'more', false);
END $$;

-- For a claim: the parents, or false when they are more than a page.
CREATE OR REPLACE FUNCTION scheduler.parents_for_claim(p_id bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE found CONSTANT jsonb := scheduler.parents(p_id);
BEGIN
  RETURN CASE WHEN (found -> 'more')::boolean THEN 'false' ELSE found -> 'parents' END;
END $$;
