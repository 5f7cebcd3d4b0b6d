"""What a handler may return, and the words for what it may not."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from scheduler.errors import InvalidJob
from scheduler.payload import RESULT_LIMIT, encode_result

NAIVE = datetime(2025, 1, 2, 3, 4, 5)  # noqa: DTZ001 - refused, which is what is tested
AWARE = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


class Address(msgspec.Struct):
    street: str


def label(value):
    return value[:40] if isinstance(value, str) else type(value).__name__


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def circle():
    value = []
    value.append(value)
    return value


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (0, b"0"),
        (False, b"false"),
        ("", b'""'),
        ([None], b"[null]"),
        (Point(1), b'{"x":1}'),
        (Address("a"), b'{"street":"a"}'),
        ({1}, b"[1]"),
        (b"a", b'"YQ=="'),
        (AWARE, b'"2025-01-02T03:04:05Z"'),
        (nested(64), b"[" * 64 + b"]" * 64),
        ("x" * (RESULT_LIMIT - 2), b'"' + b"x" * (RESULT_LIMIT - 2) + b'"'),
    ],
    ids=label,
)
def test_a_result_is_stored_as_json(value, stored):
    assert encode_result(value) == stored


def test_none_is_no_result():
    assert encode_result(None) is None


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (math.nan, "holds NaN or infinity, which JSON cannot: use None or leave it out"),
        (Point(math.inf), "holds NaN or infinity, which JSON cannot: use None or leave it out, at result[...]"),
        ({"a": [1, "\0"]}, "NUL, which PostgreSQL cannot store: remove it, at result[...][1]"),
        ("\ud800", "holds a lone surrogate"),
        ([NAIVE], "holds a datetime without a time zone"),
        (nested(65), "nests deeper than 64 levels"),
        (circle(), "nests deeper than 64 levels, or contains itself"),
        (object(), "holds a value of type object, which JSON cannot hold"),
        (msgspec.Raw(b"NaN"), "is not valid JSON"),
        ("x" * (RESULT_LIMIT - 1), "has 65,537 bytes of JSON, at most 65,536 are allowed"),
        ([1] * 30_000, "has 90,000 bytes of JSON"),
    ],
    ids=label,
)
def test_a_result_that_cannot_be_stored_is_refused(value, rule):
    with pytest.raises(InvalidJob) as caught:
        encode_result(value)

    assert caught.value.field == "result"
    assert rule in caught.value.rule
