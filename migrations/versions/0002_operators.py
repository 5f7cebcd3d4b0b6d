"""What operators hold and what retention needs: pauses, how long finished jobs are kept, how far retention has come.

And recurring schedules.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE scheduler.queues
  ADD COLUMN paused_until timestamptz,
  ADD COLUMN paused_by text,
  ADD COLUMN keep_completed interval,
  ADD COLUMN keep_failed interval,
  ADD CONSTRAINT "keep_completed must be over 0 and at most 36525 days"
    CHECK (keep_completed > '0' AND keep_completed <= '36525 days'),
  ADD CONSTRAINT "keep_failed must be over 0 and at most 36525 days"
    CHECK (keep_failed > '0' AND keep_failed <= '36525 days');
ALTER TABLE scheduler.kinds
  ADD COLUMN paused_until timestamptz,
  ADD COLUMN paused_by text;
COMMENT ON COLUMN scheduler.queues.paused_until IS 'Nothing of the queue is claimed before; infinity: until it is resumed.';
COMMENT ON COLUMN scheduler.queues.paused_by IS 'Who paused the queue.';
COMMENT ON COLUMN scheduler.queues.keep_completed IS 'How long completed jobs are kept. Default: 7 days.';
COMMENT ON COLUMN scheduler.queues.keep_failed IS 'How long failed, timed out and cancelled jobs are kept. Default: 30 days.';
COMMENT ON COLUMN scheduler.kinds.paused_until IS 'Nothing of the kind is claimed before; infinity: until it is resumed.';
COMMENT ON COLUMN scheduler.kinds.paused_by IS 'Who paused the kind.';
"""

RETENTION = """
-- For each period for which some queue keeps its jobs: up to which (finished_at, id) retention has looked. A finished job is
-- looked at once for each period, however many are kept longer. Period 0: the idempotency keys, by (expires_at, job_id).
-- Emptied when a queue is given other periods: then they begin anew.
CREATE TABLE scheduler.retention (
  keep interval PRIMARY KEY,
  seen_at timestamptz NOT NULL,
  seen_id bigint NOT NULL
);
COMMENT ON TABLE scheduler.retention IS 'How far retention has come, per period for which jobs are kept.';
COMMENT ON COLUMN scheduler.retention.keep IS 'The period; 0 stands for the idempotency keys.';
COMMENT ON COLUMN scheduler.retention.seen_at IS 'When the last job that was looked at had ended.';
COMMENT ON COLUMN scheduler.retention.seen_id IS 'That job, or its id where only a key is left.';

-- What was to be removed and had to stay, as a parent of an unfinished child.
CREATE TABLE scheduler.kept (
  job_id bigint PRIMARY KEY,
  look_at timestamptz NOT NULL
);
-- retain.
CREATE INDEX kept_look_at ON scheduler.kept (look_at);
COMMENT ON COLUMN scheduler.kept.job_id IS 'The job.';
COMMENT ON COLUMN scheduler.kept.look_at IS 'When it is looked at again.';
COMMENT ON TABLE scheduler.kept IS 'Jobs that retention had to keep for the sake of others, and when it looks at them again.';

-- retain.
CREATE INDEX idempotency_keys_expires_at ON scheduler.idempotency_keys (expires_at, job_id);
"""

EPOCH = """
-- Whose fences these are is known before the first claim: a standby that is promoted without it counts as another server.
-- What a managed service does not tell stays unknown.
DO $$
BEGIN
  UPDATE scheduler.epoch SET timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8),
    system_identifier = (SELECT c.system_identifier FROM pg_control_system() c)
  WHERE timeline IS NULL AND system_identifier IS NULL;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
  NULL;
END $$;
"""

CRASHES = """
-- claim: the few jobs that one more lost worker would end.
CREATE INDEX jobs_last_chance ON scheduler.jobs_active (id) WHERE crashes > 0 AND crashes >= max_crashes;
ALTER TABLE scheduler.workers ADD COLUMN abandoned int NOT NULL DEFAULT 0;
COMMENT ON COLUMN scheduler.workers.abandoned IS 'Handlers that it could not stop, and that go on although their attempts have ended.';
"""

GRAPHS = """
ALTER TABLE scheduler.dependencies ADD COLUMN name text;
ALTER TYPE scheduler.claimed ADD ATTRIBUTE parents jsonb;
-- resolve: of a child with ten thousand parents it reads those that have just ended.
CREATE INDEX dependencies_child_to_apply ON scheduler.dependencies (child) WHERE ended AND NOT applied;
COMMENT ON COLUMN scheduler.dependencies.name IS 'What the graph that both were submitted in calls the parent.';
COMMENT ON COLUMN scheduler.claimed.parents IS 'What became of the jobs it depended on, see parents(); false when that is over 1 MB, null when there are none.';
COMMENT ON COLUMN scheduler.jobs.depends_on IS 'Ids of existing jobs that must end first. A batch has its own id there, see close_batch().';
"""


