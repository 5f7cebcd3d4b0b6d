"""The command scheduler: prepare the database, submit jobs, look at them, and what operators do."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scheduler import apps, arguments, bulk, database, operators, recurring
from scheduler.commands import Commands, as_json, meant, on_database, print_json, print_rows, say
from scheduler.job import KINDS
from scheduler.options import QUEUES
from scheduler.schedules import SCHEDULES
from scheduler.states import Status

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from scheduler.client import Scheduler
    from scheduler.store import Store


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leasework")
def command() -> None:
    """Prepare the database, submit jobs, look at them, steer them.

    Exit codes: 0 done, 1 refused or not found, 2 usage, 3 configuration, 4 database, 5 schema,
    130 stopped.
    """


def _load(_: click.Context, __: click.Parameter, app: str | None) -> None:
    apps.load(app)


@click.command()
@click.option("--app", envvar="SCHEDULER_APP", show_envvar=True, expose_value=False, callback=_load,
              help="Modules with job classes, separated by commas, as in myservice.jobs.")  # fmt: skip
@click.option("--force", is_flag=True, help="Go back to a declaration that was superseded, for a rollback.")
@on_database
async def declare(scheduler: Scheduler, *, force: bool) -> None:
    """Record what job classes, queues and schedules say of themselves.

    Workers do it when they start; done first in a deploy, it holds from the first job on.
    """
    done = await scheduler.declare(KINDS.values(), QUEUES.values(), SCHEDULES.values(), force=force)
    for words, kinds in (("changed", done.changed), ("superseded", done.superseded)):
        if kinds:
            click.echo(f"{words}: {', '.join(kinds)}")
    if same := len(KINDS) + len(SCHEDULES) - len(done.changed) - len(done.superseded):
        what = f"{len(KINDS)} kinds" + (f" and {len(SCHEDULES)} schedules" if SCHEDULES else "")
        click.echo(f"unchanged: {same} of {what}")
    if done.superseded:
        say("what was superseded by a newer declaration stays so: --force goes back to it")


async def _warn(store: Store, jobs: Iterable[dict[str, Any]]) -> None:
    """Say, five times at most, that a job waits for a worker that may never come, and which name may have been meant.

    A misspelt kind or queue is no error: its rows wait, because a worker that has it may start tomorrow.
    """
    pending = [job for job in jobs if job.get("status", "PENDING") == "PENDING"]
    for kind, queue in list(dict.fromkeys((job["kind"], job.get("queue")) for job in pending))[:5]:
        known = await store.who_runs(kind)
        if reason := _reason(kind, queue or known["queue"], known):
            say(f"jobs of the kind {kind!r} wait{reason}")


def _reason(kind: str, queue: str, known: dict[str, Any]) -> str | None:
    start = "start a scheduler-worker whose --app has it"
    if known["queue"] is None:
        return f", for no worker has had it yet: {meant(kind, known['kinds'], start)}"
    if queue in known["served"]:
        return None
    if queue in known["queues"] and not known["served"]:
        return f", for no live worker runs it: {start}"
    start = f"start a scheduler-worker with --queues {queue}"
    return f" in the queue {queue!r}, which no live worker serves for it: {meant(queue, known['queues'], start)}"


@click.command()
@click.argument("kind", type=arguments.text)
@click.argument("payload", default="{}", callback=arguments.payload)
@click.option("--priority", type=arguments.priority, metavar="LEVEL", help="low, medium, high, critical, -100 to 100.")
@click.option("--delay", type=arguments.duration, metavar="TIME", help="Run it so much later: 30s, 5m, 2h, 1d.")
@click.option("--run-at", type=arguments.instant, metavar="INSTANT", help="Run it not before, as in 2030-01-31T09:00Z.")
@click.option("--queue", type=arguments.text, metavar="NAME", help="Default: the queue of the kind.")
@click.option("--tenant", type=arguments.text, metavar="NAME", help="On whose behalf.")
@click.option("--depends-on", type=arguments.job_id, metavar="ID", multiple=True, help="Run it after this; repeatable.")
@click.option("--idempotency-key", type=arguments.text, metavar="KEY", help="For a known key, print the older job.")
@click.option("--unique-key", type=arguments.text, metavar="KEY", help="One unfinished job per kind and key.")
@click.option("--wait", type=arguments.seconds, metavar="SECONDS", help="Wait so long, and print the result too.")
@on_database
async def submit(scheduler: Scheduler, *, kind: str, payload: str, wait: timedelta | None, **options: Any) -> None:  # noqa: ANN401
    """Submit a job and print its id.

    PAYLOAD is a JSON object, the fields of the job: {} when left out, read from stdin when it is -.
    """
    job_id = await scheduler.store.submit(kind, payload, msgspec.json.encode(arguments.given(options)).decode())
    click.echo(job_id)
    await _warn(scheduler.store, [options | {"kind": kind}])
    if wait is not None:
        print_json(await scheduler.handle(job_id).result(wait))


@click.command()
@arguments.filters(Status)
@click.option("--before", type=arguments.job_id, metavar="ID", help="Older than this job, for the next page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@as_json
@on_database
async def jobs(scheduler: Scheduler, *, as_json: bool, **filters: Any) -> None:  # noqa: ANN401
    """List jobs, newest first."""
    chosen = arguments.given(filters)
    nothing = "no job matches" if len(chosen) > 1 else "there are no jobs"
    found = await scheduler.jobs(**chosen)
    print_rows("jobs", found, as_json=as_json, nothing=nothing)
    if not as_json:
        await _warn(scheduler.store, found)


@click.command()
@click.argument("job_id", metavar="ID", type=arguments.job_id)
@click.option("--payload", is_flag=True, help="Show payload and result too.")
@as_json
@on_database
async def job(scheduler: Scheduler, *, job_id: int, payload: bool, as_json: bool) -> None:
    """Show all that is known of one job."""
    found = await scheduler.job(job_id)
    await _warn(scheduler.store, [found])
    if as_json:
        print_json(found if payload else {name: found[name] for name in found if name not in {"payload", "result"}})
    else:
        from scheduler import page  # noqa: PLC0415 - rich takes a tenth of a second

        click.echo(page.one_job(found, datetime.now(UTC), payload=payload))


_LOOK = (jobs, job, *operators.LISTINGS, operators.health, recurring.schedules)
_STEER = (bulk.cancel, bulk.retry, bulk.prune, operators.pause, operators.resume)
for _known in (database.migrate, declare, submit, *_LOOK, *_STEER, database.db):
    command.add_command(_known)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a character this locale lacks ends no command
    command.main(prog_name="scheduler")
