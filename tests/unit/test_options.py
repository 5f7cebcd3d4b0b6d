"""Each option of a job class or a queue is checked, and refused in one sentence."""

from datetime import timedelta

import pytest

from scheduler.errors import ConfigurationError
from scheduler.job import queue_declaration
from scheduler.options import QUEUES, Options, Priority, Queue, Retry, check_options


@pytest.fixture(autouse=True)
def no_queues():
    queues = dict(QUEUES)
    QUEUES.clear()
    yield
    QUEUES.clear()
    QUEUES.update(queues)


def options(**given):
    return Options(**({"kind": "SendEmail", "executor": "async"} | given))


WORDS = "must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -"


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("timeout", timedelta(0), "timeout must be more than 0 and at most 30 days"),
        ("timeout", timedelta(seconds=-1), "timeout must be more than 0 and at most 30 days"),
        ("timeout", timedelta(days=30, microseconds=1), "timeout must be more than 0 and at most 30 days"),
        ("timeout", 30, "timeout must be a timedelta, not int"),
        ("idempotency_window", timedelta(0), "idempotency_window must be more than 0 and at most 366 days"),
        ("idempotency_window", timedelta(days=367), "idempotency_window must be more than 0 and at most 366 days"),
        ("priority", 101, "priority must be from -100 to 100"),
        ("priority", -101, "priority must be from -100 to 100"),
        ("priority", 1.0, "priority must be a whole number, not float"),
        ("priority", True, "priority must be a whole number, not bool"),
        ("priority", "HIGH", "priority must be a whole number, not str"),
        ("kind", "", f"kind {WORDS}"),
        ("kind", "a b", f"kind {WORDS}"),
        ("kind", "a\n", f"kind {WORDS}"),
        ("kind", "k" * 101, f"kind {WORDS}"),
        ("kind", 5, f"kind {WORDS}"),
        ("queue", "é", f"queue {WORDS}"),
        ("retry", 5, "retry must be a Retry(...), not int"),
        ("retry", Retry(max_attempts=0), "retry.max_attempts must be from 1 to 1000000"),
        ("retry", Retry(max_attempts=2.0), "retry.max_attempts must be a whole number, not float"),
        ("retry", Retry(max_crashes=-1), "retry.max_crashes must be from 0 to 1000000"),
        ("retry", Retry(base=timedelta(0)), "retry.base must be more than 0 and at most 30 days"),
        ("retry", Retry(cap=timedelta(days=31)), "retry.cap must be more than 0 and at most 30 days"),
        ("retry", Retry(base=1), "retry.base must be a timedelta, not int"),
        ("retry", Retry(base=timedelta(hours=2)), "retry.base must not exceed retry.cap"),
        ("retry", Retry(jitter=1), "retry.jitter must be True or False"),
    ],
)
def test_a_bad_option_is_refused_in_one_sentence(option, value, rule):
    with pytest.raises(ConfigurationError) as caught:
        check_options("SendEmail", options(**{option: value}))

    assert str(caught.value) == f"SendEmail: {rule}"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", timedelta(days=30)),
        ("timeout", timedelta(microseconds=1)),
        ("idempotency_window", timedelta(days=366)),
        ("priority", -100),
        ("priority", 100),
        ("priority", Priority.CRITICAL),
        ("kind", "k" * 100),
        ("queue", "A-z_0.9:x"),
        ("retry", Retry(max_attempts=1, max_crashes=0, base=timedelta(days=30), cap=timedelta(days=30))),
    ],
)
def test_the_extremes_of_each_option_are_allowed(option, value):
    check_options("SendEmail", options(**{option: value}))


def test_a_queue_registers_itself_and_declares_what_it_set():
    plain, slow = Queue("mail"), Queue("slow", step=timedelta(minutes=1))
    brief = Queue("brief", keep_completed=timedelta(hours=1), keep_failed=timedelta(days=36525))

    assert {"mail": plain, "slow": slow, "brief": brief} == QUEUES
    assert queue_declaration(brief) == {
        "queue": "brief",
        "ordering": "aging",
        "keep_completed": 3600,
        "keep_failed": 36525 * 86400,
    }
    assert queue_declaration(plain) == {"queue": "mail", "ordering": "aging"}
    assert queue_declaration(slow) == {"queue": "slow", "ordering": "aging", "step": 60}


def test_a_queue_may_be_declared_twice_in_the_same_words_only():
    first = Queue("mail", ordering="fifo")
    Queue("mail", ordering="fifo")

    with pytest.raises(ConfigurationError, match="queue mail is declared twice"):
        Queue("mail", ordering="strict")

    assert {"mail": first} == QUEUES


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"name": "a b"}, f"queue: name {WORDS}"),
        ({"name": "mail", "ordering": "random"}, "queue mail: ordering must be 'aging', 'fifo' or 'strict'"),
        ({"name": "mail", "step": 10}, "queue mail: step must be a timedelta, not int"),
        ({"name": "mail", "keep_completed": 7}, "queue mail: keep_completed must be a timedelta, not int"),
        (
            {"name": "mail", "keep_failed": timedelta(0)},
            "queue mail: keep_failed must be more than 0 and at most 36525 days",
        ),
        (
            {"name": "mail", "step": timedelta(0)},
            "queue mail: step must be more than 0 and at most 10 years (87660 hours)",
        ),
        ({"name": "mail", "step": timedelta(days=4000)}, "queue mail: step must be more than 0 and at most 10 years"),
        ({"name": "mail", "ordering": "fifo", "step": timedelta(1)}, "queue mail: step belongs to ordering 'aging'"),
    ],
)
def test_a_bad_queue_is_refused_in_one_sentence(arguments, rule):
    with pytest.raises(ConfigurationError) as caught:
        Queue(**arguments)

    assert str(caught.value).startswith(rule)
    assert QUEUES == {}
