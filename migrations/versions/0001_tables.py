"""The tables of the scheduler.

`jobs` is partitioned by status: every claim and renewal touches only `jobs_active`, which stays as small as the
work in hand; what ended is moved to `jobs_finished` and never slows a claim.

A CHECK is named by the rule it holds. On jobs they hold only what the verbs themselves could break: a CHECK is evaluated
again at every claim and settlement, and the rules for submitters, twelve of them, cost 10 of 90 us a job and 70 of 370 us a
single insert there. So those live in the trigger `admit`, which every insert passes.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TYPES = """
CREATE TYPE scheduler.job_status AS ENUM
  ('BLOCKED', 'DELAYED', 'PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'TIMED_OUT', 'CANCELLED');

-- One row of claim. The last row of a claim that came short has no id and carries the hints.
CREATE TYPE scheduler.claimed AS (
  id bigint, fence bigint, kind text, queue text, tenant text, payload jsonb, attempt int, failures int,
  max_attempts int, timeout double precision, idempotency_key text, metadata jsonb,
  busy boolean, next_in double precision);

-- What finish() records of one job.
CREATE TYPE scheduler.ending AS (
  id bigint, status scheduler.job_status, failed int, crashed int, result jsonb, error text, root bigint);
"""

# Names and keys are compared byte by byte: faster, and no index of theirs depends on the system's locale.
# Columns of fixed width that are never null stand first: a row is read up to the last column that is asked for.
JOBS = """
CREATE TABLE scheduler.jobs (
  id bigint GENERATED ALWAYS AS IDENTITY,
  status scheduler.job_status NOT NULL DEFAULT 'PENDING',
  unmet int NOT NULL DEFAULT 0,
  attempt int NOT NULL DEFAULT 0,
  failures int NOT NULL DEFAULT 0,
  crashes int NOT NULL DEFAULT 0,
  priority smallint,
  retry_jitter boolean,
  submitted_at timestamptz NOT NULL,
  rank_at timestamptz NOT NULL,
  run_at timestamptz,
  max_attempts int,
  max_crashes int,
  timeout interval,
  retry_base interval,
  retry_cap interval,
  kind text COLLATE "C" NOT NULL,
  queue text COLLATE "C",
  line text COLLATE "C" NOT NULL DEFAULT '',
  tenant text COLLATE "C" NOT NULL DEFAULT '',
  on_parent_failure text NOT NULL DEFAULT 'cancel',
  payload jsonb NOT NULL DEFAULT '{}',
  metadata jsonb NOT NULL DEFAULT '{}',
  depends_on bigint[] NOT NULL DEFAULT '{}',
  fence bigint,
  worker_id uuid,
  request uuid,
  lease_expires_at timestamptz,
  started_at timestamptz,
  cancel_requested_at timestamptz,
  cancelled_by bigint,
  finished_at timestamptz,
  schedule_id bigint,
  fire_time timestamptz,
  idempotency_key text COLLATE "C",
  unique_key text COLLATE "C",
  result jsonb,
  error text,
  CONSTRAINT "a worker and a lease are set exactly while RUNNING"
    CHECK ((status = 'RUNNING') = (worker_id IS NOT NULL) AND (status = 'RUNNING') = (lease_expires_at IS NOT NULL)),
  CONSTRAINT "unmet parents are counted exactly while BLOCKED" CHECK ((status = 'BLOCKED') = (unmet > 0))
) PARTITION BY LIST (status);

-- Small settings around one idea: nothing waits for a percentage of a big table. A claim leaves a dead version behind,
-- so vacuum comes after a few thousand of them and does not pause.
CREATE TABLE scheduler.jobs_active PARTITION OF scheduler.jobs
  FOR VALUES IN ('BLOCKED', 'DELAYED', 'PENDING', 'RUNNING')
  WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0.01, autovacuum_vacuum_insert_threshold = 20000,
        autovacuum_analyze_scale_factor = 0.01, autovacuum_analyze_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
ALTER TABLE scheduler.jobs_active ADD PRIMARY KEY (id);

-- NULL belongs here so that an explicit NULL status meets the trigger, which says what to do, and not the router.
-- The counters of BLOCKED children are gone from what has ended.
CREATE TABLE scheduler.jobs_finished PARTITION OF scheduler.jobs
  FOR VALUES IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'CANCELLED', NULL)
  WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02,
        autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE scheduler.jobs_finished ADD PRIMARY KEY (id);

