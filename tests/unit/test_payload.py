"""What a payload or a result may hold, and the words for what it may not."""

import enum
import json
import math
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from scheduler.errors import InvalidJob
from scheduler.job import KINDS, BlockingJob
from scheduler.payload import PAYLOAD_LIMIT, decode_payload, encode_payload

NAIVE = datetime(2025, 1, 2, 3, 4, 5)  # noqa: DTZ001 - refused, which is what is tested
AWARE = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "hunter2-secret"


class Colour(enum.Enum):
    RED = "red"


class Address(msgspec.Struct):
    street: str


class PayloadSample(BlockingJob):
    to: str = "a"
    count: Annotated[int, msgspec.Meta(ge=0)] = 0
    names: list[str] = msgspec.field(default_factory=list)
    address: Address | None = None
    colour: Colour = Colour.RED
    choice: Literal["x", "y"] = "x"
    identity: UUID | None = None
    when: datetime | None = None
    scores: dict[str, int] = msgspec.field(default_factory=dict)
    code: Annotated[str, msgspec.Meta(pattern="^[0-9]*$")] = ""
    ratio: float = 0.0
    raw: msgspec.Raw | None = None
    anything: Any = None

    def run(self, ctx): ...


class Required(BlockingJob, rename="camel"):
    send_to: str

    def run(self, ctx): ...


class Picky(BlockingJob):
    to: str

    def __post_init__(self):
        if self.to.startswith(SECRET):
            raise (KeyError if self.to.endswith("!") else ValueError)(f"do not send to {self.to}")

    def run(self, ctx): ...


class Unresolved(BlockingJob):
    to: "NoSuchType"  # noqa: F821 - what is tested

    def run(self, ctx): ...


for job_class in (PayloadSample, Required, Picky, Unresolved):
    KINDS.pop(job_class.options.kind)  # no other test of this process should meet them


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


class Hostile(str):
    """A type msgspec has no JSON for."""

    __slots__ = ()


@pytest.mark.parametrize(
    "job",
    [
        PayloadSample(),
        PayloadSample(to="é\n\t😀", names=["a"], address=Address("b"), when=AWARE, scores={"a": 1}, ratio=1e300),
        PayloadSample(
            anything={"null": None, "deep": nested(62), "text": "2025-01-02T03:04:05", "backslash": "\\u0000"}
        ),
        PayloadSample(anything=[{"a": [None]}] * 100),
        Required(send_to="a"),
    ],
    ids=label,
)
def test_a_payload_comes_back_as_it_was(job):
    assert decode_payload(type(job), encode_payload(job)) == job
    assert decode_payload(type(job), encode_payload(job).decode()) == job


@pytest.mark.parametrize(
    ("field", "value", "where", "rule"),
    [
        ("to", 3, "to", "must be str, not int"),
        ("count", "3", "count", "must be int, not str"),
        ("count", -1, "count", "must be int >= 0"),
        ("names", ["a", 5], "names[1]", "must be str, not int"),
        ("address", Address(5), "address.street", "must be str, not int"),
        ("code", SECRET, "code", "must be str matching regex '^[0-9]*$'"),
        ("choice", SECRET, "choice", "is not one of the allowed values"),
        ("colour", SECRET, "colour", "is not one of the allowed values"),
        ("identity", SECRET, "identity", "is not a valid UUID"),
        ("when", SECRET, "when", "is not a valid RFC3339 encoded datetime"),
        ("scores", {SECRET: SECRET}, "scores[...]", "must be int, not str"),
        ("ratio", math.nan, "ratio", "holds NaN or infinity"),
        ("anything", math.inf, "anything", "holds NaN or infinity"),
        ("anything", [{SECRET: -math.inf}], "anything[0][...]", "holds NaN or infinity"),
        ("anything", f"{SECRET}\0", "anything", "holds the character NUL"),
        ("anything", {f"{SECRET}\0": 1}, "anything", "has a key that holds the character NUL"),
        ("anything", f"{SECRET}\ud800", "anything", "holds a lone surrogate"),
        ("anything", {f"{SECRET}\udfff": 1}, "anything", "holds a lone surrogate"),
        ("anything", NAIVE, "anything", "holds a datetime without a time zone"),
        ("when", NAIVE, "when", "holds a datetime without a time zone"),
        ("anything", nested(64), "anything", "nests deeper than 64 levels"),
        ("anything", nested(5000), "anything", "nests deeper than 64 levels"),
        ("anything", circle(), "anything", "contains itself"),
        ("anything", Hostile(SECRET), "anything", "holds a value of type Hostile, which JSON cannot hold"),
        ("anything", {(1, 2): 3}, "anything", "the keys of a dict must be text or numbers"),
        ("anything", 10**5000, "anything", "cannot be JSON"),
        ("raw", msgspec.Raw(b'"\\u0000"'), "raw", "holds the character NUL"),
    ],
    ids=label,
)
def test_a_bad_field_is_refused_by_name_and_rule_without_its_value(field, value, where, rule):
    with pytest.raises(InvalidJob) as caught:
        encode_payload(PayloadSample(**{field: value}))

    assert caught.value.field == f"payload.{where}"
    assert rule in caught.value.rule
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("raw", [b"NaN", b"{", b"", b'"\\ud800"', b"1 1"])
def test_raw_json_that_is_none_is_refused(raw):
    with pytest.raises(InvalidJob, match="payload: is not"):
        encode_payload(PayloadSample(raw=msgspec.Raw(raw)))


