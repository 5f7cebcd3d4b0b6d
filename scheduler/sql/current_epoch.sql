-- current_epoch(): the upper half of the next fence.
-- It grows when this server is not the one that wrote the newest fence: another timeline (a standby was promoted, a
-- backup was restored to a point in time) or another cluster (a dump was restored). A managed service may refuse to tell
-- either; then both stay unknown, and new_epoch() after a promotion or a restore is the operator's.
-- Race: two claims may see the change at once; the row lock and the guard in the update let one of them count.
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.current_epoch() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored scheduler.epoch;
  here_system bigint;
  here_timeline text;
BEGIN
  BEGIN
    here_timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    here_system := (pg_control_system()).system_identifier;
  EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function OR object_not_in_prerequisite_state THEN
    NULL; -- what is not told stays null, and unknown is not a change; a standby refuses the first write, in known words
  END;
  SELECT * INTO stored FROM scheduler.epoch;
  IF stored.timeline IS DISTINCT FROM coalesce(here_timeline, stored.timeline)
     OR stored.system_identifier IS DISTINCT FROM coalesce(here_system, stored.system_identifier) THEN
    UPDATE scheduler.epoch e
    SET epoch = scheduler.later_epoch(e.epoch), timeline = coalesce(here_timeline, e.timeline),
        system_identifier = coalesce(here_system, e.system_identifier),
        changed_at = scheduler.clock()
    WHERE e.timeline IS DISTINCT FROM coalesce(here_timeline, e.timeline)
       OR e.system_identifier IS DISTINCT FROM coalesce(here_system, e.system_identifier);
    SELECT * INTO stored FROM scheduler.epoch;
  END IF;
  RETURN stored.epoch;
END $$;

-- The epoch after this one: the seconds since 2020, and greater in any case. Of two standbys promoted in turn the second may
-- have seen nothing of the first, and both would count to the same number; what orders them is when it happened. The limit
-- keeps fences positive, and leaves room to count on, should a clock ever stand wrong by decades.
CREATE OR REPLACE FUNCTION scheduler.later_epoch(p_epoch bigint) RETURNS bigint
LANGUAGE sql AS $$
  SELECT greatest(p_epoch + 1, least(extract(epoch FROM scheduler.clock() - '2020-01-01 00:00+00'::timestamptz)::bigint, 2000000000))
$$;
