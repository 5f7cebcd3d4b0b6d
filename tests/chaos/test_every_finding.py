"""Each thing that the checker can say is said of a history that deserves it: one job's life, falsified in one place."""

import ast
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from .checker import INVARIANTS, violations
from .history import EXACTLY_ONCE, Effect, Ended, Event, History, Row, Submission

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
    "I10": {
        "two jobs of one idempotency key": family(job(2, idempotency_key="x"), rows=[
            job(idempotency_key="x"), job(2, idempotency_key="x")]),
        "two unfinished jobs of one unique key": family(job(2), rows=[
            job(unique_key="x"), job(2, unique_key="x")], events=[BORN, CLAIMED, *CHILD, replace(DONE, seq=9)]),
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
    tree = ast.parse((Path(__file__).parent / "checker.py").read_text())
    rules = {rule.__name__ for rules in INVARIANTS.values() for rule in rules}

    unsaid = []
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in rules):
        for words in (node for node in ast.walk(function) if isinstance(node, ast.JoinedStr) and len(node.values) > 1):
            parts = [re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in words.values]
            if not any(re.fullmatch("".join(parts), sentence) for sentence in said):
                unsaid.append(ast.unparse(words))
    assert unsaid == []
