-- refuse(field, rule, way_out): end the statement with one error that names the column, the rule and the way out.
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.refuse(p_field text, p_rule text, p_way_out text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'check_violation', SCHEMA = 'scheduler', TABLE = 'jobs', COLUMN = p_field,
    MESSAGE = p_field || ' ' || p_rule, HINT = p_way_out;
END $$;
