"""What every command shares: the errors it tells, the scheduler it opens, the answer it prints.

The answer goes to stdout, for people or with --json for programs; all else goes to stderr. What can be expected to go
wrong ends in one sentence and the exit code of its error: here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import asyncpg
import click
import msgspec

from scheduler import arguments
from scheduler.client import Scheduler
from scheduler.errors import DatabaseUnavailable, SchedulerError
from scheduler.settings import dsn_from

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

STOPPED = 130  # the exit code of what Ctrl-C ended, as in a shell

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


class Commands(click.Group):
    """Commands in the order they are written, whose expected errors are told and not raised."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)  # a line of its own for what comes after ^C
            ctx.exit(STOPPED)
        except Exception as error:
            if (told := _told(error)) is None:
                raise
            sentence, code = told
            say(sentence)
            ctx.exit(code)


def _told(error: BaseException | None) -> tuple[str, int] | None:
    """Return a sentence and an exit code for what can be expected to go wrong; a fault of ours keeps its traceback."""
    while error is not None:
        if isinstance(error, SchedulerError):
            return str(error), error.exit_code
        if isinstance(error, asyncpg.PostgresError):
            return f"the database refuses: {error.args[0]}", DatabaseUnavailable.exit_code
        error = error.__cause__  # SQLAlchemy wraps what the driver raised
    return None


def on_database(
    verb: Callable[..., Coroutine[None, None, None]], check: Callable[..., None] = lambda **_: None
) -> Callable[..., None]:
    """Make a command of what is to be done with an open scheduler; before it is opened, the arguments are checked."""

    @arguments.dsn_option
    @functools.wraps(verb)
    def run(dsn: str | None, **options: Any) -> None:  # noqa: ANN401 - those of the verb
        check(**options)
        asyncio.run(opened(dsn_from(dsn), options))

    async def opened(dsn: str, options: dict[str, Any]) -> None:
        async with Scheduler.connect(dsn, connections=1) as scheduler:
            await verb(scheduler, **options)

    return run


def say(sentence: str) -> None:
    click.echo(f"scheduler: {sentence}", err=True)


def meant(name: str, names: Iterable[str], otherwise: str) -> str:
    """Ask whether the name most like this one was meant; where none is like it, say what else to do."""
    near = difflib.get_close_matches(name, [known for known in names if known != name], n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def need(what: str, name: str, names: Iterable[str]) -> None:
    """Raise SchedulerError for a name that no such thing has: it is most likely misspelt."""
    if name not in names:
        hint = meant(name, names, f"`scheduler {what}s` lists what there is")
        raise SchedulerError(f"no {what} is named {name!r}: {hint}")


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_rows(what: str, rows: list[dict[str, Any]], *, as_json: bool, nothing: str) -> None:
    """Print rows as JSON, or as the table of that name; of none, say `nothing`."""
    if as_json:
        print_json(rows)
    elif rows:
        click.echo(table(what, rows))
    else:
        say(nothing)


def table(what: str, rows: list[dict[str, Any]], to: TextIO | None = None) -> str:
    """Return rows as the table of that name, to be printed on stdout or elsewhere."""
    from scheduler import tables  # noqa: PLC0415 - rich takes a tenth of a second, and only tables need it

    return tables.of(what, rows, datetime.now(UTC), to)


def listing(what: str, promise: str, nothing: str) -> click.Command:
    """Make the command that lists what an operator's verb of that name returns."""

    @as_json
    @on_database
    async def run(scheduler: Scheduler, *, as_json: bool) -> None:
        print_rows(what, await getattr(scheduler.admin, what)(), as_json=as_json, nothing=nothing)

    return click.command(what, help=promise)(run)