-- claim, and nothing else, in its order.
CREATE INDEX jobs_claim ON scheduler.jobs_active (queue, kind, line, rank_at, id) WHERE status = 'PENDING';
-- promote.
CREATE INDEX jobs_due ON scheduler.jobs_active (run_at, id) WHERE status = 'DELAYED';
-- reap and claimed_by, which read all that runs.
CREATE INDEX jobs_running ON scheduler.jobs_active (kind, line, started_at) WHERE status = 'RUNNING';
-- declare fills in what waited for the first declaration of its kind.
CREATE INDEX jobs_undeclared ON scheduler.jobs_active (kind, id)
  WHERE num_nulls(queue, priority, max_attempts, max_crashes, timeout, retry_base, retry_cap, retry_jitter) > 0;
-- One unfinished job per (kind, unique_key).
CREATE UNIQUE INDEX "unique_key is held by an unfinished job of this kind"
  ON scheduler.jobs_active (kind, unique_key) WHERE unique_key IS NOT NULL;
-- schedule_lag.
CREATE INDEX jobs_finished_at ON scheduler.jobs_finished (finished_at, id);
"""

AROUND = """
CREATE TABLE scheduler.attempts (
  job_id bigint NOT NULL,
  attempt int NOT NULL,
  worker_id uuid,
  started_at timestamptz,
  ended_at timestamptz NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('failed', 'timed_out', 'cancelled', 'lost', 'released', 'snoozed')),
  error_type text,
  error text,
  traceback text,
  PRIMARY KEY (job_id, attempt)
);

-- An edge of the graph. ended: the parent reached a final status. applied: the child has taken notice.
CREATE TABLE scheduler.dependencies (
  parent bigint NOT NULL,
  child bigint NOT NULL,
  ended boolean NOT NULL DEFAULT false,
  applied boolean NOT NULL DEFAULT false,
  PRIMARY KEY (parent, child)
) WITH (fillfactor = 85);
-- resolve, from the child's side.
CREATE INDEX dependencies_child ON scheduler.dependencies (child);
-- resolve, from the parents' side, and the sweep for edges that nobody resolved.
CREATE INDEX dependencies_to_apply ON scheduler.dependencies (parent) WHERE ended AND NOT applied;

CREATE TABLE scheduler.idempotency_keys (
  kind text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  job_id bigint NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (kind, key)
);

-- seen_at is null while nobody has declared the kind: its rows wait, with their defaults open.
CREATE TABLE scheduler.kinds (
  kind text COLLATE "C" PRIMARY KEY,
  queue text COLLATE "C",
  priority smallint,
  max_attempts int,
  max_crashes int,
  timeout interval,
  retry_base interval,
  retry_cap interval,
  retry_jitter boolean,
  executor text,
  idempotency_window interval,
  declared jsonb NOT NULL DEFAULT '[]',
  override jsonb NOT NULL DEFAULT '{}',
  seen_at timestamptz,
  CONSTRAINT "kind must be 1 to 100 letters, digits, or _ . : -" CHECK (kind ~ '^[A-Za-z0-9_.:-]{1,100}$'),
  CONSTRAINT "queue must be 1 to 100 letters, digits, or _ . : -" CHECK (queue ~ '^[A-Za-z0-9_.:-]{1,100}$'),
  CONSTRAINT "priority must lie between -100 and 100" CHECK (priority BETWEEN -100 AND 100),
  CONSTRAINT "max_attempts must be at least 1" CHECK (max_attempts >= 1),
  CONSTRAINT "max_crashes must be at least 0" CHECK (max_crashes >= 0),
  CONSTRAINT "timeout must be over 0 and at most 30 days" CHECK (timeout > '0' AND timeout <= '30 days'),
  CONSTRAINT "retry_base must be over 0 and at most retry_cap" CHECK (retry_base > '0' AND retry_base <= retry_cap),
  CONSTRAINT "retry_cap must be at most 30 days" CHECK (retry_cap <= '30 days'),
  CONSTRAINT "executor must be async, thread or process" CHECK (executor IN ('async', 'thread', 'process')),
  CONSTRAINT "idempotency_window must be over 0 and at most 366 days"
    CHECK (idempotency_window > '0' AND idempotency_window <= '366 days')
);

