"""Commands about the database itself: bring its schema up to date, run the embedded one."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from typing import TYPE_CHECKING, Any

import asyncpg
import click

from scheduler import arguments, embedded, schema
from scheduler.commands import say
from scheduler.connections import open_connection, reach
from scheduler.errors import ConfigurationError, DatabaseUnavailable, SchemaMismatch
from scheduler.settings import dsn_from
from scheduler.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command()
@arguments.dsn_option
@click.option("--to", metavar="N", type=click.IntRange(1, 9999), help="Go to revision N, down to an older one too.")
def migrate(dsn: str | None, to: int | None) -> None:
    """Bring the database to the newest schema.

    Safe on a live database, and when several do it at once; a way down, with --to, is for a database without workers.
    """
    asyncio.run(_migrate(dsn_from(dsn), None if to is None else f"{to:04}"))


async def _migrate(dsn: str, to: str | None) -> None:
    newest = schema.SUPPORTED[-1]
    with await reach(dsn) as held:
        found = await _revision(held.url)
        if to is None and schema.is_next(found):
            click.echo(
                f"the schema is at revision {found}, one ahead of this version, which works on it: left as it is"
            )
            return
        down = to is not None and to < found
        has_roles = await _move(held.url, to or "head", down=down)
    click.echo(f"the schema {'was already' if found == (to or newest) else 'is now'} at revision {to or newest}")
    if down:
        say("now run `scheduler migrate` of the version whose newest revision this is")
    if not has_roles:
        say(
            "warning: no roles were created or granted, for the account that migrated first may not:"
            " it owns everything itself"
        )


async def _move(url: str, to: str, *, down: bool) -> bool:
    from alembic.util import CommandError  # noqa: PLC0415 - half a second that only a migration needs
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - as above

    try:
        return await schema.migrate(url, to, down=down)
    except CommandError as error:
        what = "the schema is newer" if to == "head" else f"this version does not know the way to revision {to}"
        raise SchemaMismatch(f"{what}: install a newer leasework on this host ({error})") from error
    except DBAPIError as error:
        refused = error.__cause__ and error.__cause__.__cause__
        if not isinstance(refused, asyncpg.InsufficientPrivilegeError):
            raise
        raise DatabaseUnavailable(
            f"the database refuses: {refused.args[0]}: run it as the owner of the database, or as a member of"
            " scheduler_owner (GRANT it to this account) who may CREATE in the database"
        ) from error


async def _revision(url: str) -> str:
    """Return the revision of the database; nothing where there is none, or this account may not ask."""
    connection = await open_connection(url, name="scheduler migrate")
    try:
        return await Store(connection).schema_version()
    except (SchemaMismatch, ConfigurationError):
        return ""
    finally:
        await connection.close()


@click.group()
def db() -> None:
    """Start and stop the embedded PostgreSQL, for trying and testing."""


def _on_embedded(verb: Callable[..., None]) -> Callable[..., None]:
    @click.option("--dsn", help="embedded: or embedded:/folder. Default: SCHEDULER_DSN, where it is one of these.")
    @click.option(
        "--at", metavar="FOLDER", type=click.Path(file_okay=False, resolve_path=True), help="Its folder, instead."
    )
    @functools.wraps(verb)
    def run(dsn: str | None, at: str | None, **options: Any) -> None:  # noqa: ANN401 - those of the verb
        verb(arguments.embedded_database(dsn, at), **options)

    return run


@db.command()
@_on_embedded
def start(dsn: str) -> None:
    """Start it, to run until it is stopped."""
    embedded.start(dsn)
    click.echo(f"PostgreSQL runs in {embedded.directory_of(dsn)} until `scheduler db stop`")


@db.command()
@_on_embedded
def stop(dsn: str) -> None:
    """Stop it, whoever uses it; its data stay."""
    click.echo(f"PostgreSQL in {embedded.directory_of(dsn)} {'was stopped' if embedded.stop(dsn) else 'did not run'}")


@db.command()
@_on_embedded
def url(dsn: str) -> None:
    """Print its address, password included."""
    click.echo(embedded.url(dsn))


@db.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@_on_embedded
def psql(dsn: str, args: tuple[str, ...]) -> None:
    """Run psql on it, with ARGS."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C ends a query in psql, not us around it
    sys.exit(embedded.psql(dsn, args))
