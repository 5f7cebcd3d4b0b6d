"""Whatever a handler raises can be described and stored."""

import pickle
import traceback
from datetime import timedelta

import pytest

from scheduler import errors
from scheduler.error_text import TEXT_LIMIT, clean_text, describe_exception, safe_str

BIG = 50_000_000


class SilentError(Exception):
    def __init__(self, raised):
        self.raised = raised

    def __str__(self):
        raise self.raised


class NotTextError(Exception):
    def __str__(self):
        return 5  # noqa: PLE0307 - what is tested


class EndlessError(Exception):
    def __str__(self):
        return str(self)


class BadNotesError(Exception):
    __notes__ = 5


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def circle():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def chain(length):
    error = None
    for number in range(length):
        error = raised(ValueError(f"number {number}"), error)
    return error


def recursion():
    def even(n):
        return odd(n + 1)

    def odd(n):
        return even(n + 1)

    with pytest.raises(RecursionError) as caught:
        even(0)
    return caught.value


def group(depth):
    error = ValueError("leaf")
    for _ in range(depth):
        error = ExceptionGroup("group", [error] * 20)
    return error


HOSTILE = {
    "no text": SilentError(RuntimeError("no")),
    "exits": SilentError(SystemExit(3)),
    "interrupts": SilentError(KeyboardInterrupt()),
    "not text": NotTextError(),
    "endless": EndlessError(),
    "silent about being silent": SilentError(SilentError(RuntimeError())),
    "notes": BadNotesError("x"),
    "circle": circle(),
    "chain": chain(5000),
    "recursion": recursion(),
    "group": group(30),
    "huge": ValueError("x" * BIG),
    "nul": ValueError("a\0b\ud800c"),
    "empty": ValueError(),
    "exit": SystemExit(1),
}


@pytest.mark.parametrize("error", HOSTILE.values(), ids=HOSTILE)
def test_any_exception_can_be_described_and_stored(error):
    name, message, trace = describe_exception(raised(error))

    for text, limit in ((name, 200), (message, TEXT_LIMIT), (trace, TEXT_LIMIT)):
        assert len(text.encode()) <= limit  # encode refuses lone surrogates
        assert "\0" not in text
    assert name in trace
    assert safe_str(error) == message


QUOTING = {
    "asyncpg and psycopg": 'duplicate key value violates "u"\nDETAIL:  Key (mail)=(secret\nsecret) already exists.',
    "a hint": 'new row violates check "c"\nDETAIL:  Failing row contains (secret).\nHINT:  Mend it.',
    "SQLAlchemy": "(driver.Error) duplicate\nDETAIL:  Key (a)=(secret).\n[SQL: INSERT INTO t VALUES ($1)]\n"
    "[parameters: ('secret', [1])]\n(Background on this error at: https://sqlalche.me/e/20/gkpj)",
}


@pytest.mark.parametrize("text", QUOTING.values(), ids=QUOTING)
def test_the_values_that_a_database_quotes_are_not_shown(text):
    error = raised(ValueError("while saving"), raised(RuntimeError(text)))

    described = describe_exception(error)
    inner = safe_str(error.__cause__ or error.__context__)

    assert "secret" not in "".join(described) + inner
    assert text.partition("\n")[0] in inner
    assert "[values are not shown]" in inner
    assert ("HINT:  Mend it." in inner, "[SQL: INSERT" in inner) == ("HINT" in text, "SQL:" in text)


def test_what_many_quotes_become_fits_too():
    assert len(safe_str(ValueError("DETAIL:\nHINT:\n" * 1100)).encode()) <= TEXT_LIMIT


def test_a_traceback_shows_no_values_of_variables():
    def handler():
        password = "sec" + "ret"
        raise ValueError(len(password))

    with pytest.raises(ValueError, match="6") as caught:
        handler()

    assert "secret" not in "".join(describe_exception(caught.value))


def test_a_description_has_the_type_the_message_and_the_traceback_python_prints():
    error = raised(KeyError("outer"), raised(ValueError("inner")))
    error.add_note("a note")

    name, message, trace = describe_exception(error)

    assert (name, message) == ("KeyError", "'outer'")
    assert trace == "".join(traceback.format_exception(error))


