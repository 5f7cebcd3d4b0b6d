"""What operators look at and hold: queues, kinds, workers, and the pause of a queue or a kind."""

from __future__ import annotations

import functools
import getpass
import socket
import sys
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scheduler import arguments
from scheduler.commands import listing, need, on_database
from scheduler.errors import ConfigurationError, SchedulerError

if TYPE_CHECKING:
    from datetime import timedelta

    from scheduler.client import Scheduler


def _check(*, queue: str | None, kind: str | None, **_: object) -> None:
    if (queue is None) == (kind is None):
        raise click.UsageError("name one of the two: --queue NAME or --kind NAME")


_on_database = functools.partial(on_database, check=_check)
_queue = click.option("--queue", type=arguments.text, metavar="NAME", help="All jobs in this queue.")
_kind = click.option("--kind", type=arguments.text, metavar="NAME", help="All jobs of this kind.")


async def _named(scheduler: Scheduler, queue: str | None, kind: str | None) -> str:
    """Return in words what is meant. Raises SchedulerError for a name that nothing has."""
    what, name = ("queue", queue) if queue is not None else ("kind", str(kind))
    rows = await (scheduler.admin.kinds() if queue is None else scheduler.admin.queues())
    need(what, name, [row[what] for row in rows if row[what]])
    return f"{what} {name}"


@click.command()
@arguments.http_option
def health(http: tuple[str, int] | None) -> None:
    """Ask a worker how it does.

    Exit code 0 while its claims succeed, else 1.
    """
    if http is None:
        raise ConfigurationError("no worker is named: set SCHEDULER_HTTP (or pass --http) to what the worker has")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http[0], http[0])  # noqa: S104 - where it listens is not where to ask
    connection = HTTPConnection(host, http[1], timeout=5)
    try:
        connection.request("GET", "/health")
        reply = connection.getresponse()
        told = msgspec.json.decode(reply.read(10_000), type=dict[str, Any])["words"]
    except (OSError, HTTPException, msgspec.MsgspecError, KeyError) as error:
        raise SchedulerError(f"no worker answers at {host}:{http[1]} ({error}): it has not started, hangs, or has"
                             " another --http") from error  # fmt: skip
    click.echo(told)
    sys.exit(reply.status != HTTPStatus.OK)


@click.command()
@_queue
@_kind
@click.option("--for", "duration", type=arguments.duration, metavar="TIME", help="So long, as in 30s, 5m, 2h or 1d.")
@click.option("--by", type=arguments.text, metavar="NAME", help="Who pauses it. Default: you, on this host.")
@_on_database
async def pause(
    scheduler: Scheduler, *, queue: str | None, kind: str | None, duration: timedelta | None, by: str | None
) -> None:
    """Start no more jobs of a queue or a kind; running ones go on.

    It ends after the TIME of --for, or with `scheduler resume`.
    """
    words = await _named(scheduler, queue, kind)
    await scheduler.admin.pause(queue=queue, kind=kind, duration=duration, by=by or _you())
    until = f"{datetime.now(UTC) + duration:%Y-%m-%d %H:%M:%S} UTC" if duration else f"`scheduler resume --{words}`"
    click.echo(f"{words} is paused until {until}; its running jobs go on")


@click.command()
@_queue
@_kind
@_on_database
async def resume(scheduler: Scheduler, *, queue: str | None, kind: str | None) -> None:
    """Start jobs of a queue or a kind again."""
    words = await _named(scheduler, queue, kind)
    done = await scheduler.admin.resume(queue=queue, kind=kind)
    click.echo(f"{words} {'goes on' if done['resumed'] else 'was not paused'}")


def _you() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


LISTINGS = (
    listing("queues", "List queues: what waits and runs in each.",
             "there are no queues yet: submit a job, or run `scheduler declare --app MODULE`"),
    listing("kinds", "List kinds of job: what waits and runs of each.",
             "there are no kinds yet: run `scheduler declare --app MODULE`, or a worker with your job classes"),
    listing("workers", "List worker processes, and what each serves.",
             "no worker runs: start one with `scheduler-worker --app MODULE`"),
)  # fmt: skip
