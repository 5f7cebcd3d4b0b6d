"""What the driver's errors mean, translated in one place.

A refused row becomes InvalidJob, a missing schema SchemaMismatch, a lost server DatabaseUnavailable.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncpg

from scheduler.errors import ConfigurationError, DatabaseUnavailable, InvalidJob, SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the session was terminated, and its connection has not yet broken
)
_WAYS_OUT: dict[type[Exception], str] = {
    OSError: "see that it runs, and that host and port of the DSN are right",
    asyncpg.InvalidCatalogNameError: "create it, or name another in the DSN",
    asyncpg.InvalidAuthorizationSpecificationError: "see that user and password of the DSN are right",
}
_NO_SCHEMA = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise our errors in place of the driver's."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        raise _refused(error) from error
    except (asyncpg.DataError, asyncpg.ProgramLimitExceededError) as error:
        raise InvalidJob("job", f"cannot be stored by PostgreSQL: {error.args[0]}") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigurationError(
            f"{error.args[0]}: GRANT scheduler_submitter, scheduler_worker or scheduler_operator to this role"
        ) from error
    except (asyncpg.ClientConfigurationError, asyncpg.UndefinedObjectError) as error:
        raise ConfigurationError(f"the DSN: {error.args[0]}") from error
    except _NO_SCHEMA as error:
        raise SchemaMismatch("the database has no schema of this version: run `scheduler migrate`") from error
    except _AWAY as error:
        way_out = next((f": {words}" for kind, words in _WAYS_OUT.items() if isinstance(error, kind)), "")
        raise DatabaseUnavailable(f"PostgreSQL cannot be reached: {error or type(error).__name__}{way_out}") from error


def _refused(error: asyncpg.IntegrityConstraintViolationError) -> InvalidJob:
    """Name field and rule: a trigger gives the column and the words, the name of a constraint says both."""
    if error.column_name and error.hint:
        rule = (error.args[0] if error.args else "").removeprefix(f"{error.column_name} ")
        return InvalidJob(error.column_name, f"{rule}: {error.hint}")
    field, _, rule = (error.constraint_name or error.column_name or "job").partition(" ")
    return InvalidJob(field, rule or "breaks a constraint")
