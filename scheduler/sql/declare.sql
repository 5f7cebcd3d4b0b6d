-- declare(kinds, queues, force): record what the job classes say of themselves, and make it effective.
-- kinds: [{"kind", "queue", "priority", "max_attempts", "max_crashes", "timeout", "retry_base", "retry_cap", "retry_jitter",
-- "executor", "idempotency_window"}], queues: [{"queue", "ordering", "step", "keep_completed",
-- "keep_failed"}], durations in seconds; what is not set is left out.
-- Effective is coalesce(override, declared, default): what an operator has set wins until it is reset.
-- `declared` keeps the declarations seen, newest first. In a rolling deploy the old version declares the old options again at
-- every start: a declaration that was superseded changes nothing and is returned in "superseded", unless forced (a rollback).
-- The first declaration of a kind fills in the open defaults of the rows that waited for it.
-- Race: see hold_undeclared(); the lock on the row of the kind is awaited before its waiting jobs are read. Declare one new kind
-- per transaction: submitters hold such rows, in an order of their own.
-- callers: worker, operator
CREATE OR REPLACE FUNCTION scheduler.declare(p_kinds jsonb, p_queues jsonb DEFAULT '[]', p_force boolean DEFAULT false)
RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  d jsonb;
  changed text[] := '{}';
  superseded text[] := '{}';
BEGIN
  FOR d IN SELECT value FROM jsonb_array_elements(p_queues) ORDER BY value ->> 'queue' LOOP
    PERFORM scheduler.declare_queue(d, p_force);
  END LOOP;
  FOR d IN SELECT value FROM jsonb_array_elements(p_kinds) ORDER BY value ->> 'kind' LOOP
    CASE scheduler.declare_kind(d, p_force)
      WHEN 'changed' THEN changed := changed || (d ->> 'kind');
      WHEN 'superseded' THEN superseded := superseded || (d ->> 'kind');
      ELSE NULL;
    END CASE;
  END LOOP;
  RETURN jsonb_build_object('changed', changed, 'superseded', superseded);
END $$;

CREATE OR REPLACE FUNCTION scheduler.declare_kind(p_kind jsonb, p_force boolean) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  known scheduler.kinds;
  o jsonb;
BEGIN
  p_kind := scheduler.read_options(p_kind, '{"kind": "string", "queue": "string", "priority": "number", "max_attempts": "number",
    "max_crashes": "number", "timeout": "number", "retry_base": "number", "retry_cap": "number", "retry_jitter": "boolean",
    "executor": "string", "idempotency_window": "number"}', 'option of a kind');
  IF EXISTS (SELECT FROM scheduler.kinds k WHERE k.kind = p_kind ->> 'kind' AND k.declared -> 0 = p_kind) THEN
    RETURN 'same'; -- nearly always: no lock
  END IF;
  INSERT INTO scheduler.kinds (kind) VALUES (p_kind ->> 'kind') ON CONFLICT DO NOTHING;
  SELECT * INTO STRICT known FROM scheduler.kinds k WHERE k.kind = p_kind ->> 'kind' FOR UPDATE;
  IF known.declared -> 0 = p_kind THEN
    RETURN 'same';
  ELSIF p_kind IN (SELECT value FROM jsonb_array_elements(known.declared)) AND NOT p_force THEN
    RETURN 'superseded';
  END IF;
  o := jsonb_build_object('queue', 'default', 'priority', 1, 'max_attempts', 5, 'max_crashes', 3, 'timeout', 3600,
    'retry_base', 1, 'retry_cap', 3600, 'retry_jitter', true, 'executor', 'async', 'idempotency_window', 86400)
    || p_kind || known.override;
  UPDATE scheduler.kinds k SET queue = o ->> 'queue', priority = (o ->> 'priority')::smallint,
    max_attempts = (o ->> 'max_attempts')::int, max_crashes = (o ->> 'max_crashes')::int,
    timeout = make_interval(secs => (o ->> 'timeout')::float8), retry_base = make_interval(secs => (o ->> 'retry_base')::float8),
    retry_cap = make_interval(secs => (o ->> 'retry_cap')::float8), retry_jitter = (o ->> 'retry_jitter')::boolean,
    executor = o ->> 'executor', idempotency_window = make_interval(secs => (o ->> 'idempotency_window')::float8),
    declared = scheduler.newest_first(p_kind, known.declared), seen_at = scheduler.clock()
  WHERE k.kind = known.kind;
  IF known.seen_at IS NULL THEN
    PERFORM scheduler.fill_defaults(known.kind);
  END IF;
  RETURN 'changed';
