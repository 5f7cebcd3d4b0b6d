-- backend_pid(): the server process of this call. Another than the one announced at connect: a pooler stands in between.
-- Behind one in transaction mode no statement stays prepared and no notice arrives.
-- callers: submitter, worker, operator, viewer
CREATE OR REPLACE FUNCTION scheduler.backend_pid() RETURNS int
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$ SELECT pg_backend_pid() $$;