CREATE TABLE scheduler.queues (
  queue text COLLATE "C" PRIMARY KEY,
  ordering text NOT NULL,
  step interval NOT NULL,
  declared jsonb NOT NULL DEFAULT '[]',
  override jsonb NOT NULL DEFAULT '{}',
  CONSTRAINT "queue must be 1 to 100 letters, digits, or _ . : -" CHECK (queue ~ '^[A-Za-z0-9_.:-]{1,100}$'),
  CONSTRAINT "ordering must be aging, fifo or strict" CHECK (ordering IN ('aging', 'fifo', 'strict')),
  CONSTRAINT "step must lie between 0 and 87660 hours" CHECK (step >= '0' AND step <= '87660 hours')
);

-- One row per worker process, written a few times a second at most: HOT, and no index but the key.
CREATE TABLE scheduler.workers (
  id uuid PRIMARY KEY,
  host text NOT NULL,
  pid int NOT NULL,
  version text NOT NULL,
  queues text[] NOT NULL,
  kinds text[] NOT NULL,
  slots jsonb NOT NULL,
  started_at timestamptz NOT NULL,
  seen_at timestamptz NOT NULL,
  sleeping boolean NOT NULL DEFAULT false,
  channel text NOT NULL,
  draining boolean NOT NULL DEFAULT false,
  CONSTRAINT "channel must be 1 to 63 of a-z 0-9 _: inserts notify it" CHECK (channel ~ '^[a-z0-9_]{1,63}$')
) WITH (fillfactor = 50);

-- One row. The epoch is the upper half of every fence, so that fences keep growing where attempts cannot be trusted to:
-- after the promotion of a standby that lacks the newest claims, or a restore.
CREATE TABLE scheduler.epoch (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  epoch bigint NOT NULL,
  system_identifier bigint,
  timeline text,
  changed_at timestamptz NOT NULL
);
INSERT INTO scheduler.epoch (epoch, changed_at) VALUES (1, '2000-01-01 00:00+00');
"""

COMMENTS = """
COMMENT ON TYPE scheduler.job_status IS 'What a job waits for, or how it ended: BLOCKED for parents, DELAYED for its time, PENDING for a worker.';
COMMENT ON TYPE scheduler.claimed IS 'A row of claim. When it took fewer jobs than it had slots, a last row without id carries the hints busy and next_in.';
COMMENT ON COLUMN scheduler.claimed.id IS 'The job; null in the row of hints.';
COMMENT ON COLUMN scheduler.claimed.fence IS 'Goes with every renewal and outcome of this attempt, and to outside resources that can refuse an older one.';
COMMENT ON COLUMN scheduler.claimed.kind IS 'Which handler to run.';
COMMENT ON COLUMN scheduler.claimed.queue IS 'From which of the queues asked for.';
COMMENT ON COLUMN scheduler.claimed.tenant IS 'On whose behalf.';
COMMENT ON COLUMN scheduler.claimed.payload IS 'The arguments of the handler: a JSON object.';
COMMENT ON COLUMN scheduler.claimed.attempt IS 'The number of this attempt, from 1: claims so far.';
COMMENT ON COLUMN scheduler.claimed.failures IS 'How many attempts failed or timed out before.';
COMMENT ON COLUMN scheduler.claimed.max_attempts IS 'Failures after which the job ends.';
COMMENT ON COLUMN scheduler.claimed.timeout IS 'Seconds this attempt may take; its worker is the one to end it.';
COMMENT ON COLUMN scheduler.claimed.idempotency_key IS 'The key it was submitted with, or null. Equal on every attempt.';
COMMENT ON COLUMN scheduler.claimed.metadata IS 'Tags and trace context, or null.';
COMMENT ON COLUMN scheduler.claimed.busy IS 'Hint: claim again in milliseconds, do not sleep.';
COMMENT ON COLUMN scheduler.claimed.next_in IS 'Hint: seconds until the next delayed job is due, 0 or less when it is; null when none waits.';

