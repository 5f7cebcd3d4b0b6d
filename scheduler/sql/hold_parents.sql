-- hold_parents(child, parents, on_failure): lock the parents of a new job and count those it must wait for.
-- FOR KEY SHARE: until this transaction ends no parent can end or be pruned, and so none ends unseen; claims and renewals
-- of the parents go on. Ids ascending, so that two submitters never deadlock.
-- Race: a parent may move between the partitions while it is looked for. Looking in active, in finished, and once more in
-- active, each in a statement of its own, finds it (in one statement 58 of 400 existing parents were called missing).
-- An open batch is a parent of its own: it waits for close_batch().
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.hold_parents(p_child bigint, p_parents bigint[], p_on_failure text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
  others CONSTANT bigint[] := array_remove(p_parents, p_child);
  active bigint[];
  ended bigint[];
  settled int;
BEGIN
  active := scheduler.hold_active(others);
  WITH held AS MATERIALIZED (
    SELECT j.id, j.status FROM scheduler.jobs_finished j
    WHERE j.id = ANY (others) ORDER BY j.id FOR KEY SHARE)
  SELECT coalesce(array_agg(held.id), '{}'), count(*) FILTER (WHERE held.status = 'COMPLETED' OR p_on_failure = 'run')
  INTO ended, settled FROM held;
  IF cardinality(active) + cardinality(ended) < cardinality(others) THEN
    active := active || scheduler.hold_active(ARRAY(SELECT unnest(others) EXCEPT SELECT unnest(active || ended)));
  END IF;
  IF cardinality(active) + cardinality(ended) < cardinality(others) THEN
    PERFORM scheduler.refuse('depends_on', format('names job %s, which does not exist',
        (SELECT min(missing) FROM (SELECT unnest(others) AS missing EXCEPT SELECT unnest(active || ended)) AS m)),
      'submit the parents first, and keep them until the child has run');
  END IF;
  RETURN cardinality(p_parents) - settled;
END $$;

CREATE OR REPLACE FUNCTION scheduler.hold_active(p_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (
    WITH held AS MATERIALIZED (
      SELECT j.id FROM scheduler.jobs_active j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR KEY SHARE)
    SELECT coalesce(array_agg(held.id), '{}') FROM held);
END $$;

-- The edges of an inserted job. Its parents are locked, so what is read here is what hold_parents counted.
CREATE OR REPLACE FUNCTION scheduler.link_parents() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
BEGIN
  PERFORM scheduler.link(NEW.id, NEW.depends_on, NEW.on_parent_failure);
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION scheduler.link(p_child bigint, p_parents bigint[], p_on_failure text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO scheduler.dependencies (parent, child, ended, applied)
  SELECT p, p_child, f.id IS NOT NULL, f.id IS NOT NULL AND (f.status = 'COMPLETED' OR p_on_failure = 'run')
  FROM unnest(p_parents) AS p LEFT JOIN scheduler.jobs_finished f ON f.id = p
  ON CONFLICT DO NOTHING;
END $$;

CREATE OR REPLACE TRIGGER link_parents AFTER INSERT ON scheduler.jobs_active
  FOR EACH ROW WHEN (NEW.depends_on <> '{}') EXECUTE FUNCTION scheduler.link_parents();
