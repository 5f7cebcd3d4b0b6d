"""A checker that cannot fail is worth nothing: each invariant is broken on purpose, in a copy of the engine's SQL."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sql import steps

from . import recorder
from .campaign import leftovers
from .checker import INVARIANTS, violations
from .history import Effect, Submission
from .jobs import LEDGER
from .life import live

SQL = Path(__file__).parents[2] / "scheduler" / "sql"


def altered(verb: str, *changes: tuple[str, str]) -> str:
    """Return the definition of a verb with parts replaced."""
    text = (SQL / f"{verb}.sql").read_text()
    for old, new in changes:
        assert old in text, f"{verb}.sql has changed: break it in another place"
        text = text.replace(old, new)
    return text


def trigger(when: str, body: str) -> str:
    """Return a trigger that runs after the engine's own."""
    return f"""
        CREATE FUNCTION chaos_sabotage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
        CREATE TRIGGER zz_sabotage {when} FOR EACH ROW EXECUTE FUNCTION chaos_sabotage()"""


BACK_TO_LIFE = """
    IF NEW.attempt = 1 THEN
      INSERT INTO scheduler.jobs_active (id, kind, payload, queue, priority, max_attempts, max_crashes, timeout,
        retry_base, retry_cap, retry_jitter, attempt, fence, run_at, submitted_at, rank_at, status)
      OVERRIDING SYSTEM VALUE VALUES (NEW.id, NEW.kind, NEW.payload, NEW.queue, NEW.priority, NEW.max_attempts,
        NEW.max_crashes, NEW.timeout, NEW.retry_base, NEW.retry_cap, NEW.retry_jitter, NEW.attempt, NEW.fence,
        NEW.run_at, NEW.submitted_at, NEW.rank_at, 'PENDING');
      DELETE FROM scheduler.jobs_finished f WHERE f.id = NEW.id;
    END IF;
    RETURN NULL;"""

BREAKS = {
    "a settlement forgets the job": (
        "I1", trigger("BEFORE INSERT ON scheduler.jobs_finished", "RETURN CASE WHEN NEW.id % 2 = 0 THEN NEW END;")),
    "a claim takes what runs": (
        "I2", altered("claim", ("j.status = 'PENDING' AND j.queue", "j.status IN ('PENDING', 'RUNNING') AND j.queue"))),
    "settle knows no fence": (
        "I3", altered("settle", ("j.fence = s.fence AND j.worker_id = p_worker", "j.worker_id IS NOT NULL"))),
    "release knows no fence": (
        "I3", altered("release", ("j.fence = r.fence AND j.worker_id = p_worker", "j.worker_id IS NOT NULL"))),
    "the reaper does not wait": ("I3", altered("reap", ("j.lease_expires_at < scheduler.clock()", "true"))),
    "a fence has no epoch": ("I3", altered("claim", ("v_epoch << 32 | (j.attempt + 1)", "j.attempt + 1"))),
    "a finished job comes back": (
        "I4", trigger("AFTER INSERT ON scheduler.jobs_finished", BACK_TO_LIFE)),
    "a crash is not counted": ("I5", altered("reap", ("crashes = j.crashes + (", "crashes = j.crashes + 0 * ("))),
    "a settlement is dropped": ("I6", trigger("BEFORE DELETE ON scheduler.jobs_active", "RETURN NULL;")),
    "a child is not told": ("I6", altered("resolve", ("SET unmet = j.unmet - met.n", "SET unmet = j.unmet"),
                                          ("j.unmet > met.n", "true"))),
    "a child starts early": ("I7", trigger("BEFORE INSERT ON scheduler.jobs_active",
                                           "NEW.unmet := 0; NEW.status := 'PENDING'; RETURN NEW;")),
    "a failed parent cancels nobody": ("I7", altered("resolve", ("AND f.status <> 'COMPLETED'", "AND false"),
                                                     ("(SELECT f.status = 'COMPLETED' FROM", "(SELECT true FROM"))),
    "unique keys are not": (
        "I10", 'DROP INDEX scheduler."unique_key is held by an unfinished job of this kind"'),
    "idempotency keys are not": ("I10", altered("take_key", ("RETURN false", "RETURN true"))),
    "complete knows no fence": ("I12", altered("complete", ("AND j.fence = p_fence", ""))),
    "what was written stays without its job": (
        "I12", altered("complete", ("PERFORM scheduler.lease_lost(p_id, p_fence)", "RETURN"))),
    "a fire makes two jobs": (
        "I8", altered("fire", ("AS fire_time FROM unnest(d.times)", "AS fire_time FROM unnest(d.times || d.times)"))),
    "every second fire is dropped": (
        "I8", altered("fire", ("AND NOT d.is_dropped", "AND extract(epoch FROM t)::bigint % 2 = 0"))),
    "a fire does not wait for its time": (
        "I8", altered("fire", ("(greatest(s.next_fire, newest) > moment) IS NOT TRUE", "true"))),
    "a fixed delay does not count from the end": (
        "I8", altered("fire", ("(SELECT f.finished_at", "(SELECT f.finished_at - interval '1 min'"),
                      ("f.next < e.finished_at + s.every", "false"))),
    "an open batch starts": (
        "I11", altered("hold_parents", ("cardinality(p_parents) - settled", "cardinality(others) - settled"))),
    "a closed batch does not wait for its members": (
        "I11", altered("close_batch", ("j.unmet > 1", "false"), ("unmet = j.unmet - 1", "unmet = 0"))),
    "a callback comes back": (
        "I11", trigger("AFTER INSERT ON scheduler.jobs_finished", BACK_TO_LIFE)),
    "one failure ends a job": ("I15", altered("settle", ("h.failures + 1 < h.max_attempts", "false"))),
}  # fmt: skip


