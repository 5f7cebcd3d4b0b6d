-- clock(): the one clock. Every verb, trigger and default reads it, after the lock it decides under is held.
-- A test replaces this one function; nothing else in the scheduler knows the time.
-- callers: submitter, worker, operator, viewer
CREATE OR REPLACE FUNCTION scheduler.clock() RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.clock_timestamp() $$;