def test_nan_is_seen_beside_raw_json():
    with pytest.raises(InvalidJob, match=r"payload\.anything: holds NaN"):
        encode_payload(PayloadSample(raw=msgspec.Raw(b"1"), anything=math.nan))


def test_a_renamed_field_is_called_as_in_the_json():
    with pytest.raises(InvalidJob, match=r"payload\.sendTo: must be str"):
        encode_payload(Required(send_to=1))
    with pytest.raises(InvalidJob, match=r"payload\.sendTo: holds a value of type object"):
        encode_payload(Required(send_to=object()))


@pytest.mark.parametrize("job", [None, {"to": "a"}, PayloadSample, Address("a")])
def test_only_an_instance_of_a_job_class_is_a_payload(job):
    with pytest.raises(InvalidJob, match="job: must be an instance of a job class, not"):
        encode_payload(job)


def stored_size(encoded):
    """Return the bytes of PostgreSQL's text form of a jsonb."""
    return len(json.dumps(json.loads(encoded), ensure_ascii=False).encode())


@pytest.mark.parametrize("filler", ["é", 1, [], {}])
def test_a_payload_is_measured_as_postgresql_writes_it(filler):
    one = stored_size(encode_payload(PayloadSample(anything=[filler] * 2))) - stored_size(
        encode_payload(PayloadSample(anything=[filler]))
    )
    room = PAYLOAD_LIMIT - stored_size(encode_payload(PayloadSample(anything=[filler])))

    assert stored_size(encode_payload(PayloadSample(anything=[filler] * (1 + room // one)))) <= PAYLOAD_LIMIT
    with pytest.raises(
        InvalidJob, match=r"payload: has 26[\d,]+ bytes of JSON, at most 262,144 are allowed: keep large"
    ):
        encode_payload(PayloadSample(anything=[filler] * (2 + room // one)))


@pytest.mark.parametrize(
    ("cls", "text", "field", "rule"),
    [
        (Required, "{}", "payload.sendTo", "is missing"),
        (Required, '{"sendTo": "a", "cc": "hunter2-secret"}', "payload.cc", "is not a field of Required"),
        (Required, '{"sendTo": null}', "payload.sendTo", "must be str, not null"),
        (PayloadSample, '{"address": {}}', "payload.address.street", "is missing"),
        (PayloadSample, "[]", "payload", "must be object, not array"),
        (PayloadSample, "null", "payload", "must be object, not null"),
        (PayloadSample, '{"ratio": 1e999}', "payload.ratio", "is out of range"),
        (PayloadSample, '{"to": ', "payload", "is not valid JSON"),
        (PayloadSample, "", "payload", "is not valid JSON"),
        (PayloadSample, '{"to": "hunter2-secret', "payload", "is not valid JSON"),
        (PayloadSample, b'{"to": "\xff"}', "payload", "is not valid JSON"),
        (PayloadSample, "\ud800", "payload", "was refused by PayloadSample itself, with UnicodeEncodeError"),
        (PayloadSample, '{"anything": ' + "[" * 50_000 + "]" * 50_000 + "}", "payload", "nests too deeply to be read"),
        (PayloadSample, '{"' + "k" * 101 + '": 1}', "payload....", "is not a field of PayloadSample"),
        (PayloadSample, '{"\\u0000": 1}', "payload....", "is not a field of PayloadSample"),
        (
            PayloadSample,
            '{"choice": "hunter2-secret - at `$.to`"}',
            "payload.choice",
            "is not one of the allowed values",
        ),
        (Picky, '{"to": "hunter2-secret"}', "payload", "was refused by Picky itself, with ValueError"),
        (Picky, '{"to": "hunter2-secret!"}', "payload", "was refused by Picky itself, with KeyError"),
        (Unresolved, '{"to": "hunter2-secret"}', "payload", "an annotation of Unresolved names an unknown type"),
    ],
    ids=label,
)
def test_an_unreadable_payload_is_named_by_field_and_rule_without_its_value(cls, text, field, rule):
    with pytest.raises(InvalidJob) as caught:
        decode_payload(cls, text)

    assert caught.value.field == field
    assert rule in caught.value.rule
    assert SECRET not in str(caught.value)