END $$;

CREATE OR REPLACE FUNCTION scheduler.declare_queue(p_queue jsonb, p_force boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  known scheduler.queues;
  o jsonb;
BEGIN
  INSERT INTO scheduler.queues (queue, ordering, step) VALUES (p_queue ->> 'queue', 'aging', '10 seconds') ON CONFLICT DO NOTHING;
  SELECT * INTO STRICT known FROM scheduler.queues q WHERE q.queue = p_queue ->> 'queue' FOR UPDATE;
  IF p_queue IN (SELECT value FROM jsonb_array_elements(known.declared)) AND NOT p_force THEN
    RETURN;
  END IF;
  o := '{"ordering": "aging"}' || p_queue || known.override;
  UPDATE scheduler.queues q SET ordering = o ->> 'ordering', declared = scheduler.newest_first(p_queue, known.declared),
    step = CASE o ->> 'ordering' WHEN 'fifo' THEN '0' WHEN 'strict' THEN '87660 hours'
      ELSE make_interval(secs => coalesce((o ->> 'step')::float8, 10)) END,
    keep_completed = make_interval(secs => (o ->> 'keep_completed')::float8),
    keep_failed = make_interval(secs => (o ->> 'keep_failed')::float8)
  WHERE q.queue = known.queue;
  DELETE FROM scheduler.retention; -- jobs that were passed over may be due now
END $$;

-- At most eight declarations are kept: more versions than live side by side in any rolling deploy.
CREATE OR REPLACE FUNCTION scheduler.newest_first(p_new jsonb, p_seen jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_build_array(p_new) || coalesce((SELECT jsonb_agg(s.value ORDER BY s.nr)
    FROM jsonb_array_elements(p_seen) WITH ORDINALITY AS s(value, nr) WHERE s.value <> p_new AND s.nr < 8), '[]')
$$;

CREATE OR REPLACE FUNCTION scheduler.fill_defaults(p_kind text) RETURNS void
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off AS $$
DECLARE queues text[];
BEGIN
  WITH open AS MATERIALIZED (
    SELECT j.id FROM scheduler.jobs_active j WHERE j.kind = p_kind AND num_nulls(j.queue, j.priority, j.max_attempts,
      j.max_crashes, j.timeout, j.retry_base, j.retry_cap, j.retry_jitter) > 0
    ORDER BY j.id FOR NO KEY UPDATE),
  filled AS (
    UPDATE scheduler.jobs_active j SET queue = coalesce(j.queue, k.queue), priority = coalesce(j.priority, k.priority),
      max_attempts = coalesce(j.max_attempts, k.max_attempts), max_crashes = coalesce(j.max_crashes, k.max_crashes),
      timeout = coalesce(j.timeout, k.timeout),
      retry_base = coalesce(j.retry_base, least(k.retry_base, j.retry_cap)),
      retry_cap = coalesce(j.retry_cap, greatest(k.retry_cap, j.retry_base)), retry_jitter = coalesce(j.retry_jitter, k.retry_jitter),
      rank_at = scheduler.rank(greatest(j.submitted_at, j.run_at), coalesce(j.priority, k.priority),
        (SELECT q.step FROM scheduler.queues q WHERE q.queue = coalesce(j.queue, k.queue)))
    FROM scheduler.kinds k WHERE k.kind = p_kind AND j.id = ANY (ARRAY(SELECT o.id FROM open o)) RETURNING j.queue)
  SELECT ARRAY(SELECT DISTINCT f.queue FROM filled f) INTO queues;
  PERFORM scheduler.wake(queues);
END $$;
