"""The command scheduler: prepare the database, submit jobs, look at them, cancel them.

The answer goes to stdout, for people or with --json for programs; all else goes to stderr. What can be expected to go
wrong ends in one sentence and the exit code of its error: here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import asyncpg
import click
import msgspec

from scheduler import apps, arguments, database, unserved
from scheduler.client import Scheduler
from scheduler.errors import DatabaseUnavailable, JobNotFound, SchedulerError
from scheduler.job import KINDS
from scheduler.options import QUEUES
from scheduler.settings import dsn_from
from scheduler.states import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta


class _Commands(click.Group):
    """Commands in the order they are written, whose expected errors are told and not raised."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            return super().invoke(ctx)
        except Exception as error:
            if (told := _told(error)) is None:
                raise
            sentence, code = told
            click.echo(f"scheduler: {sentence}", err=True)
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


def _on_database(verb: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Make a command of what is to be done with an open scheduler; its arguments are checked before it is opened."""

    @arguments.dsn_option
    @functools.wraps(verb)
    def run(dsn: str | None, **options: Any) -> None:  # noqa: ANN401 - those of the verb
        asyncio.run(opened(dsn_from(dsn), options))

    async def opened(dsn: str, options: dict[str, Any]) -> None:
        async with Scheduler.connect(dsn, connections=1) as scheduler:
            await verb(scheduler, **options)

    return run


def _print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, ())}


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leasework")
def command() -> None:
    """Prepare the database, submit jobs, look at them, cancel them.

    Exit codes: 0 done, 1 refused or not found, 2 usage, 3 configuration, 4 database, 5 schema.
    """


command.add_command(database.migrate)


def _load(_: click.Context, __: click.Parameter, app: str | None) -> None:
    apps.load(app)


@command.command()
@click.option("--app", envvar="SCHEDULER_APP", show_envvar=True, expose_value=False, callback=_load,
              help="Modules with job classes, separated by commas, as in myservice.jobs.")  # fmt: skip
@click.option("--force", is_flag=True, help="Go back to a declaration that was superseded, for a rollback.")
@_on_database
async def declare(scheduler: Scheduler, *, force: bool) -> None:
    """Record what job classes and queues say of themselves.

    Workers do it when they start; done first in a deploy, it holds from the first job on.
    """
    done = await scheduler.declare(KINDS.values(), QUEUES.values(), force=force)
    for words, kinds in (("changed", done.changed), ("superseded", done.superseded)):
        if kinds:
            click.echo(f"{words}: {', '.join(kinds)}")
    if same := len(KINDS) - len(done.changed) - len(done.superseded):
        click.echo(f"unchanged: {same} of {len(KINDS)} kinds")
    if done.superseded:
        click.echo("scheduler: what was superseded by a newer declaration stays so: --force goes back to it", err=True)


@command.command()
@click.argument("kind", type=arguments.text)
@click.argument("payload", default="{}", callback=arguments.payload)
@click.option(
    "--priority", type=arguments.priority, metavar="LEVEL", help="low, medium, high, critical, or -100 to 100."
)
@click.option("--delay", type=arguments.delay, metavar="TIME", help="Run it so much later: 30s, 5m, 2h, 1d.")
@click.option("--run-at", type=arguments.instant, metavar="INSTANT", help="Run it not before, as in 2030-01-31T09:00Z.")
@click.option("--queue", type=arguments.text, metavar="NAME", help="Default: the queue of the kind.")
@click.option("--tenant", type=arguments.text, metavar="NAME", help="On whose behalf.")
@click.option(
    "--depends-on", type=arguments.job_id, metavar="ID", multiple=True, help="Run it after this job; may be repeated."
)
@click.option("--idempotency-key", type=arguments.text, metavar="KEY", help="For a known key, print the older job.")
@click.option("--unique-key", type=arguments.text, metavar="KEY", help="One unfinished job per kind and key.")
@click.option("--wait", type=arguments.seconds, metavar="SECONDS", help="Wait so long, and print the result too.")
@_on_database
async def submit(scheduler: Scheduler, *, kind: str, payload: str, wait: timedelta | None, **options: Any) -> None:  # noqa: ANN401
    """Submit a job and print its id.

    PAYLOAD is a JSON object, the fields of the job: {} when left out, read from stdin when it is -.
    """
    job_id = await scheduler.store.submit(kind, payload, msgspec.json.encode(_given(options)).decode())
    click.echo(job_id)
    await unserved.warn(scheduler.store, [options | {"kind": kind}])
    if wait is not None:
        _print_json(await scheduler.handle(job_id).result(wait))


@command.command()
@click.option("--status", type=click.Choice([str(status) for status in Status], case_sensitive=False), multiple=True,
              metavar="STATUS", help="In this status, as in pending; may be repeated.")  # fmt: skip
@click.option("--kind", type=arguments.text, metavar="NAME", help="Of this kind.")
@click.option("--queue", type=arguments.text, metavar="NAME", help="In this queue.")
@click.option("--tenant", type=arguments.text, metavar="NAME", help="On behalf of this tenant.")
@click.option("--before", type=arguments.job_id, metavar="ID", help="Older than this job, for the next page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@_on_database
async def jobs(scheduler: Scheduler, *, as_json: bool, **filters: Any) -> None:  # noqa: ANN401
    """List jobs, newest first."""
    found = await scheduler.jobs(**_given(filters))
    if as_json:
        _print_json(found)
    elif found:
        from scheduler import tables  # noqa: PLC0415 - rich takes a tenth of a second, and only tables need it

        click.echo(tables.list_of_jobs(found, datetime.now(UTC)))
        await unserved.warn(scheduler.store, found)
    else:
        click.echo(
            "scheduler: no job matches" if len(_given(filters)) > 1 else "scheduler: there are no jobs", err=True
        )


@command.command()
@click.argument("job_id", metavar="ID", type=arguments.job_id)
@click.option("--payload", is_flag=True, help="Show payload and result too.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@_on_database
async def job(scheduler: Scheduler, *, job_id: int, payload: bool, as_json: bool) -> None:
    """Show all that is known of one job."""
    found = await scheduler.job(job_id)
    await unserved.warn(scheduler.store, [found])
    if as_json:
        _print_json(found if payload else {name: found[name] for name in found if name not in {"payload", "result"}})
    else:
        from scheduler import tables  # noqa: PLC0415 - as above

        click.echo(tables.one_job(found, datetime.now(UTC), payload=payload))


@command.command()
@click.argument("job_ids", metavar="ID...", type=arguments.job_id, nargs=-1, required=True)
@_on_database
async def cancel(scheduler: Scheduler, *, job_ids: tuple[int, ...]) -> None:
    """Cancel jobs; running ones are asked to stop."""
    done = await scheduler.cancel(*job_ids)
    words = dict.fromkeys(done.cancelled, "cancelled") | dict.fromkeys(done.requested, "asked to stop")
    words |= dict.fromkeys(done.ended, "had ended before")
    for found in dict.fromkeys(job_ids):
        missing = found not in words
        click.echo(f"scheduler: {JobNotFound(found)}" if missing else f"{found} {words[found]}", err=missing)
    if done.missing:
        sys.exit(JobNotFound.exit_code)


command.add_command(database.db)


def main() -> None:
    command.main(prog_name="scheduler")
