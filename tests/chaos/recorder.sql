-- What every change of a job leaves behind. Installed by the campaign, on tables the engine does not know of.
-- Renewals and counted parents change no status and no claim, and are not recorded.
CREATE SCHEMA chaos;
GRANT USAGE ON SCHEMA chaos TO PUBLIC;
CREATE TABLE chaos.events (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  actor text NOT NULL DEFAULT coalesce(current_setting('chaos.actor', true), ''), -- from the connection's address
  job bigint NOT NULL,
  was text,
  now text,
  attempt int NOT NULL,
  fence bigint,
  worker uuid,
  lease timestamptz
);
CREATE INDEX ON chaos.events (job);
GRANT SELECT ON chaos.events TO PUBLIC;

-- When batches were closed, in the order of events.
CREATE TABLE chaos.closed (batch bigint NOT NULL,
  seq bigint NOT NULL DEFAULT nextval(pg_get_serial_sequence('chaos.events', 'seq')));

-- What handlers write in the transaction that completes their job.
CREATE TABLE chaos.effects (job bigint NOT NULL, fence bigint NOT NULL);
GRANT INSERT ON chaos.effects TO PUBLIC;

CREATE FUNCTION chaos.record() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO chaos.events (job, was, now, attempt, fence, worker, lease) VALUES (
    coalesce(NEW.id, OLD.id), OLD.status, NEW.status, coalesce(NEW.attempt, OLD.attempt), coalesce(NEW.fence, OLD.fence),
    coalesce(NEW.worker_id, OLD.worker_id),
    CASE WHEN OLD.worker_id IS NULL THEN NEW.lease_expires_at ELSE OLD.lease_expires_at END);
  RETURN NULL;
END $$;

CREATE FUNCTION chaos.record_closing() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO chaos.closed (batch) VALUES (NEW.child);
  RETURN NULL;
END $$;

CREATE TRIGGER chaos_closed AFTER UPDATE ON scheduler.dependencies FOR EACH ROW
  WHEN (NEW.parent = NEW.child AND NEW.ended AND NOT OLD.ended) EXECUTE FUNCTION chaos.record_closing();
CREATE TRIGGER chaos_changed AFTER UPDATE ON scheduler.jobs FOR EACH ROW
  WHEN ((OLD.status, OLD.fence, OLD.worker_id) IS DISTINCT FROM (NEW.status, NEW.fence, NEW.worker_id))
  EXECUTE FUNCTION chaos.record();
CREATE TRIGGER chaos_moved AFTER INSERT OR DELETE ON scheduler.jobs FOR EACH ROW EXECUTE FUNCTION chaos.record();
