-- Place an order: psql -v order=17 -v amount=9.50 -f submit.sql [-v priority=2]
-- The order and its jobs are one transaction: all of them exist, or none.
\set ON_ERROR_STOP on
\set QUIET on
\if :{?priority} \else \set priority 1 \endif
SET client_min_messages = warning;
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount numeric CHECK (amount > 0), receipt bigint);

BEGIN;
INSERT INTO scheduler.jobs (kind, payload, priority)
VALUES ('send_receipt', jsonb_build_object('order', :'order'), :priority) RETURNING id AS job \gset
-- submit() can say more than an INSERT: a delay, and the id of the older job where the key is taken.
SELECT scheduler.submit('ask_for_review', jsonb_build_object('order', :'order'), jsonb_build_object(
  'delay', '7 days', 'depends_on', jsonb_build_array(:job), 'idempotency_key', 'review of ' || :'order')) AS review \gset
INSERT INTO orders VALUES (:'order', :amount, :job);
COMMIT;
\echo order :order is placed, job :job will send its receipt