async def test_jobs_that_the_engine_itself_looked_after_contradict_nothing(db):
    history = await live(db)

    assert violations(history) == {}
    assert {row.status for row in history.rows} == {"COMPLETED", "FAILED", "CANCELLED"}
    assert {end.outcome for end in history.ended} == {"lost", "released", "failed"}


@pytest.mark.parametrize("name", BREAKS)
async def test_the_checker_objects_when(db, name):
    invariant, sabotage = BREAKS[name]
    await db.execute(sabotage)

    history = await live(db)

    assert invariant in violations(history)


async def test_the_checker_objects_when_an_effect_is_missing_or_nobody_claimed_it(db):
    history = await live(db)
    last = history.effects.pop()
    assert last.what == "finished"
    history.effects.append(Effect(what="began", at=0.0, job=last.job, fence=last.fence + 1))

    assert len(violations(history)["I12"]) == 2


async def test_the_checker_objects_when_a_settlement_completes_what_its_own_transaction_lost(db):
    history = await live(db)
    ((job, fence),) = history.written

    history.written = []

    assert violations(history) == {"I12": [f"job {job} completed under fence {fence}, and wrote nothing"]}


async def test_the_checker_objects_when_a_dead_worker_left_something_behind(db, connect, tmp_path):
    assert await leftovers(db, tmp_path / "ledger", patience=0.0) == []
    holder = await connect(server_settings={"application_name": "scheduler-worker"})
    await holder.execute("SELECT pg_advisory_lock(1)")
    orphan = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
                              env={**os.environ, LEDGER: str(tmp_path / "ledger")})  # fmt: skip

    found = await leftovers(db, tmp_path / "ledger", patience=0.0)
    orphan.communicate()

    lock = f"advisory lock of {holder.get_server_pid()}"
    assert {*found} == {"scheduler-worker (idle)", lock, f"process {orphan.pid}"}
    history = await live(db)
    history.left_over = found
    assert violations(history) == {"I13": found}


async def test_a_submission_may_be_missing_only_where_the_promoted_standby_had_not_received_it(db):
    history = await live(db)
    kept = history.promotions[0].kept

    def missing(answer: str, **told):
        submission = Submission(token=0, answer=answer, ends=("COMPLETED",), **told)
        return violations(msgspec.structs.replace(history, submissions=[*history.submissions, submission]))

    assert "I1" in missing("acknowledged", timeline=1, written=kept)
    assert "I1" in missing("acknowledged", timeline=2, written=kept + 1)
    assert "I1" in missing("acknowledged", timeline=2)
    assert missing("acknowledged", timeline=1, written=kept + 1) == missing("acknowledged", timeline=1) == {}
    assert missing("unknown") == missing("refused") == {}


async def test_the_checker_objects_when_the_recorder_saw_another_end_than_the_table_shows(db):
    history = await live(db)
    history.events.pop()

    assert "I2" in violations(history)


async def test_the_checker_objects_when_notices_pile_up_behind_a_listener_that_left_its_transaction_open(db, connect):
    history = await live(db)
    assert await recorder.sizes(db) == {"percent of the queue of notices": 0}
    listener = await connect()
    await listener.execute("LISTEN chaos")
    await listener.execute("BEGIN")

    await db.execute("SELECT pg_notify('chaos', repeat('x', 7000) || n) FROM generate_series(1, 200) AS n")

    history.sizes = {"megabytes of memory of a worker": 90, **await recorder.sizes(db)}
    assert set(violations(history)) == {"I14"}


def test_every_invariant_is_broken_by_one_of_these_tests():
    assert {invariant for invariant, _ in BREAKS.values()} | {"I12", "I13", "I14"} == set(INVARIANTS)


async def test_the_recorder_costs_no_event_for_a_renewal(db):
    await live(db)
    await steps.submit(db, payload={"token": 0})
    await db.execute(
        "SELECT * FROM scheduler.claim(gen_random_uuid(), gen_random_uuid(), '{default}', '{k}', 9, '9 s')"
    )
    before = len((await recorder.read(db)).events)

    await db.execute("SELECT scheduler.renew(worker_id, ARRAY[id], ARRAY[fence], '9 s') FROM scheduler.jobs_active")

    assert len((await recorder.read(db)).events) == before
