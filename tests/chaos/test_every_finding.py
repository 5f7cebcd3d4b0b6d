"""Each thing that the checker can say is said of a history that deserves it: one job's life, falsified in one place."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from .checker import INVARIANTS, violations
from .history import EXACTLY_ONCE, RECURRING, Effect, Ended, Event, History, Row, Schedule, Submission

FENCE = 1 << 32 | 1


def event(seq, was, now, job=1, **facts):
    given = {"attempt": 1, "fence": FENCE, "worker": "w", "lease": 99.0, "actor": "worker-1", "xid": seq, **facts}
    return Event(seq=seq, at=float(seq), job=job, was=was, now=now, **given)


def job(number=1, **facts):
    given = {"token": number, "kind": "k", "status": "COMPLETED", "attempt": 1, "failures": 0, "crashes": 0}
    limits = {"max_attempts": 3, "max_crashes": 3, "fence": FENCE, "result_fence": FENCE}
    return Row(id=number, **{**given, **limits, **facts})


def told(number=1, **facts):
    given = {"answer": "acknowledged", "ends": ("COMPLETED",), "job": number, "timeline": 1, "written": 1}
    return Submission(token=number, **{**given, **facts})


def effects(number=1, fence=FENCE):
    return [Effect(what=what, at=1.0, job=number, fence=fence) for what in ("began", "finished")]


BORN, CLAIMED, DONE = event(1, None, "PENDING"), event(2, "PENDING", "RUNNING"), event(3, "RUNNING", "COMPLETED")
LIFE = [BORN, CLAIMED, DONE]
FAILED = [BORN, CLAIMED, event(3, "RUNNING", "FAILED")]
CHILD = [event(4, None, "BLOCKED", 2), event(5, "BLOCKED", "PENDING", 2), event(6, "PENDING", "RUNNING", 2),
         event(7, "RUNNING", "COMPLETED", 2)]  # fmt: skip
AGAIN = [event(3, "RUNNING", "PENDING"), event(4, "PENDING", "RUNNING", attempt=2), event(5, "RUNNING", "COMPLETED")]
END = Ended(job=1, attempt=1, outcome="failed")
LOST = replace(END, outcome="lost")


def history(**changes):
    given = {"events": LIFE, "rows": [job()], "submissions": [told()], "effects": effects()}
    return History(**{**given, **changes})


def family(child, **changes):
    """A parent and its child, which both completed unless told otherwise."""
    given = {"events": [*LIFE, *CHILD], "rows": [job(), child], "submissions": [told(), told(2)]}
    return history(**{**given, "effects": effects() + effects(2), **changes})


SECOND = 1_000_000
EACH = Schedule(id=1, mode="fixed_rate", overlap="allow", misfire="backfill", every=SECOND, starts_at=0)
DELAY = replace(EACH, mode="fixed_delay", every=2 * SECOND)


def recurring(*times, ends=90, begins=9, schedule=EACH, **facts):
    """The jobs of a schedule for these seconds; all were made at `begins`, and ended at `ends`."""
    rows, events = [], []
    for number, time in enumerate(times, 1):
        given = {"token": RECURRING, "schedule": 1, "fire_time": int(time * SECOND), "finished": ends * SECOND}
        rows.append(job(number, **given))
        events += [replace(move, job=number, seq=10 * number + move.seq, at=float(begins)) for move in LIFE]
    last = max((row.fire_time for row in rows), default=None)
    told = replace(schedule, **{"last_fire": last, **facts})
    done = [effect for row in rows for effect in effects(row.id)]
    return history(rows=rows, events=events, schedules=[told], submissions=[], effects=done)


def batch(**changes):
    """Job 1 is a member of batch 2, which was closed before its callback ran."""
    child = job(2, depends_on=(2,), **changes.pop("callback", {}))
    return family(child, **{"members": [(2, 2), (1, 2)], "closed": [(2, 5)], **changes})


CASES = {
    "I1": {
        "one submission made two jobs": history(rows=[job(), job(2, token=1)]),
        "what was refused is there": history(submissions=[told(answer="refused", job=None)]),
        "what was acknowledged is not": history(submissions=[told(), told(2)]),
        "another job than was told": history(submissions=[told(job=9)]),
        "half of a call": history(submissions=[told(call=1), told(2, call=1, answer="unknown", job=None)]),
    },
    "I2": {
        "a job whose life nobody saw": history(events=[]),
        "a job begins in the middle": history(events=LIFE[1:]),
        "a move was not seen": history(events=[BORN, event(2, "DELAYED", "RUNNING"), DONE]),
        "a move that no verb makes": history(events=[BORN, event(2, "PENDING", "COMPLETED")]),
        "the table shows another end": history(rows=[job(status="FAILED", failures=1)], ended=[END]),
    },
    "I3": {
        "a fence that does not grow": history(events=[BORN, CLAIMED, *AGAIN], rows=[job(attempt=2)], ended=[LOST]),
        "two executions under one fence": history(effects=effects() * 2),
        "a claim ended as another": history(events=[BORN, CLAIMED, replace(DONE, fence=FENCE + 1)]),
        "reaped before its time": history(events=[BORN, CLAIMED, *AGAIN], rows=[job(attempt=2)], ended=[LOST]),
        "ended by somebody else": history(events=[BORN, CLAIMED, replace(DONE, actor="worker-2")]),
        "the error of another attempt": history(
            events=FAILED, rows=[job(status="FAILED", failures=1)], ended=[replace(END, error_fence=7)]
        ),
        "the result of another attempt": history(rows=[job(result_fence=7)]),
        "what the ghost was not refused": history(accepted=["job 1: settle was not refused"]),
    },
    "I4": {"a job leaves its end": history(events=[*LIFE, event(4, "COMPLETED", "PENDING")])},
    "I5": {
        "a claim is not counted": history(rows=[job(attempt=0)]),
        "an attempt is not on record": history(events=FAILED, rows=[job(status="FAILED", failures=1)]),
        "a crash is not on record": history(rows=[job(crashes=1)]),
        "a failure is not on record": history(rows=[job(failures=1)]),
        "more failures than allowed": history(rows=[job(failures=4)]),
    },
    "I6": {
        "a job runs for ever": history(events=LIFE[:2], rows=[job(status="RUNNING")]),
        "an edge is left": history(edges=[(1, 2)]),
    },
    "I7": {
        "a child is claimed too early": family(job(2, depends_on=(1,)), events=[
            BORN, event(2, None, "PENDING", 2), event(3, "PENDING", "RUNNING", 2), event(4, "RUNNING", "COMPLETED", 2),
            replace(CLAIMED, seq=5), replace(DONE, seq=6)]),
        "a child of a failed parent ran": family(job(2, depends_on=(1,)), rows=[
            job(status="FAILED", failures=1), job(2, depends_on=(1,))]),
        "a child was cancelled for nothing": family(job(2, depends_on=(1,), status="CANCELLED", cancelled_by=1)),
    },
    "I8": {
        "one fire made two jobs": recurring(3, 4, 4),
        "a job is of no schedule": replace(recurring(3), schedules=[]),
        "it stands still": recurring(3, error="a worker computed times that do not grow"),
        "a time between two fires": recurring(3, 3.5, 4),
        "a time before the first": recurring(3, 4, starts_at=4 * SECOND),
        "a time that the calendar does not name": recurring(4, 5, 6, mode="cron", cron="*/2 * * * * *"),
        "a time that has not come": recurring(3, 4, 5, begins=4),
        "a fire is dropped": recurring(3, 5, skipped=1),
        "the last fire is dropped": recurring(3, last_fire=4 * SECOND, skipped=1),
        "every fire is dropped": recurring(last_fire=4 * SECOND, skipped=1),
        "a fire is skipped for nothing": recurring(3, 5, ends=4, overlap="skip", skipped=1),
        "one in the queue, and a fire is skipped": recurring(3, 5, overlap="queue_one", skipped=1),
        "a skipped fire is not counted": recurring(3, 5, overlap="skip"),
        "a delay that is not kept": recurring(3, 6, ends=5, schedule=DELAY),
        "a delay that waits for nobody": recurring(3, 6, schedule=DELAY),
    },
    "I10": {
        "two jobs of one idempotency key": family(job(2, idempotency_key="x"), rows=[
            job(idempotency_key="x"), job(2, idempotency_key="x")]),
        "two unfinished jobs of one unique key": family(job(2), rows=[
            job(unique_key="x"), job(2, unique_key="x")], events=[BORN, CLAIMED, *CHILD, replace(DONE, seq=9)]),
    },
    "I11": {
        "a callback completes twice": batch(events=[
            *LIFE, *CHILD, event(8, "COMPLETED", "RUNNING", 2), event(9, "RUNNING", "COMPLETED", 2)]),
        "a callback of an open batch": batch(closed=[]),
        "a callback before the batch is closed": batch(closed=[(2, 7)]),
        "a callback before the last member": batch(events=[BORN, CLAIMED, *CHILD, replace(DONE, seq=8)]),
        "a callback whose member never ends": batch(events=[BORN, CLAIMED, *CHILD]),
    },
    "I12": {
        "completed without a handler": history(effects=[]),
        "executed without a claim": history(effects=effects() + effects(fence=7)),
        "done, and on record as failed": history(
            events=FAILED, rows=[job(status="FAILED", failures=1)], ended=[END], submissions=[told(ends=("FAILED",))]),
        "written twice": history(rows=[job(kind=EXACTLY_ONCE)], written=[(1, FENCE)] * 2),
        "written and not completed": history(written=[(1, 7)]),
        "completed and not written": history(rows=[job(kind=EXACTLY_ONCE)]),
    },
    "I13": {"something is left": history(left_over=["process 7"])},
    "I14": {"a worker has grown": history(sizes={"megabytes of memory of a worker": 300})},
    "I15": {"a job fails that should not": history(
        events=FAILED, rows=[job(status="FAILED", failures=1)], ended=[END])},
}  # fmt: skip


def test_a_life_that_is_as_it_should_be_contradicts_nothing():
    assert violations(history()) == {}
    assert violations(family(job(2, depends_on=(1,)))) == {}
    assert violations(batch()) == {}


def test_schedules_that_did_as_they_should_contradict_nothing():
    assert violations(recurring(3, 4, 5)) == {}
    assert violations(recurring(4, 6, 8, mode="cron", cron="*/2 * * * * *")) == {}
    assert violations(recurring(3, 6, overlap="skip", skipped=2)) == {}
    assert violations(recurring(3, 4, 6, overlap="queue_one", skipped=1)) == {}
    assert violations(recurring(3, 6, misfire="coalesce")) == {}
    assert violations(recurring(3, 7.5, ends=5, schedule=DELAY)) == {}


def test_of_a_batch_a_failed_member_cancels_the_callback_or_not():
    failed = {"rows": [job(status="FAILED", failures=1), job(2, depends_on=(2,))], "ended": [END],
              "events": [*FAILED, *CHILD], "submissions": [told(ends=("FAILED",)), told(2)]}  # fmt: skip
    allowed = [failed["rows"][0], job(2, depends_on=(2,), on_parent_failure="run")]

    assert set(violations(batch(**failed))) == {"I7", "I12"}
    assert set(violations(batch(**{**failed, "rows": allowed}))) == {"I12"}


@pytest.mark.parametrize(("invariant", "name"), [(one, name) for one, cases in CASES.items() for name in cases])
def test_the_checker_says_so_when(invariant, name):
    assert invariant in violations(CASES[invariant][name])


def test_nothing_that_the_checker_can_say_is_never_said():
    said = [
        words
        for cases in CASES.values()
        for one in cases.values()
        for found in violations(one).values()
        for words in found
    ]
    rules = [rule for rules in INVARIANTS.values() for rule in rules]
    trees = [ast.parse(Path(file).read_text()) for file in {inspect.getsourcefile(rule) for rule in rules}]
    names = {rule.__name__ for rule in rules}
    nodes = (node for tree in trees for node in tree.body)

    unsaid = []
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in names):
        for words in (node for node in ast.walk(function) if isinstance(node, ast.JoinedStr) and len(node.values) > 1):
            parts = [re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in words.values]
            if not any(re.fullmatch("".join(parts), sentence) for sentence in said):
                unsaid.append(ast.unparse(words))
    assert unsaid == []