SCHEDULES = """
ALTER TYPE scheduler.claimed ADD ATTRIBUTE fire_time double precision;
COMMENT ON COLUMN scheduler.claimed.fire_time IS 'For which time its schedule made the job, in seconds since 1970; null without a schedule.';

CREATE TABLE scheduler.schedules (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  kind text COLLATE "C" NOT NULL,
  payload jsonb NOT NULL DEFAULT '{}',
  tenant text COLLATE "C" NOT NULL DEFAULT '',
  priority smallint,
  unique_key text COLLATE "C",
  mode text NOT NULL,
  cron text,
  time_zone text NOT NULL DEFAULT 'UTC',
  every interval,
  starts_at timestamptz NOT NULL,
  ends_at timestamptz,
  jitter interval NOT NULL DEFAULT '0',
  overlap text NOT NULL DEFAULT 'skip',
  misfire text NOT NULL DEFAULT 'coalesce',
  backfill_limit int NOT NULL DEFAULT 100,
  paused boolean NOT NULL DEFAULT false,
  next_fire timestamptz,
  last_fire timestamptz,
  last_job bigint,
  skipped bigint NOT NULL DEFAULT 0,
  version int NOT NULL DEFAULT 1,
  declared jsonb NOT NULL DEFAULT '[]',
  error text,
  CONSTRAINT "name must be 1 to 100 letters, digits, or _ . : -" CHECK (name ~ '^[A-Za-z0-9_.:-]{1,100}$'),
  CONSTRAINT "cron must be given, or every, and not both" CHECK ((cron IS NULL) <> (every IS NULL)),
  CONSTRAINT "cron must be at most 200 bytes" CHECK (octet_length(cron) <= 200),
  CONSTRAINT "time_zone must be at most 100 bytes" CHECK (octet_length(time_zone) <= 100),
  CONSTRAINT "mode must be fixed_rate or fixed_delay with every, else cron"
    CHECK (mode = 'cron' AND cron IS NOT NULL OR mode IN ('fixed_rate', 'fixed_delay') AND every IS NOT NULL),
  CONSTRAINT "every must lie between 1 second and 366 days" CHECK (every BETWEEN '1 s' AND '366 days'),
  CONSTRAINT "starts_at must lie in the years 2000 to 9999" CHECK (starts_at >= '2000-01-01 00:00+00' AND starts_at < '10000-01-01 00:00+00'),
  CONSTRAINT "ends_at must lie after starts_at, and before the year 10000" CHECK (ends_at > starts_at AND ends_at < '10000-01-01 00:00+00'),
  CONSTRAINT "jitter must lie between 0 and 1 day" CHECK (jitter BETWEEN '0' AND '1 day'),
  CONSTRAINT "overlap must be skip, queue_one or allow" CHECK (overlap IN ('skip', 'queue_one', 'allow')),
  CONSTRAINT "misfire must be coalesce, skip or backfill" CHECK (misfire IN ('coalesce', 'skip', 'backfill')),
  CONSTRAINT "misfire must be coalesce for a fixed_delay: it misses nothing" CHECK (mode <> 'fixed_delay' OR misfire = 'coalesce'),
  CONSTRAINT "backfill_limit must lie between 1 and 1000" CHECK (backfill_limit BETWEEN 1 AND 1000),
  CONSTRAINT "next_fire must lie in the years 2000 to 9999" CHECK (next_fire >= '2000-01-01 00:00+00' AND next_fire < '10000-01-01 00:00+00')
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
-- fire, in its order.
CREATE INDEX schedules_due ON scheduler.schedules (next_fire, id)
  WHERE NOT paused AND error IS NULL AND (next_fire < ends_at) IS NOT FALSE;
-- fire: what is unfinished of a schedule.
CREATE INDEX jobs_of_schedule ON scheduler.jobs_active (schedule_id) WHERE schedule_id IS NOT NULL;

COMMENT ON TABLE scheduler.schedules IS 'Recurring schedules. Write them by upsert_schedule; a worker computes next_fire, or records error.';
COMMENT ON COLUMN scheduler.schedules.id IS 'Its jobs carry it as schedule_id.';
COMMENT ON COLUMN scheduler.schedules.name IS 'What it is known by.';
COMMENT ON COLUMN scheduler.schedules.kind IS 'Of its jobs.';
COMMENT ON COLUMN scheduler.schedules.payload IS 'Of its jobs.';
COMMENT ON COLUMN scheduler.schedules.tenant IS 'Of its jobs.';
COMMENT ON COLUMN scheduler.schedules.priority IS 'Of its jobs. Default: that of the kind.';
COMMENT ON COLUMN scheduler.schedules.unique_key IS 'Of its jobs. A fire that finds it taken is skipped.';
COMMENT ON COLUMN scheduler.schedules.mode IS 'cron; fixed_rate: every counts from fire to fire; fixed_delay: from the end of a job to the next fire.';
COMMENT ON COLUMN scheduler.schedules.cron IS 'Five fields, six with seconds before them, or @daily and its kin.';
COMMENT ON COLUMN scheduler.schedules.time_zone IS 'The IANA zone on whose clock cron is read.';
COMMENT ON COLUMN scheduler.schedules.every IS 'From 1 second to 366 days; a day has 24 hours.';
COMMENT ON COLUMN scheduler.schedules.starts_at IS 'No fire before. A fixed rate counts from it. Default: when the schedule was made.';
COMMENT ON COLUMN scheduler.schedules.ends_at IS 'No fire from then on.';
COMMENT ON COLUMN scheduler.schedules.jitter IS 'run_at of a job lies up to so long after its fire_time: a share that follows from the two.';
COMMENT ON COLUMN scheduler.schedules.overlap IS 'When a job of it is unfinished. skip: no job; queue_one: one that waits for it; allow: one beside it.';
COMMENT ON COLUMN scheduler.schedules.misfire IS 'When several fires are due, or one is a minute late. coalesce: one job, for the newest; skip: one if the newest is not late; backfill: one for each, oldest first.';
COMMENT ON COLUMN scheduler.schedules.backfill_limit IS 'At most so many jobs are made up for; unless overlap is allow, at most so many are unfinished.';
COMMENT ON COLUMN scheduler.schedules.paused IS 'Nothing fires; what would have is not made up for.';
COMMENT ON COLUMN scheduler.schedules.next_fire IS 'It only grows. Null: a worker is to compute it, or a fixed delay waits for its job.';
COMMENT ON COLUMN scheduler.schedules.last_fire IS 'The newest fire time that was decided upon.';
COMMENT ON COLUMN scheduler.schedules.last_job IS 'The newest job.';
COMMENT ON COLUMN scheduler.schedules.skipped IS 'Fires that made no job: another was unfinished, the key was taken, it was missed and not made up for.';
COMMENT ON COLUMN scheduler.schedules.version IS 'Grows with every edit, and whenever next_fire becomes unknown: a fire that was computed before changes nothing.';
COMMENT ON COLUMN scheduler.schedules.declared IS 'The declarations seen, newest first.';
COMMENT ON COLUMN scheduler.schedules.error IS 'Why it does not fire, until it is edited or resumed.';
"""
SCHEDULES_GRANTS = """
GRANT SELECT ON scheduler.schedules TO scheduler_operator;
GRANT SELECT (id, name, kind, tenant, priority, mode, cron, time_zone, every, starts_at, ends_at, jitter, overlap, misfire,
              backfill_limit, paused, next_fire, last_fire, last_job, skipped, version)
  ON scheduler.schedules TO scheduler_viewer;
"""


