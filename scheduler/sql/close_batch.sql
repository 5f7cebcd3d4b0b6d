-- close_batch(id): say that all members of a batch have been submitted; its callback runs once the last of them has ended.
-- A batch is a BLOCKED job, the callback, that may still gain parents, its members: it depends on itself until it is closed.
-- Closed without a member it runs at once. Returns false when it was closed, or had ended, before. A closed batch gains members
-- from its own unfinished members only, for which it waits anyway.
-- Locks the callback FOR NO KEY UPDATE, and waits for whoever adds a member or takes notice of one.
-- callers: submitter, worker, operator
CREATE OR REPLACE FUNCTION scheduler.close_batch(p_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
  v_queue text;
  was_open boolean;
BEGIN
  PERFORM FROM scheduler.jobs_active j WHERE j.id = p_id FOR NO KEY UPDATE;
  UPDATE scheduler.dependencies d SET ended = true, applied = true WHERE d.parent = p_id AND d.child = p_id AND NOT d.ended;
  was_open := FOUND;
  IF was_open THEN
    UPDATE scheduler.jobs_active j SET unmet = j.unmet - 1, status = CASE WHEN j.unmet > 1 THEN 'BLOCKED'
      WHEN j.run_at > scheduler.clock() THEN 'DELAYED' ELSE 'PENDING' END::scheduler.job_status
    WHERE j.id = p_id RETURNING j.queue INTO v_queue;
    PERFORM scheduler.wake(ARRAY[v_queue]);
  ELSIF NOT EXISTS (SELECT FROM scheduler.dependencies d WHERE d.parent = p_id AND d.child = p_id) THEN
    PERFORM scheduler.refuse('batch', format('%s is no batch', p_id), 'give the id of a job that was submitted with batch: true');
  END IF;
  RETURN was_open;
END $$;

-- Hold the batches of jobs that are to be their members, if they may still have some.
CREATE OR REPLACE FUNCTION scheduler.hold_batches(p_jobs jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE one record;
BEGIN
  FOR one IN SELECT DISTINCT (e.job ->> 'member_of')::bigint AS batch, (e.job ->> 'member')::bigint AS member
      FROM jsonb_array_elements(p_jobs) AS e(job) WHERE e.job ->> 'member_of' IS NOT NULL
        AND NOT scheduler.is_member((e.job ->> 'member_of')::bigint, e.job ->> 'kind', e.job ->> 'idempotency_key') ORDER BY 1 LOOP
    PERFORM FROM scheduler.jobs_active j WHERE j.id = one.batch AND j.unmet > 0 FOR NO KEY UPDATE;
    IF NOT FOUND OR (SELECT NOT d.ended OR (SELECT NOT m.ended FROM scheduler.dependencies m
        WHERE m.parent = one.member AND m.child = one.batch AND m.parent <> m.child)
      FROM scheduler.dependencies d WHERE d.parent = one.batch AND d.child = one.batch) IS NOT TRUE THEN
      PERFORM scheduler.refuse('member_of', format('names job %s, which is no open batch', one.batch),
        'add members before close_batch(), or from a member that has not ended');
    END IF;
  END LOOP;
END $$;

-- Whether a key stands for a job that is a member already. An author that runs again finds its batch closed: nothing is added then.
CREATE OR REPLACE FUNCTION scheduler.is_member(p_batch bigint, p_kind text, p_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
BEGIN
  RETURN EXISTS (SELECT FROM scheduler.idempotency_keys k JOIN scheduler.dependencies d ON d.parent = k.job_id AND d.child = p_batch
    WHERE k.kind = p_kind AND k.key = p_key AND k.expires_at > scheduler.clock() AND d.parent <> d.child);
END $$;

-- Make jobs members of a batch that is held. Those that a key stands for may be members already, or have ended.
-- No cycle: a new job may wait for members only, and one that was there before for nothing.
CREATE OR REPLACE FUNCTION scheduler.join_batch(p_batch bigint, p_members bigint[], p_older bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
DECLARE
  policy CONSTANT text := (SELECT j.on_parent_failure FROM scheduler.jobs_active j WHERE j.id = p_batch);
  members CONSTANT bigint[] := ARRAY(SELECT unnest(p_members) EXCEPT SELECT d.parent FROM scheduler.dependencies d WHERE d.child = p_batch);
  older CONSTANT bigint[] := ARRAY(SELECT unnest(members) INTERSECT SELECT unnest(p_older));
  added CONSTANT int := cardinality(members) - cardinality(older) + scheduler.hold_parents(p_batch, older, policy);
  wrong bigint;
BEGIN
  PERFORM scheduler.link(p_batch, members, policy);
  SELECT d.child INTO wrong FROM unnest(members) AS m(id) JOIN scheduler.dependencies d ON d.child = m.id
  WHERE NOT d.applied AND (m.id = ANY (older) OR d.parent <> d.child AND NOT EXISTS (
    SELECT FROM scheduler.dependencies s WHERE s.parent = d.parent AND s.child = p_batch AND s.parent <> p_batch)) LIMIT 1;
  IF wrong IS NOT NULL THEN
    PERFORM scheduler.refuse('member_of', format('would wait for job %s, which waits for others', wrong),
      'a member of a batch may depend on members of the same batch, and on jobs that have completed');
  END IF;
  UPDATE scheduler.jobs_active j SET unmet = j.unmet + added WHERE j.id = p_batch AND added > 0;
END $$;
