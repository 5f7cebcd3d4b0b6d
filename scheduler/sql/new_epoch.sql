-- new_epoch(): let every later fence be greater than every fence written so far, whatever the attempts say.
-- Call it after restoring a backup where the server cannot tell a restored cluster by itself.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.new_epoch() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE scheduler.epoch SET epoch = scheduler.later_epoch(epoch), changed_at = scheduler.clock() RETURNING epoch
$$;
