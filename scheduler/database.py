"""Commands about the database itself: bring its schema up to date, run the embedded one."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from scheduler import arguments, embedded, schema
from scheduler.errors import SchemaMismatch
from scheduler.settings import dsn_from
from scheduler.store import Store, open_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@click.command()
@arguments.dsn_option
def migrate(dsn: str | None) -> None:
    """Bring the database to the newest schema.

    Safe on a live database, and when several do it at once.
    """
    asyncio.run(_migrate(dsn_from(dsn)))


async def _migrate(dsn: str) -> None:
    from alembic.util import CommandError  # noqa: PLC0415 - half a second that only a migration needs

    async with _address(dsn) as url:
        was_ready = await _is_ready(url)
        try:
            has_roles = await schema.migrate(url)
        except CommandError as error:
            raise SchemaMismatch(f"the schema is newer: install a newer leasework on this host ({error})") from error
    click.echo(f"the schema {'was already' if was_ready else 'is now'} at revision {schema.SUPPORTED[-1]}")
    if not has_roles:
        click.echo(
            "scheduler: warning: no roles were created, for this account may not: it owns everything itself", err=True
        )


@asynccontextmanager
async def _address(dsn: str) -> AsyncIterator[str]:
    """Yield the address of the server; the embedded one runs meanwhile."""
    if not embedded.is_embedded(dsn):
        yield dsn
        return
    with await asyncio.to_thread(embedded.hold, dsn) as held:
        yield held.url


async def _is_ready(url: str) -> bool:
    connection = await open_connection(url, name="scheduler migrate")
    try:
        await Store(connection).check_schema()
    except SchemaMismatch:
        return False
    finally:
        await connection.close()
    return True


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
