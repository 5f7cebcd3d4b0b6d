"""Commands on any number of jobs: cancel, retry, prune.

They take ids, or filters instead. Filters may match more than was meant, so what they match is shown first and asked
about; what is submitted after that stays alone. Each batch is a transaction of its own, and Ctrl-C stops between two.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from scheduler import arguments
from scheduler.admin import BATCH
from scheduler.commands import as_json, on_database, print_json, say, table
from scheduler.errors import SchedulerError
from scheduler.states import FINISHED, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    import msgspec

    from scheduler.client import Scheduler

    Verb = Callable[[Scheduler, list[int]], Awaitable[msgspec.Struct]]

Done = dict[str, list[Any]]  # what a verb answered, added up over the batches

_PREVIEW = 5  # jobs
_SHOWN = 10  # ids of a group, and reasons; --json has all of them
_WORDS = {  # where the verb's own are not enough; with what there is to know of all in the group
    "requested": ("asked to stop", ""),
    "ended": ("had ended before", ""),
    "not_ended": ("had not ended", ""),
    "revived": ("revived", "cancelled by such a failure"),
    "missing": ("not found", ""),
    "busy": ("busy", "another transaction holds them: try again"),
}
_HOW = "\n\nJobs are named by id, or chosen by filters: then they are shown first, and you are asked."
_FAULTS = ("refused", "kept", "busy", "missing")


def _on_jobs(*usual: Status, also: tuple[Status, ...] = ()) -> Callable[[Verb], click.Command]:
    """Make a command of a verb on ids; filters that name no status mean jobs in one of the `usual`."""

    def make(verb: Verb) -> click.Command:
        name = verb.__name__
        command = as_json(on_database(functools.partial(_run, verb, usual), functools.partial(_check, name)))
        command = click.option("--yes", is_flag=True, help="Act on what the filters match without asking.")(command)
        command = arguments.filters((*usual, *also))(command)
        command = click.argument("job_ids", metavar="[ID]...", type=arguments.job_id, nargs=-1)(command)
        return click.command(name, help=f"{inspect.getdoc(verb)}{_HOW}")(command)

    return make


def _check(name: str, *, job_ids: tuple[int, ...], yes: bool, as_json: bool, **filters: object) -> None:
    by_filters = bool(arguments.given(filters))
    if by_filters == bool(job_ids):
        either = (
            f"name the jobs by id, as in `scheduler {name} 12 13`, or by filters, as in `scheduler {name} --kind NAME`"
        )
        raise click.UsageError(f"{either}, not by both" if by_filters else either)
    if by_filters and not yes and (as_json or not (sys.stdin.isatty() and sys.stderr.isatty())):
        raise SchedulerError(f"{name} by filters asks before it acts, and nobody can be asked here: add --yes")


async def _run(  # noqa: PLR0913 - those of the command
    verb: Verb, usual: tuple[Status, ...], scheduler: Scheduler, *, job_ids: tuple[int, ...], yes: bool, as_json: bool,
    **options: object,
) -> None:  # fmt: skip
    ids, filters = list(dict.fromkeys(job_ids)), {"status": usual} | arguments.given(options)
    total = len(ids) or await _agreed(scheduler, filters, verb.__name__, ask=not yes)
    done: Done = {}
    _add(done, await verb(scheduler, []))  # every word of the verb, and nothing done
    seen = 0
    try:
        with _progress(total) as bar:
            async for batch in _batches(ids) if ids else scheduler.admin.ids(filters):
                step = asyncio.ensure_future(verb(scheduler, batch))
                try:
                    await asyncio.shield(step)
                finally:  # also on Ctrl-C: the batch in hand is finished
                    _add(done, await step)
                    seen += len(batch)
                    if bar:
                        bar.update(len(batch))
    except asyncio.CancelledError:
        say(f"stopped after {seen:,} of {_jobs(total)}: the same command goes on with the rest")
        raise
    finally:
        faults = _told(done, as_json=as_json)
    if faults - (set() if ids else {"missing"}):  # what a filter found may be gone by now
        sys.exit(SchedulerError.exit_code)


def _add(done: Done, answer: msgspec.Struct) -> None:
    for word in answer.__struct_fields__:
        if isinstance(found := getattr(answer, word), list) and word != "parents":  # these are resolved by now
            done.setdefault(word, []).extend(found)


async def _batches(ids: list[int]) -> AsyncIterator[list[int]]:
    for first in range(0, len(ids), BATCH):
        yield ids[first : first + BATCH]


async def _agreed(scheduler: Scheduler, filters: dict[str, Any], name: str, *, ask: bool) -> int:
    """Return how many jobs match, once the user has seen them and agreed; later ones are shut out from `filters`."""
    newest = await scheduler.jobs(**filters, limit=_PREVIEW)
    if not newest:
        say("no job matches")
        return 0
    filters["before"] = newest[0]["id"] + 1
    counts = await scheduler.admin.count(filters)
    total = sum(counts.values())
    if ask:
        by_status = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        more = f"and {total - len(newest):,} more\n" if total > len(newest) else ""
        shown = f"{by_status}\n\n{table('jobs', newest, sys.stderr)}\n{more}"
        click.echo(f"{_jobs(total)} match{'es' if total == 1 else ''}: {shown}", err=True)
        later = signal.signal(signal.SIGINT, signal.default_int_handler)  # the event loop's waits for the answer
        if not click.confirm(f"{name} {'it' if total == 1 else 'them'}?", err=True):
            raise SchedulerError("nothing was changed")
        signal.signal(signal.SIGINT, later)
    return total


def _progress(total: int) -> AbstractContextManager[Any]:
    """Show on a terminal how far a bulk of several batches has come."""
    if total <= BATCH or not sys.stderr.isatty():
        return nullcontext()
    return click.progressbar(length=total, show_pos=True, file=sys.stderr)


def _told(done: Done, *, as_json: bool) -> set[str]:
    """Say what was done, and return the names of what could not be done."""
    if revived := {*done.get("revived", ())}:  # some were refused in a batch before that of their parent
        done["refused"] = [found for found in done["refused"] if found.id not in revived]
    if as_json:
        print_json(done)
    else:
        for name, group in done.items():
            for line in _lines(name, group):
                (say if name in _FAULTS else click.echo)(line)
    return {name for name in _FAULTS if done.get(name)}


def _lines(name: str, group: list[Any]) -> Iterator[str]:
    """Yield a line per reason: how many jobs, what became of them, their ids."""
    words, common = _WORDS.get(name, (name, ""))
    by_reason: dict[str, list[int]] = {}
    for found in group:
        reason, job_id = (common, found) if isinstance(found, int) else (found.reason, found.id)
        by_reason.setdefault(reason, []).append(job_id)
    for reason, ids in list(by_reason.items())[:_SHOWN]:
        more = f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else ""
        because = f" ({reason})" if reason else ""
        yield f"{_jobs(len(ids))} {words}: {', '.join(map(str, ids[:_SHOWN]))}{more}{because}"
    if len(by_reason) > _SHOWN:
        yield f"and more jobs {words}, for {len(by_reason) - _SHOWN:,} other reasons: --json tells them all"


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"


@_on_jobs(Status.BLOCKED, Status.DELAYED, Status.PENDING, Status.RUNNING)
async def cancel(scheduler: Scheduler, ids: list[int]) -> msgspec.Struct:
    """Cancel jobs; running ones are asked to stop."""
    return await scheduler.cancel(*ids)


@_on_jobs(Status.FAILED, Status.TIMED_OUT, also=(Status.CANCELLED,))
async def retry(scheduler: Scheduler, ids: list[int]) -> msgspec.Struct:
    """Run jobs again, and what their failure cancelled.

    Filters find jobs that were cancelled only with --status cancelled.
    """
    return await scheduler.admin.retry(ids)


@_on_jobs(*(status for status in Status if status in FINISHED))
async def prune(scheduler: Scheduler, ids: list[int]) -> msgspec.Struct:
    """Delete jobs that have ended, for good.

    A job stays as long as another one needs it.
    """
    return await scheduler.admin.prune(ids)
