"""What operators look at and hold: queues, kinds, workers, and the pause of a queue or a kind."""

from __future__ import annotations

import difflib
import getpass
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from scheduler import arguments
from scheduler.commands import as_json, on_database, print_rows
from scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from scheduler.client import Scheduler


class _OnOne(click.Command):
    """A command that takes a queue or a kind, and not both."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if (ctx.params["queue"] is None) == (ctx.params["kind"] is None):
            raise click.UsageError("name one of the two: --queue NAME or --kind NAME", ctx)
        return rest


def _on_one(verb: Callable[..., None]) -> Callable[..., None]:
    of_kind = click.option("--kind", type=arguments.text, metavar="NAME", help="All jobs of this kind.")
    return click.option("--queue", type=arguments.text, metavar="NAME", help="All jobs in this queue.")(of_kind(verb))


async def _named(scheduler: Scheduler, queue: str | None, kind: str | None) -> tuple[str, dict[str, Any]]:
    """Return in words what is named, and what is known of it; a name that nothing has is most likely misspelt."""
    what, name = ("queue", queue) if queue else ("kind", kind)
    rows = {row[what]: row for row in await (scheduler.admin.queues() if queue else scheduler.admin.kinds())}
    if name not in rows:
        near = difflib.get_close_matches(str(name), rows, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"`scheduler {what}s` lists those there are"
        raise SchedulerError(f"no {what} is named {name!r}: {hint}")
    return f"{what} {name}", rows[name]


@click.command(cls=_OnOne)
@_on_one
@click.option("--for", "duration", type=arguments.duration, metavar="TIME", help="So long, as in 30s, 5m, 2h or 1d.")
@click.option("--by", type=arguments.text, metavar="NAME", help="Who pauses it. Default: you, on this host.")
@on_database
async def pause(
    scheduler: Scheduler, *, queue: str | None, kind: str | None, duration: timedelta | None, by: str | None
) -> None:
    """Start no more jobs of a queue or a kind; running ones go on.

    It ends after the TIME of --for, or with `scheduler resume`.
    """
    words, _ = await _named(scheduler, queue, kind)
    await scheduler.admin.pause(queue=queue, kind=kind, duration=duration, by=by or _you())
    until = f"{datetime.now(UTC) + duration:%Y-%m-%d %H:%M:%S} UTC" if duration else "`scheduler resume`"
    click.echo(f"{words} is paused until {until}; its running jobs go on")


@click.command(cls=_OnOne)
@_on_one
@on_database
async def resume(scheduler: Scheduler, *, queue: str | None, kind: str | None) -> None:
    """Start jobs of a queue or a kind again."""
    words, known = await _named(scheduler, queue, kind)
    await scheduler.admin.resume(queue=queue, kind=kind)
    click.echo(f"{words} goes on" if known["paused_until"] else f"{words} was not paused")


def _you() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def _listing(what: str, promise: str, nothing: str) -> click.Command:
    @as_json
    @on_database
    async def run(scheduler: Scheduler, *, as_json: bool) -> None:
        print_rows(what, await getattr(scheduler.admin, what)(), as_json=as_json, nothing=nothing)

    return click.command(what, help=promise)(run)


LISTINGS = (
    _listing("queues", "List queues: what waits and runs in each, and since when.",
             "there are no queues yet: submit a job, or run `scheduler declare --app MODULE`"),
    _listing("kinds", "List kinds of job: what is declared of each, and what waits and runs.",
             "there are no kinds yet: run `scheduler declare --app MODULE`, or a worker with your job classes"),
    _listing("workers", "List worker processes: where they run, what they serve, when they were seen.",
             "no worker runs: start one with `scheduler-worker --app MODULE`"),
)  # fmt: skip
