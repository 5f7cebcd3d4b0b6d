"""What operators hold and what retention needs: pauses, how long finished jobs are kept, how far retention has come."""

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
COMMENT ON COLUMN scheduler.jobs.depends_on IS 'Ids of existing jobs that must end first. With its own id: a batch, see close_batch().';
"""


def upgrade() -> None:
    script = op.get_context().opts["script"]
    script(EPOCH)
    script(COLUMNS)
    script(RETENTION)
    script(CRASHES)
    script(GRAPHS)


# No job is touched; what is paused goes on.
DOWN = """
DROP INDEX scheduler.jobs_last_chance;
ALTER TABLE scheduler.workers DROP COLUMN abandoned;
ALTER TYPE scheduler.claimed DROP ATTRIBUTE parents;
DROP INDEX scheduler.dependencies_child_to_apply;
ALTER TABLE scheduler.dependencies DROP COLUMN name;
COMMENT ON COLUMN scheduler.jobs.depends_on IS 'Ids of existing jobs that must end first.';
DROP INDEX scheduler.idempotency_keys_expires_at;
DROP TABLE scheduler.kept, scheduler.retention;
ALTER TABLE scheduler.queues
  DROP COLUMN paused_until, DROP COLUMN paused_by, DROP COLUMN keep_completed, DROP COLUMN keep_failed;
ALTER TABLE scheduler.kinds DROP COLUMN paused_until, DROP COLUMN paused_by;
"""


def downgrade() -> None:
    op.get_context().opts["script"](DOWN)
