-- refuse(field, rule, way_out): end the statement with one error that names the column, the rule and the way out.
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.refuse(p_field text, p_rule text, p_way_out text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'check_violation', SCHEMA = 'scheduler', TABLE = 'jobs', COLUMN = p_field,
    MESSAGE = p_field || ' ' || p_rule, HINT = p_way_out;
END $$;

-- An object by the types of what it may hold, without its nulls. What it may not hold, or is of another type, is refused. An
-- instant is a string with a time and a time zone; a type may be two, as in "number or string".
CREATE OR REPLACE FUNCTION scheduler.read_options(p_given jsonb, p_types jsonb, p_of text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  instant CONSTANT text := '\d:\d\d(:\d\d(\.\d+)?)? ?([Zz]|UTC|GMT|[A-Z][A-Za-z]+/[A-Za-z_/-]+|[+-]\d\d(:?\d\d){0,2})$';
  given jsonb;
  wrong text;
BEGIN
  SELECT coalesce(jsonb_object_agg(g.key, g.value) FILTER (WHERE g.value <> 'null'), '{}'),
    min(g.key) FILTER (WHERE NOT p_types ? g.key OR g.value <> 'null' AND CASE p_types ->> g.key
      WHEN 'instant' THEN g.value #>> '{}' !~ instant ELSE strpos(p_types ->> g.key, jsonb_typeof(g.value)) = 0 END)
  INTO given, wrong FROM jsonb_each(p_given) AS g;
  IF p_types ->> wrong = 'instant' THEN
    PERFORM scheduler.refuse(wrong, 'must have a time and a time zone', 'as in 2030-01-31 12:00:00+00');
  ELSIF wrong IS NOT NULL THEN
    PERFORM scheduler.refuse(wrong, coalesce('must be a JSON ' || (p_types ->> wrong), 'is no ' || p_of),
      'known are ' || (SELECT string_agg(k, ', ' ORDER BY k) FROM jsonb_object_keys(p_types) AS k));
  END IF;
  RETURN given;
END $$;
