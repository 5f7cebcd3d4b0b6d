"""What msgspec encodes but JSON or PostgreSQL cannot hold: NaN, NUL, naive datetimes, deep nesting.

msgspec writes NaN and infinity as null, and a naive datetime without complaint. Most JSON holds no sign of
these, so the bytes are searched for signs first, and the values are walked only where one is found.
"""

import math
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

MAX_DEPTH = 64

_NAIVE_DATETIME = re.compile(rb'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?"')
_CONTAINERS = (dict, list, tuple, set, frozenset)  # what to_builtins leaves


class Flaw(NamedTuple):
    path: str  # as in ".field[0][...]"; the keys of a dict are data, and are not shown
    rule: str


def find_flaw(value: Any, encoded: bytes, *, names: bool) -> Flaw | None:  # noqa: ANN401 - any value
    """Return a flaw of `value`, which was encoded as `encoded`; None when it has none.

    `names`: the keys of the outermost object are names of fields, and may be shown.
    """
    if not _is_suspicious(encoded):
        return None
    try:
        plain = msgspec.to_builtins(value, builtin_types=(datetime,), enc_hook=_read_raw)
    except (msgspec.DecodeError, RecursionError):
        return Flaw("", "is not JSON that can be read back")
    return _walk(plain, names=names)


def _read_raw(raw: msgspec.Raw) -> Any:  # noqa: ANN401 - any value
    # All else that has no plain form was refused by the encoder before.
    return msgspec.json.decode(raw)


def _is_suspicious(encoded: bytes) -> bool:
    return (
        b"null" in encoded  # NaN?
        or b"\\u" in encoded  # NUL?
        or encoded.count(b"{") + encoded.count(b"[") > MAX_DEPTH
        or _NAIVE_DATETIME.search(encoded) is not None
    )


def _walk(tree: Any, *, names: bool) -> Flaw | None:  # noqa: ANN401 - any value
    todo: list[tuple[str, int, Any]] = [("", 1, tree)]
    while todo:
        path, depth, value = todo.pop()
        if not isinstance(value, _CONTAINERS):
            rule = _broken_by(value)
        elif depth > MAX_DEPTH:
            return Flaw(path.partition("[")[0], f"nests deeper than {MAX_DEPTH} levels")
        else:
            rule = _broken_key(value) if isinstance(value, dict) else None
            todo += [(path + step, depth + 1, child) for step, child in _steps(value, names=names and depth == 1)]
        if rule:
            return Flaw(path, rule)
    return None


def _steps(container: Any, *, names: bool) -> Iterable[tuple[str, Any]]:  # noqa: ANN401 - any container
    if not isinstance(container, dict):
        return ((f"[{position}]", child) for position, child in enumerate(container))
    return ((f".{key}" if names else "[...]", child) for key, child in container.items())


def _broken_key(keys: Iterable[Any]) -> str | None:
    return next((f"has a key that {rule}" for key in keys if (rule := _broken_by(key))), None)


def _broken_by(value: Any) -> str | None:  # noqa: ANN401 - any scalar
    if isinstance(value, str):
        if "\0" in value:
            return "holds the character NUL, which PostgreSQL cannot store: remove it"
    elif isinstance(value, float):
        if not math.isfinite(value):
            return "holds NaN or infinity, which JSON cannot: use None or leave it out"
    elif isinstance(value, datetime) and value.utcoffset() is None:
        return "holds a datetime without a time zone: make it aware, as in datetime.now(UTC)"
    return None