COMMENT ON TABLE scheduler.jobs IS 'One row per job. Insert kind and payload; the scheduler computes the rest. Every other write is a verb.';
COMMENT ON TABLE scheduler.jobs_active IS 'The partition of jobs that have not ended. Read and insert through jobs.';
COMMENT ON TABLE scheduler.jobs_finished IS 'The partition of jobs that have ended. Read through jobs.';
COMMENT ON COLUMN scheduler.jobs.id IS 'Identity only: no order, and gaps are normal.';
COMMENT ON COLUMN scheduler.jobs.kind IS 'Which handler runs the job.';
COMMENT ON COLUMN scheduler.jobs.payload IS 'The arguments of the handler: a JSON object of at most 256 kB.';
COMMENT ON COLUMN scheduler.jobs.queue IS 'Default: the queue of the kind.';
COMMENT ON COLUMN scheduler.jobs.priority IS '-100 to 100; LOW 0, MEDIUM 1, HIGH 2, CRITICAL 3. Default: that of the kind.';
COMMENT ON COLUMN scheduler.jobs.tenant IS 'On whose behalf.';
COMMENT ON COLUMN scheduler.jobs.run_at IS 'Not before; in the years 2000 to 9999. Default: now.';
COMMENT ON COLUMN scheduler.jobs.depends_on IS 'Ids of existing jobs that must end first.';
COMMENT ON COLUMN scheduler.jobs.on_parent_failure IS 'cancel: a parent that does not complete cancels this job. run: it runs all the same.';
COMMENT ON COLUMN scheduler.jobs.idempotency_key IS 'One job per (kind, key) while the first is unfinished and until its window ends; a second insert inserts nothing.';
COMMENT ON COLUMN scheduler.jobs.unique_key IS 'One unfinished job per (kind, key).';
COMMENT ON COLUMN scheduler.jobs.max_attempts IS 'Failures after which the job ends; 1: never retried. Default: that of the kind.';
COMMENT ON COLUMN scheduler.jobs.max_crashes IS 'Lost workers the job survives. Default: that of the kind.';
COMMENT ON COLUMN scheduler.jobs.timeout IS 'Of one attempt; over 0, at most 30 days. Default: that of the kind.';
COMMENT ON COLUMN scheduler.jobs.retry_base IS 'Backoff after the first failure, doubled by each; at most retry_cap. Default: that of the kind.';
COMMENT ON COLUMN scheduler.jobs.retry_cap IS 'Longest backoff, at most 30 days. Default: that of the kind.';
COMMENT ON COLUMN scheduler.jobs.retry_jitter IS 'Wait a random share of the backoff. Default: that of the kind.';
COMMENT ON COLUMN scheduler.jobs.metadata IS 'Tags, trace context: a JSON object of at most 16 kB that the handler sees.';
COMMENT ON COLUMN scheduler.jobs.status IS 'Computed at insert, and changed by verbs only: see states.md.';
COMMENT ON COLUMN scheduler.jobs.rank_at IS 'Place in the queue: greatest(submitted_at, run_at) - priority * step.';
COMMENT ON COLUMN scheduler.jobs.line IS 'The line within (queue, kind) in which the job waits.';
COMMENT ON COLUMN scheduler.jobs.unmet IS 'Parents still waited for.';
COMMENT ON COLUMN scheduler.jobs.attempt IS 'Claims so far.';
COMMENT ON COLUMN scheduler.jobs.failures IS 'Attempts that failed or timed out.';
COMMENT ON COLUMN scheduler.jobs.crashes IS 'Attempts whose lease lapsed.';
COMMENT ON COLUMN scheduler.jobs.fence IS 'Token of the newest claim: epoch << 32 | attempt. It only grows.';
COMMENT ON COLUMN scheduler.jobs.request IS 'The claim call that took the job.';
COMMENT ON COLUMN scheduler.jobs.worker_id IS 'Who runs it; set exactly while RUNNING.';
COMMENT ON COLUMN scheduler.jobs.lease_expires_at IS 'Until when its worker has it unless renewed; set exactly while RUNNING.';
COMMENT ON COLUMN scheduler.jobs.started_at IS 'When the newest attempt was claimed.';
COMMENT ON COLUMN scheduler.jobs.cancel_requested_at IS 'Since when its worker is asked to stop it.';
COMMENT ON COLUMN scheduler.jobs.cancelled_by IS 'The job whose failure cancelled this one.';
COMMENT ON COLUMN scheduler.jobs.submitted_at IS 'When it was inserted, by the clock of the database.';
COMMENT ON COLUMN scheduler.jobs.finished_at IS 'When it reached its final status.';
COMMENT ON COLUMN scheduler.jobs.result IS 'What its handler returned, at most 64 kB.';
COMMENT ON COLUMN scheduler.jobs.error IS 'Why it did not complete: type and words of the last failure, or the parent that ended otherwise.';
COMMENT ON COLUMN scheduler.jobs.schedule_id IS 'The schedule that made it.';
COMMENT ON COLUMN scheduler.jobs.fire_time IS 'The logical date for which the schedule fired.';

