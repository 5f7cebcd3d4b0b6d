-- pause(queue, kind, for, by): start no more jobs of a queue, or of a kind, for a while or until it is resumed. Exactly one of the
-- two; null `for`: until it is resumed; null `by`: the role that asks. Running jobs go on. Pausing again replaces the pause.
-- A queue or kind that nobody has declared can be paused. Returns {"queue", "kind", "paused_for": seconds or null, "paused_by"}.
-- Race: a claim under way may still start jobs; one that begins after the commit starts none.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.pause(p_queue text, p_kind text, p_for interval DEFAULT NULL, p_by text DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_by text := coalesce(p_by, session_user);
BEGIN
  IF p_for <= '0' OR p_for > '366 days' THEN
    PERFORM scheduler.refuse('for', 'must be over 0 and at most 366 days', 'leave it out to pause until it is resumed');
  ELSIF octet_length(v_by) > 200 THEN
    PERFORM scheduler.refuse('by', 'must be at most 200 bytes', 'use a name');
  END IF;
  INSERT INTO scheduler.queues (queue, ordering, step) SELECT p_queue, 'aging', '10 seconds' WHERE p_queue IS NOT NULL
  ON CONFLICT DO NOTHING;
  INSERT INTO scheduler.kinds (kind) SELECT p_kind WHERE p_kind IS NOT NULL ON CONFLICT DO NOTHING;
  PERFORM scheduler.set_pause(p_queue, p_kind, coalesce(scheduler.clock() + p_for, 'infinity'), v_by);
  RETURN jsonb_build_object('queue', p_queue, 'kind', p_kind, 'paused_for', extract(epoch FROM p_for)::float8, 'paused_by', v_by);
END $$;

-- resume(queue, kind): end the pause of a queue or a kind, and wake workers. Returns {"queue", "kind", "resumed": it was paused}.
CREATE OR REPLACE FUNCTION scheduler.resume(p_queue text, p_kind text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE was_until timestamptz := coalesce((SELECT q.paused_until FROM scheduler.queues q WHERE q.queue = p_queue),
  (SELECT k.paused_until FROM scheduler.kinds k WHERE k.kind = p_kind));
BEGIN
  PERFORM scheduler.set_pause(p_queue, p_kind, NULL, NULL);
  PERFORM scheduler.wake(ARRAY(SELECT p_queue
    UNION SELECT unnest(w.queues) FROM scheduler.workers w WHERE p_kind = ANY (w.kinds)));
  RETURN jsonb_build_object('queue', p_queue, 'kind', p_kind, 'resumed', was_until > scheduler.clock() IS TRUE);
END $$;

CREATE OR REPLACE FUNCTION scheduler.set_pause(p_queue text, p_kind text, p_until timestamptz, p_by text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF num_nonnulls(p_queue, p_kind) <> 1 THEN
    PERFORM scheduler.refuse('queue', 'or kind must be given, and not both', 'name the one to pause or to resume');
  END IF;
  UPDATE scheduler.queues q SET paused_until = p_until, paused_by = p_by WHERE q.queue = p_queue;
  UPDATE scheduler.kinds k SET paused_until = p_until, paused_by = p_by WHERE k.kind = p_kind;
END $$;