def upgrade() -> None:
    script = op.get_context().opts["script"]
    script(EPOCH)
    script(COLUMNS)
    script(RETENTION)
    script(CRASHES)
    script(GRAPHS)
    script(SCHEDULES)
    if op.get_context().opts["roles"]:
        script(SCHEDULES_GRANTS)


# No job is touched; what is paused goes on.
DOWN = """
DROP INDEX scheduler.jobs_last_chance;
ALTER TABLE scheduler.workers DROP COLUMN abandoned;
ALTER TYPE scheduler.claimed DROP ATTRIBUTE parents;
DROP INDEX scheduler.dependencies_child_to_apply;
ALTER TABLE scheduler.dependencies DROP COLUMN name;
COMMENT ON COLUMN scheduler.jobs.depends_on IS 'Ids of existing jobs that must end first.';
DROP TABLE scheduler.schedules CASCADE;
DROP INDEX scheduler.jobs_of_schedule;
ALTER TYPE scheduler.claimed DROP ATTRIBUTE fire_time;
DROP INDEX scheduler.idempotency_keys_expires_at;
DROP TABLE scheduler.kept, scheduler.retention;
ALTER TABLE scheduler.queues
  DROP COLUMN paused_until, DROP COLUMN paused_by, DROP COLUMN keep_completed, DROP COLUMN keep_failed;
ALTER TABLE scheduler.kinds DROP COLUMN paused_until, DROP COLUMN paused_by;
"""


def downgrade() -> None:
    op.get_context().opts["script"](DOWN)