COMMENT ON TABLE scheduler.attempts IS 'One row per attempt that did not complete; of a snoozing job the newest hundred.';
COMMENT ON COLUMN scheduler.attempts.job_id IS 'The job.';
COMMENT ON COLUMN scheduler.attempts.attempt IS 'The number of the attempt, from 1.';
COMMENT ON COLUMN scheduler.attempts.worker_id IS 'Who ran it.';
COMMENT ON COLUMN scheduler.attempts.started_at IS 'When it was claimed.';
COMMENT ON COLUMN scheduler.attempts.ended_at IS 'When its end was recorded.';
COMMENT ON COLUMN scheduler.attempts.outcome IS 'failed, timed_out, cancelled, lost (its lease lapsed), released or snoozed.';
COMMENT ON COLUMN scheduler.attempts.error_type IS 'Name of the error, as its worker calls it.';
COMMENT ON COLUMN scheduler.attempts.error IS 'Words of the error, at most 16 kB.';
COMMENT ON COLUMN scheduler.attempts.traceback IS 'Where it was raised, at most 16 kB.';

COMMENT ON TABLE scheduler.dependencies IS 'One row per edge of the graph; made from depends_on.';
COMMENT ON COLUMN scheduler.dependencies.parent IS 'The job that must end first.';
COMMENT ON COLUMN scheduler.dependencies.child IS 'The job that waits for it.';
COMMENT ON COLUMN scheduler.dependencies.ended IS 'The parent has reached a final status.';
COMMENT ON COLUMN scheduler.dependencies.applied IS 'The child has taken notice: resolve has been called.';

COMMENT ON TABLE scheduler.idempotency_keys IS 'Who holds a key, and until when: see take_key.';
COMMENT ON COLUMN scheduler.idempotency_keys.kind IS 'Keys of different kinds do not meet.';
COMMENT ON COLUMN scheduler.idempotency_keys.key IS 'As submitted.';
COMMENT ON COLUMN scheduler.idempotency_keys.job_id IS 'The job that holds it.';
COMMENT ON COLUMN scheduler.idempotency_keys.expires_at IS 'End of its window; held longer while the job is unfinished.';

COMMENT ON TABLE scheduler.kinds IS 'The defaults of each kind, as declared by its workers or set by an operator.';
COMMENT ON COLUMN scheduler.kinds.kind IS 'The name that jobs and handlers meet by.';
COMMENT ON COLUMN scheduler.kinds.queue IS 'Queue of jobs that name none.';
COMMENT ON COLUMN scheduler.kinds.priority IS 'Priority of jobs that name none.';
COMMENT ON COLUMN scheduler.kinds.max_attempts IS 'Failures after which a job ends.';
COMMENT ON COLUMN scheduler.kinds.max_crashes IS 'Lost workers that a job survives.';
COMMENT ON COLUMN scheduler.kinds.timeout IS 'Of one attempt.';
COMMENT ON COLUMN scheduler.kinds.retry_base IS 'Backoff after the first failure.';
COMMENT ON COLUMN scheduler.kinds.retry_cap IS 'Longest backoff.';
COMMENT ON COLUMN scheduler.kinds.retry_jitter IS 'Wait a random share of the backoff.';
COMMENT ON COLUMN scheduler.kinds.executor IS 'async, thread or process: where a Python worker runs it. Other workers may ignore it.';
COMMENT ON COLUMN scheduler.kinds.idempotency_window IS 'How long an idempotency key is held at least.';
COMMENT ON COLUMN scheduler.kinds.declared IS 'The declarations seen, newest first.';
COMMENT ON COLUMN scheduler.kinds.override IS 'What an operator has set; it outweighs what is declared.';
COMMENT ON COLUMN scheduler.kinds.seen_at IS 'When the declaration in force was made; null while nobody has declared the kind: its jobs wait.';

COMMENT ON TABLE scheduler.queues IS 'The ordering of each queue that was declared; any other is aging.';
COMMENT ON COLUMN scheduler.queues.queue IS 'Its name.';
COMMENT ON COLUMN scheduler.queues.ordering IS 'aging, fifo or strict.';
COMMENT ON COLUMN scheduler.queues.step IS 'How much waiting one level of priority is worth.';
COMMENT ON COLUMN scheduler.queues.declared IS 'The declarations seen, newest first.';
COMMENT ON COLUMN scheduler.queues.override IS 'What an operator has set; it outweighs what is declared.';

