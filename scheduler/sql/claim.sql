-- claim(worker, request, queues, kinds, slots, lease): start at most `slots` waiting jobs of these kinds.
--
-- A kind that nobody declared is not claimed: its rows have no timeout yet. Nothing of a paused queue or kind is claimed.
-- Queues are served in the order given (the worker turns the list from call to call); within a queue the order over all
-- its kinds is exact: rank_at, id. The index is led by (queue, kind, line), so a claim never walks past jobs this worker
-- cannot run. For several kinds: peek at the first few of each, accept what ranks no later than the smallest last-peeked
-- rank of the kinds that were cut (nothing unseen can rank before that), lock that many per kind; repeat while short.
--
-- `request` stays on the row: when the reply is lost, claimed_by() finds what this call took. A claim that came short ends
-- with a row without id that says when the next delayed job is due or, when it took nothing, the next pause ends (next_in,
-- seconds).
--
-- A job that one more lost worker would end (crashes = max_crashes, but not 0) is claimed only by a worker that runs no other
-- such job: the death of a worker ends one job at most, and what died with it again and again is told apart from it.
--
-- Locks FOR NO KEY UPDATE SKIP LOCKED in a CTE: two claims never wait for each other, and no plan takes more than slots.
-- callers: worker
CREATE OR REPLACE FUNCTION scheduler.claim(
  p_worker uuid, p_request uuid, p_queues text[], p_kinds text[], p_slots int, p_lease interval)
RETURNS SETOF scheduler.claimed LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  free int := p_slots;
  took int;
  v_epoch bigint := scheduler.current_epoch();
  v_queue text;
  heads text[];
  tried text[];
  quotas int[];
  suspect bigint;
BEGIN
  PERFORM scheduler.need_read_committed('claim');
  suspect := scheduler.last_chance_for(p_worker, p_queues, p_kinds);
  FOREACH v_queue IN ARRAY p_queues LOOP
    tried := '{}';
    LOOP
      EXIT WHEN free <= 0;
      -- A scalar subquery: as EXISTS it may become a join that reads every waiting job of the queue.
      heads := ARRAY(SELECT k.kind FROM unnest(p_kinds) AS k(kind) JOIN scheduler.kinds d ON d.kind = k.kind
        WHERE d.seen_at IS NOT NULL AND (d.paused_until > scheduler.clock()) IS NOT TRUE AND k.kind <> ALL (tried)
          AND (SELECT q.paused_until > scheduler.clock() FROM scheduler.queues q WHERE q.queue = v_queue) IS NOT TRUE AND (
        SELECT true FROM scheduler.jobs_active j
        WHERE j.status = 'PENDING' AND j.queue = v_queue AND j.kind = k.kind AND j.line = '' LIMIT 1));
      EXIT WHEN heads = '{}';
      IF cardinality(heads) = 1 THEN
        quotas := ARRAY[free];
      ELSE
        SELECT f.kinds, f.quotas INTO heads, quotas FROM scheduler.first_of(v_queue, heads, free) AS f;
      END IF;
      RETURN QUERY
        WITH chosen AS MATERIALIZED (
          SELECT head.id FROM unnest(heads, quotas) AS h(kind, quota) CROSS JOIN LATERAL (
            SELECT j.id FROM scheduler.jobs_active j
            WHERE j.status = 'PENDING' AND j.queue = v_queue AND j.kind = h.kind AND j.line = '' AND j.attempt < 2147483647
              AND (j.crashes = 0 OR j.crashes < j.max_crashes OR j.id = suspect)
            ORDER BY j.rank_at, j.id LIMIT h.quota FOR NO KEY UPDATE SKIP LOCKED) AS head),
        started AS (
          UPDATE scheduler.jobs_active j
          SET status = 'RUNNING', attempt = j.attempt + 1, fence = v_epoch << 32 | (j.attempt + 1), request = p_request,
              worker_id = p_worker, lease_expires_at = scheduler.clock() + p_lease, started_at = scheduler.clock()
          WHERE j.id = ANY (ARRAY(SELECT c.id FROM chosen c))
          RETURNING j.id, j.fence, j.kind, j.queue, j.tenant, j.payload, j.attempt, j.failures, j.max_attempts, j.timeout,
            j.idempotency_key, j.metadata, j.fire_time, j.rank_at, j.depends_on)
        SELECT s.id, s.fence, s.kind, s.queue, s.tenant, s.payload, s.attempt, s.failures, s.max_attempts,
          extract(epoch FROM s.timeout)::float8, s.idempotency_key, nullif(s.metadata, '{}'), NULL::boolean, NULL::float8,
          CASE WHEN s.depends_on <> '{}' THEN scheduler.parents_for_claim(s.id) END, extract(epoch FROM s.fire_time)::float8
        FROM started s ORDER BY s.rank_at, s.id;
      GET DIAGNOSTICS took = ROW_COUNT;
      free := free - took;
      IF took = 0 THEN -- all of these are locked by others: what ranks after them has its turn
        tried := tried || coalesce(heads, p_kinds);
      END IF;
    END LOOP;
  END LOOP;
  IF free > 0 THEN
    RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::int, NULL::int,
      NULL::int, NULL::float8, NULL::text, NULL::jsonb, false,
      least(scheduler.due_in(), CASE WHEN free = p_slots THEN scheduler.resumes_in(p_queues, p_kinds) END),
      NULL::jsonb, NULL::float8;
  END IF;
