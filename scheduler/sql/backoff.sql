-- backoff(failures, base, cap, jitter, random): how long to wait after the given number of failures.
-- min(cap, base * 2^(failures - 1)); with jitter a random share of it ("full jitter": Brooker, Exponential Backoff And
-- Jitter, AWS Architecture Blog, 2015). The exponent is bounded, so no number of failures overflows.
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.backoff(
  p_failures int, p_base interval, p_cap interval, p_jitter boolean, p_random double precision DEFAULT random())
RETURNS interval LANGUAGE sql VOLATILE AS $$
  SELECT make_interval(secs => least(
      extract(epoch FROM p_cap)::float8,
      extract(epoch FROM p_base)::float8 * 2::float8 ^ least(greatest(p_failures - 1, 0), 60))
    * CASE WHEN p_jitter THEN p_random ELSE 1 END)
$$;
