-- need_read_committed(verb): refuse a verb in a transaction whose later statements do not see what others have committed.
-- There a parent would end without its newest edges, and a claim count by an old picture.
-- callers: none
CREATE OR REPLACE FUNCTION scheduler.need_read_committed(p_verb text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state', MESSAGE = p_verb || ' needs READ COMMITTED',
      HINT = 'call it in a transaction of its own with the default isolation level';
  END IF;
END $$;
