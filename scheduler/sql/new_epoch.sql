-- new_epoch(): let every later fence be greater than every fence written so far, whatever the attempts say.
-- Call it after restoring a backup that the server cannot tell from what it was taken of: files put back as they were, or a
-- disk; and, where a managed service tells neither its timeline nor its cluster, after every failover and restore.
-- callers: operator
CREATE OR REPLACE FUNCTION scheduler.new_epoch() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE scheduler.epoch SET epoch = scheduler.later_epoch(epoch), changed_at = scheduler.clock() RETURNING epoch
$$;
