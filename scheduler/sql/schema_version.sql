-- schema_version(): the revision of the tables, for a worker or client that must refuse a schema it does not know.
-- callers: submitter, worker, operator, viewer
CREATE OR REPLACE FUNCTION scheduler.schema_version() RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT version_num FROM scheduler.alembic_version $$;
