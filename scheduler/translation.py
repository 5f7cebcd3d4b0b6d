"""One translation of errors for all drivers, by SQLSTATE: a refused job is the same InvalidJob on whichever connection.

What went wrong with a connection of the scheduler's own is a DatabaseUnavailable. What went wrong with a caller's
(closed, aborted, read only, deadlocked) stays the exception of its driver, which its owner knows how to handle.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from scheduler import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_SCHEMA = {"3F000", "42P01", "42883"}
_LEASE_LOST = "LW001"
_NO_PRIVILEGE = "42501"
_BAD_SETTING = "42704"
# Lost or starting connections, too many of them, a standby; no such database, no such user.
_AWAY = ("08", "57P", "53300", "25006", "3D000", "28")
_WAYS_OUT = {
    "3D000": "create it, or name another in the DSN",
    "28": "see that user and password of the DSN are right",
}
# InternalClientError: the session was terminated, and its connection has not yet broken.
_LOST = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@contextmanager
def translated(*, own: bool = True) -> Iterator[None]:
    """Raise what a driver raises as an error of ours; `own` tells whose connection it is."""
    try:
        yield
    except errors.SchedulerError:
        raise
    except Exception as error:
        words = _words(error, own=own)
        if words is None:
            raise
        raise words from error


def _words(error: Exception, *, own: bool) -> errors.SchedulerError | None:
    said = _from_server(error)
    state = getattr(said, "sqlstate", None) or getattr(said, "pgcode", None) or _fact(said, "sqlstate")
    if state.startswith(("22", "23", "54", _LEASE_LOST)):
        return _refused(said, state)
    if state == _NO_PRIVILEGE:
        words = (
            f"{_fact(said, 'message', 'primary')}: GRANT scheduler_submitter, scheduler_worker or scheduler_operator"
        )
        return errors.ConfigurationError(f"{words} to this role")
    if state in _NO_SCHEMA:
        return errors.SchemaMismatch("the database has no schema of this version: run `scheduler migrate`")
    if own and (isinstance(error, asyncpg.ClientConfigurationError) or state == _BAD_SETTING):
        return errors.ConfigurationError(f"the DSN: {error.args[0]}")
    if own and (isinstance(error, _LOST) or state.startswith(_AWAY)):
        return errors.DatabaseUnavailable(
            f"PostgreSQL cannot be reached: {str(error) or 'it does not answer'}{_way_out(error, state)}"
        )
    return None


def _way_out(error: Exception, state: str) -> str:
    if isinstance(error, OSError):
        return ": see that it runs, and that host and port of the DSN are right"
    return next((f": {words}" for start, words in _WAYS_OUT.items() if state.startswith(start)), "")


def _from_server(error: BaseException | None) -> Any:  # noqa: ANN401 - an exception of any driver
    """Find what the server said: SQLAlchemy wraps the driver's exception as `orig`, Django as its cause."""
    while error is not None and not isinstance(error, asyncpg.PostgresError) and not hasattr(error, "diag"):
        error = getattr(error, "orig", None) or error.__cause__
    return error


def _fact(said: Any, name: str, detail: str = "") -> str:  # noqa: ANN401
    """Return a field of the server's message: asyncpg has hint, psycopg has diag.message_hint."""
    found = getattr(said, name, None)
    diag = getattr(said, "diag", None)
    return str(found or getattr(diag, name, None) or getattr(diag, f"message_{detail or name}", None) or "")


def _index(said: Any) -> int | None:  # noqa: ANN401
    """Return the place of the job within submit_many, as in jobs[7]."""
    detail = _fact(said, "detail")
    place = detail.removeprefix("jobs[").removesuffix("]")
    return int(place) if place.isdigit() and detail == f"jobs[{place}]" else None


def _refused(said: Any, state: str) -> errors.InvalidJob | errors.LeaseLost:  # noqa: ANN401
    """Name field and rule: a trigger gives the column and the words, the name of a constraint says both."""
    message, column, hint = _fact(said, "message", "primary"), _fact(said, "column_name"), _fact(said, "hint")
    message = message or str(said)  # of the driver itself
    if state == _LEASE_LOST:  # attempt 1 of job 2 ...
        return errors.LeaseLost(*map(int, reversed(re.findall(r"\d+", message))))
    if not state.startswith("23"):
        return errors.InvalidJob("job", f"cannot be stored by PostgreSQL: {message}", _index(said))
    if column and hint:
        return errors.InvalidJob(column, f"{message.removeprefix(f'{column} ')}: {hint}", _index(said))
    field, _, rule = (_fact(said, "constraint_name") or column or "job").partition(" ")
    return errors.InvalidJob(field, rule or "breaks a constraint", _index(said))
