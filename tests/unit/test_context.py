"""What a handler sees of its attempt, on either side of a process boundary."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from scheduler.context import Context


def make(**changes):
    facts = {"job_id": 7, "kind": "send", "queue": "mail", "tenant": "t", "attempt": 2, "failures": 1, "fence": 1 << 33}
    return Context(**(facts | {"timeout": 1.5} | changes))


def test_the_idempotency_key_is_the_jobs_own_else_made_of_its_id():
    assert make(idempotency_key="order-5").idempotency_key == "order-5"
    assert make(idempotency_key="").idempotency_key == ""
    assert make().idempotency_key == "scheduler:7"


def test_metadata_is_decoded_once():
    context = make(metadata='{"trace": "abc"}')

    assert context.metadata == {"trace": "abc"}
    assert context.metadata is context.metadata


def test_a_cancellation_before_anyone_looked_is_seen():
    context = make()

    context.cancel()

    assert context.cancelled.is_set()


def test_a_cancellation_wakes_a_thread_that_waits():
    context = make()
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(context.cancelled.wait(timeout=30)))
    waiter.start()

    context.cancel()
    waiter.join(timeout=30)

    assert seen == [True]


def test_threads_that_look_at_the_same_time_meet_at_one_event(monkeypatch):
    both_inside = threading.Barrier(2)
    real_event = threading.Event

    def slow_event():
        with contextlib.suppress(threading.BrokenBarrierError):
            both_inside.wait(timeout=0.2)  # passes only when two threads make an event at once
        return real_event()

    monkeypatch.setattr("scheduler.context.threading", SimpleNamespace(Event=slow_event))
    context = make()

    with ThreadPoolExecutor(2) as pool:
        events = list(pool.map(lambda _: context.cancelled, range(2)))

    assert events[0] is events[1]


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("key", [None, "order-5"])
def test_a_context_crosses_a_process_boundary_as_json(read_before, key):
    context = make(metadata='{"a": [1]}', idempotency_key=key, worker_id="w-1")
    if read_before:
        assert context.metadata

    copy = Context(**json.loads(json.dumps(context.to_wire())))

    for name in (
        "job_id",
        "kind",
        "queue",
        "tenant",
        "attempt",
        "failures",
        "fence",
        "timeout",
        "idempotency_key",
        "worker_id",
    ):
        assert getattr(copy, name) == getattr(context, name)
    assert copy.metadata == {"a": [1]}
    assert not copy.cancelled.is_set()