END $$;

-- The only job on its last chance that this claim may take; null while the worker runs one, and hardly ever is there one at
-- all. Any of those that are not paused, so that one whose row is locked holds up no other. The worker's row is locked first:
-- it may claim for several executors at once.
CREATE OR REPLACE FUNCTION scheduler.last_chance_for(p_worker uuid, p_queues text[], p_kinds text[]) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT true FROM scheduler.jobs_active j WHERE j.crashes > 0 AND j.crashes >= j.max_crashes LIMIT 1) IS NULL THEN
    RETURN NULL;
  END IF;
  PERFORM FROM scheduler.workers w WHERE w.id = p_worker FOR NO KEY UPDATE;
  RETURN (
    SELECT j.id FROM scheduler.jobs_active j
    WHERE j.crashes > 0 AND j.crashes >= j.max_crashes AND j.status = 'PENDING' AND j.kind = ANY (p_kinds)
      AND j.queue = ANY (p_queues)
      AND (SELECT q.paused_until > scheduler.clock() FROM scheduler.queues q WHERE q.queue = j.queue) IS NOT TRUE
      AND (SELECT k.paused_until > scheduler.clock() FROM scheduler.kinds k WHERE k.kind = j.kind) IS NOT TRUE
      AND (SELECT true FROM scheduler.jobs_active r
        WHERE r.crashes > 0 AND r.crashes >= r.max_crashes AND r.worker_id = p_worker LIMIT 1) IS NULL
    ORDER BY random() LIMIT 1);
END $$;

-- The kinds that have jobs among the first p_free of a queue, and how many each. A peek locks nothing.
CREATE OR REPLACE FUNCTION scheduler.first_of(p_queue text, p_kinds text[], p_free int, OUT kinds text[], OUT quotas int[])
LANGUAGE plpgsql AS $$
DECLARE depth int := least(p_free, 4 + 2 * p_free / cardinality(p_kinds));
BEGIN
  WITH peek AS MATERIALIZED (
    SELECT k.kind, head.rank_at, head.id, head.place FROM unnest(p_kinds) AS k(kind)
    CROSS JOIN LATERAL (
      SELECT j.rank_at, j.id, row_number() OVER (ORDER BY j.rank_at, j.id) AS place FROM scheduler.jobs_active j
      WHERE j.status = 'PENDING' AND j.queue = p_queue AND j.kind = k.kind AND j.line = ''
      ORDER BY j.rank_at, j.id LIMIT depth) AS head),
  cut AS MATERIALIZED (SELECT p.rank_at, p.id FROM peek p WHERE p.place = depth ORDER BY p.rank_at, p.id LIMIT 1),
  accepted AS (
    SELECT p.kind FROM peek p LEFT JOIN cut c ON true WHERE c.id IS NULL OR (p.rank_at, p.id) <= (c.rank_at, c.id)
    ORDER BY p.rank_at, p.id LIMIT p_free),
  counted AS (SELECT a.kind, count(*)::int AS n FROM accepted a GROUP BY a.kind)
  SELECT array_agg(c.kind), array_agg(c.n) INTO kinds, quotas FROM counted c;
END $$;

-- Seconds until the next delayed job is due; null when there is none.
CREATE OR REPLACE FUNCTION scheduler.due_in() RETURNS double precision
LANGUAGE plpgsql AS $$
BEGIN
  RETURN extract(epoch FROM (
    SELECT j.run_at FROM scheduler.jobs_active j WHERE j.status = 'DELAYED' ORDER BY j.run_at, j.id LIMIT 1)
    - scheduler.clock())::float8;
END $$;

-- Seconds until the first pause among these queues and kinds ends by itself; null when none will.
CREATE OR REPLACE FUNCTION scheduler.resumes_in(p_queues text[], p_kinds text[]) RETURNS double precision
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (
    SELECT extract(epoch FROM min(p.paused_until) - scheduler.clock())::float8
    FROM (SELECT q.paused_until FROM scheduler.queues q WHERE q.queue = ANY (p_queues)
      UNION ALL SELECT k.paused_until FROM scheduler.kinds k WHERE k.kind = ANY (p_kinds)) AS p
    WHERE p.paused_until > scheduler.clock() AND p.paused_until < 'infinity');
END $$;
