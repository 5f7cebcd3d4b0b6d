-- job(id): everything about one job as JSON: its row, the attempts that did not complete, parents, children; null if missing.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.job(p_id bigint) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
BEGIN
  RETURN (
    SELECT scheduler.job_facts(j) || jsonb_build_object('payload', j.payload, 'result', j.result,
      'attempts', coalesce((SELECT jsonb_agg(to_jsonb(a) - 'job_id' ORDER BY a.attempt)
        FROM scheduler.attempts a WHERE a.job_id = p_id), '[]'),
      'children', coalesce((SELECT jsonb_agg(c.child) FROM (
        SELECT d.child FROM scheduler.dependencies d WHERE d.parent = p_id AND d.child <> p_id ORDER BY d.child LIMIT 100) AS c), '[]'))
      || CASE WHEN EXISTS (SELECT FROM scheduler.dependencies d WHERE d.parent = p_id AND d.child = p_id AND NOT d.ended)
        THEN '{"open_batch": true}' ELSE '{}' END::jsonb
    FROM scheduler.jobs j WHERE j.id = p_id);
END $$;
