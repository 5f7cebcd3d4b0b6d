"""The command `scheduler schedules`: what fires again and again, and when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click
import msgspec

from scheduler import arguments
from scheduler.commands import as_json, listing, need, on_database, print_json
from scheduler.schedules import Timing, check_timing

if TYPE_CHECKING:
    from scheduler.calls import Facts
    from scheduler.client import Scheduler


class _Listing(click.Group):
    """Without a subcommand it lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        lists = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if lists else args)


@click.group(cls=_Listing)
def schedules() -> None:
    """List and steer recurring schedules; without a command, list them."""


async def _named(scheduler: Scheduler, name: str) -> Facts:
    """Return the facts of a schedule. Raises SchedulerError for a name that none has."""
    known = {row["name"]: row for row in await scheduler.admin.schedules()}
    need("schedule", name, known)
    return known[name]


schedules.add_command(
    listing("schedules", "List schedules: when each fires, and what keeps it from firing.",
            "there are no schedules yet: `scheduler schedules add --help` tells how to make one"), "list",
)  # fmt: skip


@schedules.command()
@click.argument("name", type=arguments.text)
@click.argument("kind", type=arguments.text)
@click.argument("payload", default="{}", callback=arguments.payload)
@click.option("--cron", type=arguments.text, metavar="EXPRESSION", help="As in '0 3 * * *'; seconds first; or @daily.")
@click.option("--time-zone", type=arguments.text, metavar="ZONE", help="Whose clock it reads, as in Europe/Berlin.")
@click.option("--every", type=arguments.duration, metavar="TIME", help="From fire to fire: 30s, 5m, 2h, 1d.")
@click.option("--mode", type=click.Choice(["fixed_rate", "fixed_delay"]), help="fixed_delay: from its job's end.")
@click.option("--starts-at", type=arguments.instant, metavar="INSTANT", help="From then on.")
@click.option("--ends-at", type=arguments.instant, metavar="INSTANT", help="Before then.")
@click.option("--jitter", type=arguments.duration, metavar="TIME", help="Run each job up to so much later.")
@click.option("--overlap", type=click.Choice(["skip", "queue_one", "allow"]), help="While a job is unfinished.")
@click.option("--misfire", type=click.Choice(["coalesce", "skip", "backfill"]), help="After a downtime.")
@click.option("--backfill-limit", type=click.IntRange(1, 1000), help="The newest so many.")
@click.option("--priority", type=arguments.priority, metavar="LEVEL", help="low, medium, high, critical, -100 to 100.")
@click.option("--tenant", type=arguments.text, metavar="NAME", help="On whose behalf.")
@click.option("--unique-key", type=arguments.text, metavar="KEY", help="One unfinished job per kind and key.")
@click.option("--dry-run", is_flag=True, help="Change nothing, and print the next 20 fires.")
@on_database
async def add(scheduler: Scheduler, *, name: str, payload: str, dry_run: bool, **options: Any) -> None:  # noqa: ANN401
    """Make the schedule NAME of jobs of a KIND, or edit it."""
    said = {
        option: value.total_seconds() if isinstance(value, timedelta) else value
        for option, value in arguments.given(options).items()
    }
    check_timing(said)
    if dry_run:
        print_fires({"mode": "cron" if "cron" in said else "fixed_rate"} | said, as_json=False)
        return
    done = await scheduler.store.upsert_schedule(name, said | {"payload": msgspec.Raw(payload.encode())})
    click.echo(f"schedule {name}: {done['change']}")


@schedules.command()
@click.argument("name", type=arguments.text)
@as_json
@on_database
async def preview(scheduler: Scheduler, *, name: str, as_json: bool) -> None:
    """Print the next 20 fires of a schedule; nothing is changed."""
    print_fires(await _named(scheduler, name), as_json=as_json)


def print_fires(facts: Facts, *, as_json: bool) -> None:
    fires = msgspec.convert(facts, Timing, strict=False).preview(datetime.now(UTC))
    if as_json:
        print_json(fires)
        return
    zone = facts.get("time_zone", "UTC")
    for fire in fires:
        click.echo(f"{fire.astimezone(ZoneInfo(zone)):%a %Y-%m-%d %H:%M:%S %z} {zone}")


def _steer(verb: str, promise: str, said: str) -> None:
    @click.argument("name", type=arguments.text)
    @on_database
    async def run(scheduler: Scheduler, *, name: str) -> None:
        facts = await _named(scheduler, name)
        admin = scheduler.admin
        if verb == "run":
            job_id = await admin.run_schedule(name)
            click.echo("its unique_key is taken: no job was made" if job_id is None else job_id)
            return
        await (admin.delete_schedule(name) if verb == "delete" else admin.pause_schedule(name, paused=verb == "pause"))
        stood_still = facts["paused"] or facts["error"]
        click.echo(f"schedule {name} {'did not stand still' if verb == 'resume' and not stood_still else said}")

    schedules.command(verb, help=promise)(run)


_steer("pause", "Let a schedule fire no more until it is resumed.", "is paused; its jobs go on")
_steer("resume", "Let a schedule fire again from now on, also after an error.", "fires again")
_steer("run", "Make one job of a schedule now, and print its id.", "")
_steer("delete", "Delete a schedule; its jobs stay.", "is deleted; its jobs stay")
