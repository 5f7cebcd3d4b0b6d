"""The table of states is whole: nothing leaves an end, and everything can reach one."""

import pytest

from scheduler.states import ACTIVE, FINISHED, TRANSITIONS, WAITING, Outcome, Status

ENDS_OF_AN_ATTEMPT = ["settle_failed", "settle_timed_out", "settle_snoozed", "settle_cancelled", "release", "reap"]


def targets(status):
    return {target for moves in TRANSITIONS.values() for target in moves.get(status, ())}


def test_every_status_is_either_waiting_running_or_finished():
    assert sorted([*WAITING, Status.RUNNING, *FINISHED]) == sorted(Status)
    assert WAITING | {Status.RUNNING} == ACTIVE


@pytest.mark.parametrize("status", sorted(FINISHED))
def test_only_an_operator_moves_a_finished_job(status):
    moved_by = {verb for verb, moves in TRANSITIONS.items() if status in moves}

    assert moved_by == ({"prune"} if status is Status.COMPLETED else {"retry", "prune"})
    assert targets(status) <= WAITING


@pytest.mark.parametrize("status", sorted(ACTIVE))
def test_every_active_job_can_move_and_can_be_cancelled(status):
    assert targets(status) - {status}
    assert Status.CANCELLED in targets(status)


@pytest.mark.parametrize("status", sorted(set(Status) - WAITING))
def test_every_later_status_is_reached_by_a_verb(status):
    assert any(status in targets(earlier) for earlier in ACTIVE - {status})


@pytest.mark.parametrize("verb", ENDS_OF_AN_ATTEMPT)
def test_an_end_other_than_completion_honours_a_cancel_request(verb):
    assert Status.CANCELLED in TRANSITIONS[verb][Status.RUNNING]


def test_a_completed_attempt_completes_its_job_whatever_was_requested():
    assert TRANSITIONS["settle_completed"] == {Status.RUNNING: {Status.COMPLETED}}


def test_only_a_claim_makes_a_job_run():
    into_running = {verb for verb, moves in TRANSITIONS.items() if Status.RUNNING in moves.get(Status.PENDING, ())}

    assert into_running == {"claim"}
    assert all(
        Status.RUNNING not in moves.get(s, ()) for moves in TRANSITIONS.values() for s in WAITING - {Status.PENDING}
    )


def test_every_outcome_has_a_verb():
    assert {f"settle_{outcome}" for outcome in Outcome} == {verb for verb in TRANSITIONS if verb.startswith("settle_")}


def test_the_table_cannot_be_changed_at_run_time():
    with pytest.raises(TypeError):
        TRANSITIONS["claim"] = {}
    with pytest.raises(TypeError):
        TRANSITIONS["claim"][Status.FAILED] = frozenset()
