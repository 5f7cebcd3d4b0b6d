"""Words about an error that are always safe to store.

What a handler raises is foreign: its `__str__` may raise, its causes may form a circle, its message may be
50 MB of binary. Nothing here raises, and what it returns fits the columns and holds no character that
PostgreSQL refuses.
"""

import re
import traceback
from collections.abc import Iterator

TEXT_LIMIT = 16384  # bytes of UTF-8: the limit of the error columns
_FRAMES = 30  # innermost frames kept of each exception: a recursion repeats itself
_CHAIN = 8  # exceptions kept of a chain of causes, the last raised first
_GROUP = 5  # members shown of an exception group
_GROUP_DEPTH = 3
# What databases quote: PostgreSQL names values in the DETAIL of a message, SQLAlchemy adds those that were bound.
_VALUES = re.compile(
    r"^DETAIL:(?s:.*?)(?=^(?:HINT|CONTEXT|LINE|QUERY):|^\[SQL: |\Z)|^\[parameters: .*\n?", re.MULTILINE
)
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def clean_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text` without NUL and lone surrogates, in at most `limit` bytes of UTF-8; a marker tells what was cut.

    The start and the end are kept: a message begins with its point, a traceback ends with it.
    """
    if len(text) <= limit:
        whole = UNSTORABLE.sub("\ufffd", text)
        if len(whole.encode()) <= limit:
            return whole
    marker = f" ... [cut from {len(text):,} characters] ... "
    room = limit - len(marker)
    if room <= 0:
        return _head(text, limit)
    tail = _tail(text, room // 3)
    return _head(text, room - len(tail.encode())) + marker + tail


def _head(text: str, size: int) -> str:
    return UNSTORABLE.sub("\ufffd", text[:size]).encode()[:size].decode(errors="ignore")


def _tail(text: str, size: int) -> str:
    return UNSTORABLE.sub("\ufffd", text[-size:]).encode()[-size:].decode(errors="ignore") if size else ""


def safe_str(error: BaseException) -> str:
    """Return the message of `error`, cleaned, at most 16 kB, without the values that databases quote.

    Says so when it cannot be had.
    """
    try:
        text = clean_text(str(error))
        return clean_text(_VALUES.sub("[values are not shown]\n", text).rstrip("\n")) if "\n" in text else text
    except BaseException as failure:  # noqa: BLE001 - a SystemExit from someone's __str__ must not end a worker
        return f"<no message: {_plain_name(failure)} while reading it>"


def describe_exception(error: BaseException) -> tuple[str, str, str]:
    """Return (type name, message, traceback), each cleaned: at most 200 bytes, 16 kB and 16 kB."""
    name, message = _type_name(error), safe_str(error)
    try:
        trace = clean_text("".join(_chain(error, _GROUP_DEPTH)))
    except BaseException as failure:  # noqa: BLE001 - see safe_str
        trace = clean_text(f"{name}: {message}\n<no traceback: {_plain_name(failure)} while reading it>")
    return name, message, trace


def _plain_name(error: BaseException) -> str:
    # type.__name__ through the type itself: a metaclass may define a __name__ that raises.
    return clean_text(type.__dict__["__name__"].__get__(type(error)), 200)


def _type_name(error: BaseException) -> str:
    try:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return clean_text(name, 200)
    except BaseException:  # noqa: BLE001 - see safe_str
        return _plain_name(error)


def _chain(error: BaseException, depth: int) -> Iterator[str]:
    """Yield the blocks of a chain of causes, oldest first, as Python prints them.

    Python's own formatter reads a whole chain, however long, and every message in it.
    """
    links: list[tuple[BaseException, str]] = []  # an exception, and what joins it to the one before
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(links) < _CHAIN:
        seen.add(id(current))
        if current.__cause__ is not None:
            links.append((current, _CAUSED))
            current = current.__cause__
        else:
            links.append((current, _DURING))
            current = None if current.__suppress_context__ else current.__context__
    if current is not None:
        yield "[older causes are not shown]\n"
    for position, (link, joint) in enumerate(reversed(links)):
        if position:
            yield joint
        yield from _block(link, depth)


def _block(error: BaseException, depth: int) -> Iterator[str]:
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__, limit=-_FRAMES)
    message = safe_str(error)
    yield f"{_type_name(error)}: {message}\n" if message else f"{_type_name(error)}\n"
    for note in list(getattr(error, "__notes__", ()))[:_GROUP]:
        yield f"{clean_text(str(note))}\n"
    if isinstance(error, BaseExceptionGroup) and depth:
        for number, member in enumerate(error.exceptions[:_GROUP], 1):
            block = "".join(_chain(member, depth - 1)).rstrip("\n")
            yield f"  [{number} of {len(error.exceptions)}]\n" + re.sub("^", "  ", block, flags=re.MULTILINE) + "\n"
