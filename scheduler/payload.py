"""Payloads and results as JSON: what may be stored, and the words for what may not.

An error names the field and the rule and never shows a value: a payload may hold secrets, and errors are stored
and logged. Two things are stored in another form than they had: a set becomes a list, bytes become base64.

Sizes are those of PostgreSQL's text form of jsonb, which has a space after each comma and colon.
"""

import re
from functools import cache
from typing import Any, TypeVar

import msgspec

from scheduler.errors import InvalidJob
from scheduler.job import Job
from scheduler.json_rules import MAX_DEPTH, find_flaw

PAYLOAD_LIMIT = 262_144  # bytes
RESULT_LIMIT = 65_536  # bytes

_encode = msgspec.json.Encoder().encode
_check_syntax = msgspec.json.Decoder(msgspec.Raw).decode
_J = TypeVar("_J", bound=Job)

# What msgspec says without quoting what it was given. Anything else is replaced by words of ours.
_EXPECTED = re.compile(r"Expected (`.+?`.*?)(?:, got (`?[a-z]+`?.*))?", re.DOTALL)
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_NOT_A = re.compile(r"Invalid ([A-Za-z0-9 ]+)")
_UNSUPPORTED = re.compile(r"Encoding objects of type ([\w.]+) is unsupported")


def encode_payload(job: Job) -> bytes:
    """Return the job's fields as JSON, at most 256 kB; raises InvalidJob naming the field and the rule.

    The constructor checks no types, so they are checked here, by reading back what a worker will read.
    """
    if not isinstance(job, Job):
        raise InvalidJob("job", f"must be an instance of a job class, not {_name(type(job))}")
    try:
        encoded = _encode(job)
    except Exception as error:  # noqa: BLE001 - a field's own code may raise anything
        raise _unencodable_field(job, error) from None
    _check_size("payload", encoded, PAYLOAD_LIMIT)
    flaw = find_flaw(job, encoded, names=True)
    if flaw is not None:
        raise InvalidJob(f"payload{flaw.path}", flaw.rule)
    decode_payload(type(job), encoded)
    return encoded


@cache
def _decoder(cls: type[Job]) -> msgspec.json.Decoder[Job]:
    return msgspec.json.Decoder(cls)


def decode_payload(cls: type[_J], text: str | bytes) -> _J:
    """Return the instance of `cls` that the stored JSON describes; raises InvalidJob and nothing else."""
    try:
        return _decoder(cls).decode(text)  # type: ignore[return-value] # the decoder kept for cls makes instances of cls
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one row must end that job alone
        raise _unreadable(cls, error) from None


def encode_result(value: Any) -> bytes | None:  # noqa: ANN401 - whatever a handler returned
    """Return a handler's result as JSON, at most 64 kB; None (no result) for None. Raises InvalidJob("result", …)."""
    return None if value is None else encode_json("result", value, RESULT_LIMIT)


def encode_json(field: str, value: Any, limit: int) -> bytes:  # noqa: ANN401 - any value
    """Return any value as JSON of at most `limit` bytes; raises InvalidJob naming `field` and the rule."""
    try:
        encoded = _encode(value)
        _check_syntax(encoded)  # a msgspec.Raw is taken as it is
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        raise InvalidJob(field, _unencodable(error)) from None
    _check_size(field, encoded, limit)
    flaw = find_flaw(value, encoded, names=False)
    if flaw is not None:
        raise InvalidJob(field, f"{flaw.rule}, at {field}{flaw.path}" if flaw.path else flaw.rule)
    return encoded


def _check_size(field: str, encoded: bytes, limit: int) -> None:
    size = len(encoded)
    if limit * 2 // 3 < size <= limit:  # the spaces add half at most
        size = len(msgspec.json.format(encoded, indent=0))
    if size > limit:
        way_out = "keep large data elsewhere and pass a reference to it"
        raise InvalidJob(field, f"has {size:,} bytes of JSON, at most {limit:,} are allowed: {way_out}")


def _unencodable_field(job: Job, error: Exception) -> InvalidJob:
    for name, stored in zip(job.__struct_fields__, job.__struct_encode_fields__, strict=True):
        try:
            _encode(getattr(job, name))
        except Exception as cause:  # noqa: BLE001 - the same foreign code, now one field at a time
            return InvalidJob(f"payload.{stored}", _unencodable(cause))
    return InvalidJob("payload", _unencodable(error))


def _unencodable(error: Exception) -> str:
    unsupported = _UNSUPPORTED.fullmatch(str(error)) if isinstance(error, TypeError) else None
    if unsupported:
        return f"holds a value of type {unsupported[1]}, which JSON cannot hold"
    if isinstance(error, RecursionError):
        return f"nests deeper than {MAX_DEPTH} levels, or contains itself"
    if isinstance(error, UnicodeEncodeError):
        return "holds a lone surrogate, which is no character: decode the text it came from properly"
    if isinstance(error, msgspec.DecodeError):
        return "is not valid JSON"
    if isinstance(error, TypeError):
        return "cannot be JSON: the keys of a dict must be text or numbers, the values plain data"
    return f"cannot be JSON: {_name(type(error))} while encoding it"


def _unreadable(cls: type[Job], error: Exception) -> InvalidJob:
    if isinstance(error, RecursionError):
        return InvalidJob("payload", f"nests too deeply to be read; at most {MAX_DEPTH} levels are allowed")
    if isinstance(error, msgspec.ValidationError) and error.__cause__ is None:
        return _broken_rule(cls, str(error))
    if isinstance(error, msgspec.DecodeError) and error.__cause__ is None:
        return InvalidJob("payload", "is not valid JSON")
    if isinstance(error, NameError):
        return InvalidJob("payload", f"cannot be read: an annotation of {_name(cls)} names an unknown type")
    # Raised by code of the class, in words of its own that may quote a value.
    raised = error.__cause__ or error
    return InvalidJob("payload", f"was refused by {_name(cls)} itself, with {_name(type(raised))}")


def _broken_rule(cls: type[Job], message: str) -> InvalidJob:
    rule, _, path = message.rpartition(" - at `$") if message.endswith("`") else ("", "", "")
    if not rule:
        rule, path = message, "`"
    place = f"payload{path[:-1]}"
    if field := _FIELD.fullmatch(rule):
        name = field[2] if field[2].isprintable() and len(field[2]) <= 100 else "..."
        where = _name(cls) if place == "payload" else "its object"
        return InvalidJob(f"{place}.{name}", "is missing" if "missing" in field[1] else f"is not a field of {where}")
    return InvalidJob(place, _readable(rule))


def _readable(rule: str) -> str:
    if rule.startswith(("Invalid enum value", "Invalid value")):
        return "is not one of the allowed values"
    if rule.endswith("out of range"):
        return "is out of range"
    if expected := _EXPECTED.fullmatch(rule):
        return f"must be {expected[1]}{f', not {expected[2]}' if expected[2] else ''}".replace("`", "")
    if kind := _NOT_A.fullmatch(rule):
        return f"is not a valid {kind[1]}"
    return "does not have the declared type"


def _name(cls: type) -> str:
    return cls.__qualname__.rpartition("<locals>.")[2]