COMMENT ON TABLE scheduler.workers IS 'One row per registered worker process. Claims do not need it; waking up and the lists of operators do.';
COMMENT ON COLUMN scheduler.workers.id IS 'A fresh uuid per process.';
COMMENT ON COLUMN scheduler.workers.host IS 'Where it runs.';
COMMENT ON COLUMN scheduler.workers.pid IS 'Its process there.';
COMMENT ON COLUMN scheduler.workers.version IS 'Of its program.';
COMMENT ON COLUMN scheduler.workers.queues IS 'What it claims from.';
COMMENT ON COLUMN scheduler.workers.kinds IS 'What it can run.';
COMMENT ON COLUMN scheduler.workers.slots IS 'Attempts at once, by executor: a JSON object of numbers.';
COMMENT ON COLUMN scheduler.workers.started_at IS 'When it registered.';
COMMENT ON COLUMN scheduler.workers.seen_at IS 'Its last sign of life: register, renew or doze.';
COMMENT ON COLUMN scheduler.workers.sleeping IS 'It wants to be woken: see doze.';
COMMENT ON COLUMN scheduler.workers.channel IS 'What it listens on, 1 to 63 of a-z 0-9 _. The payload is empty, or cancel: renew now.';
COMMENT ON COLUMN scheduler.workers.draining IS 'It claims nothing more.';

COMMENT ON TABLE scheduler.epoch IS 'One row: the upper half of every fence, and whose fences they are.';
COMMENT ON COLUMN scheduler.epoch.one IS 'There is one row.';
COMMENT ON COLUMN scheduler.epoch.epoch IS 'Grows when a server takes over that may lack the newest claims.';
COMMENT ON COLUMN scheduler.epoch.system_identifier IS 'The cluster that wrote the newest fence.';
COMMENT ON COLUMN scheduler.epoch.timeline IS 'Its timeline then.';
COMMENT ON COLUMN scheduler.epoch.changed_at IS 'For one lease from then nothing is reaped.';
"""

GRANTS = """
GRANT USAGE ON SCHEMA scheduler
  TO scheduler_submitter, scheduler_worker, scheduler_operator, scheduler_viewer;
GRANT INSERT (kind, payload, queue, priority, tenant, run_at, depends_on, on_parent_failure, idempotency_key, unique_key,
              max_attempts, max_crashes, timeout, retry_base, retry_cap, retry_jitter, metadata), SELECT (id)
  ON scheduler.jobs TO scheduler_submitter, scheduler_operator;
GRANT SELECT (id, kind, queue, priority, tenant, run_at, depends_on, on_parent_failure, max_attempts, max_crashes, timeout,
              status, rank_at, unmet, attempt, failures, crashes, worker_id, lease_expires_at, started_at,
              cancel_requested_at, cancelled_by, submitted_at, finished_at, schedule_id, fire_time)
  ON scheduler.jobs TO scheduler_viewer;
GRANT SELECT ON scheduler.jobs TO scheduler_operator;
GRANT SELECT (job_id, attempt, worker_id, started_at, ended_at, outcome, error_type) ON scheduler.attempts TO scheduler_viewer;
GRANT SELECT ON scheduler.attempts TO scheduler_operator;
GRANT SELECT ON scheduler.dependencies, scheduler.kinds, scheduler.queues, scheduler.workers
  TO scheduler_viewer, scheduler_operator;
"""


def upgrade() -> None:
    options = op.get_context().opts
    for part in (TYPES, JOBS, AROUND, COMMENTS, *([GRANTS] if options["roles"] else [])):
        options["script"](part)


# The functions go too: their triggers went with the tables, and an upgrade makes both again.
DROP_ALL = """
DROP VIEW IF EXISTS scheduler.queue_depth, scheduler.schedule_lag;
DROP TABLE scheduler.jobs, scheduler.attempts, scheduler.dependencies, scheduler.idempotency_keys, scheduler.kinds,
  scheduler.queues, scheduler.workers, scheduler.epoch CASCADE;
DO $$
DECLARE f regprocedure;
BEGIN
  FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'scheduler'::regnamespace LOOP
    EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', f);
  END LOOP;
END $$;
DROP TYPE scheduler.claimed, scheduler.ending, scheduler.job_status;
"""


def downgrade() -> None:
    op.get_context().opts["script"](DROP_ALL)