def test_an_exception_during_another_is_described_as_python_prints_it():
    error = None
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("second")  # noqa: B904 - the context is what is tested
    except KeyError as caught:
        error = caught

    assert describe_exception(error)[2] == "".join(traceback.format_exception(error))


def test_a_suppressed_context_stays_hidden():
    try:
        try:
            raise ValueError("out of sight")
        except ValueError:
            raise TypeError("seen") from None
    except TypeError as caught:
        trace = describe_exception(caught)[2]

    assert "TypeError: seen" in trace
    assert "ValueError" not in trace.partition("\n")[2].replace("except ValueError", "")


def test_a_long_chain_keeps_what_was_raised_last():
    trace = describe_exception(chain(5000))[2]

    assert trace.startswith("[older causes are not shown]")
    assert trace.endswith("ValueError: number 4999\n")


def test_a_circle_of_causes_is_shown_once():
    trace = describe_exception(circle())[2]

    assert (trace.count("ValueError: first\n"), trace.count("ValueError: second\n")) == (1, 1)


def test_a_deep_recursion_keeps_the_frames_nearest_to_the_error():
    def descend(level):
        if level:
            descend(level - 1)
        raise ValueError("bottom")

    with pytest.raises(ValueError, match="bottom") as caught:
        descend(100)

    assert describe_exception(caught.value)[2].endswith('    raise ValueError("bottom")\nValueError: bottom\n')


def test_the_members_of_a_group_are_shown():
    trace = describe_exception(ExceptionGroup("both", [ValueError("one"), KeyError("two")]))[2]

    assert "  [1 of 2]\n  ValueError: one\n" in trace
    assert "  [2 of 2]\n  KeyError: 'two'\n" in trace


def test_a_message_that_cannot_be_read_says_why():
    assert safe_str(SilentError(RuntimeError("no"))) == "<no message: RuntimeError while reading it>"


@pytest.mark.parametrize(
    ("text", "clean"),
    [("plain é 😀", "plain é 😀"), ("a\0b", "a\ufffdb"), ("a\ud800b\udfff", "a\ufffdb\ufffd"), ("", "")],
)
def test_clean_text_replaces_what_cannot_be_stored(text, clean):
    assert clean_text(text, 100) == clean


@pytest.mark.parametrize("character", ["x", "é", "😀", "\0", "\ud800"])
@pytest.mark.parametrize("limit", [0, 1, 10, 60, 1000])
def test_clean_text_fits_its_limit_in_bytes(character, limit):
    for length in (limit // 4, limit, limit + 1, 5000):
        assert len(clean_text(character * length, limit).encode()) <= limit


def test_clean_text_keeps_both_ends_and_says_what_it_cut():
    text = clean_text("BEGIN" + "x" * 5000 + "END", 100)

    assert text.startswith("BEGINx")
    assert text.endswith("xEND")
    assert " ... [cut from 5,008 characters] ... " in text


def test_a_text_of_exactly_the_limit_is_not_cut():
    assert clean_text("é" * 50, 100) == "é" * 50


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError("x"),
        errors.InvalidJob("payload.to", "is missing"),
        errors.JobNotFound(1),
        errors.JobFailed(1, "FAILED", "boom"),
        errors.ResultTimeout(1, 2.5),
        errors.LeaseLost(1, 2),
        errors.NonRetryableError("x"),
        errors.RetryAfter(timedelta(seconds=5), "busy"),
        errors.Snooze(timedelta(seconds=5)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_our_errors_keep_their_facts_when_pickled(error):
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("steering", [errors.RetryAfter, errors.Snooze])
@pytest.mark.parametrize("delay", [timedelta(microseconds=-1), timedelta(days=366, microseconds=1)])
def test_a_delay_outside_of_a_year_is_refused(steering, delay):
    with pytest.raises(ValueError, match="delay must be between 0 and 366 days"):
        steering(delay)


@pytest.mark.parametrize("steering", [errors.RetryAfter, errors.Snooze])
def test_a_delay_is_a_timedelta(steering):
    with pytest.raises(TypeError, match="delay must be a timedelta, not int"):
        steering(5)


def test_errors_can_be_caught_as_what_they_also_are():
    assert issubclass(errors.InvalidJob, ValueError)
    assert issubclass(errors.ResultTimeout, TimeoutError)
    assert not issubclass(errors.NonRetryableError, errors.SchedulerError)
