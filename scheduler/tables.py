"""How the commands show rows to people: aligned columns, in colour on a terminal, readable at 80 columns.

Texts of handlers are foreign: what could steer a terminal is replaced before it is shown. What goes into a pipe or a
file is as wide as it is: nothing is cut there.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler.options import Priority
from scheduler.states import FINISHED, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Facts = dict[str, Any]  # what the verbs answer of a job, an attempt, a queue, a kind or a worker

_LONGEST_ERROR = 300  # characters; --json has all of them
_UNCUT = 10_000  # columns
_STYLES = {"RUNNING": "cyan", "COMPLETED": "green", "FAILED": "red", "TIMED_OUT": "red", "CANCELLED": "magenta"}
# What every job of a declared kind has.
_DEFAULTS = ("queue", "priority", "max_attempts", "max_crashes", "timeout", "retry_base")


class Column(NamedTuple):
    """A column: its heading, what it says of a row if not the fact of that name, and how it fits a narrow terminal."""

    heading: str
    cell: Callable[[Facts, datetime], object] | None = None
    right: bool = False
    narrow: Literal["keep", "cut", "fold"] = "keep"


def of(what: str, rows: Iterable[Facts], now: datetime, to: TextIO | None = None) -> str:
    """Return a list of jobs, queues, kinds or workers, to be printed on stdout or elsewhere."""
    return rendered(table(_LISTS[what], rows, now), to=to)


def table(columns: Iterable[Column], rows: Iterable[Facts], now: datetime) -> Table:
    """Return a table with one line per row, or several where a column is folded."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        justify: Literal["right", "left"] = "right" if column.right else "left"
        shown.add_column(column.heading, justify=justify, no_wrap=column.narrow == "keep", overflow="fold")
    for row in rows:
        shown.add_row(*(_cell(column, row, now) for column in columns))
    return shown


def _cell(column: Column, row: Facts, now: datetime) -> Text:
    value = column.cell(row, now) if column.cell else row.get(column.heading)
    cell = value if isinstance(value, Text) else text("-" if value is None else value)
    if column.narrow == "cut":
        cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


def rendered(*parts: Table | Text, to: TextIO | None = None) -> str:
    """Return what is to be printed, as wide as the terminal; elsewhere, unless COLUMNS is set, as wide as it is."""
    stream = to or sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _UNCUT
    console = Console(file=stream, highlight=False, width=width)
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))  # what may be copied is left for the terminal to wrap
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def text(value: object) -> Text:
    """Return one line without anything that a terminal would obey."""
    return Text("".join(" " if c in "\n\r\t" else c if c.isprintable() else "\ufffd" for c in str(value)))


def status(name: str) -> Text:
    return Text(name, _STYLES.get(name.upper(), ""))


def shortened(error: str) -> str:
    return error if len(error) <= _LONGEST_ERROR else f"{error[: _LONGEST_ERROR - 1]}…"


def instant(value: str) -> datetime:
    return datetime.fromisoformat(value).astimezone(UTC)


def distance(value: str, now: datetime) -> str:
    passed = now - instant(value)
    return f"{span(passed)} ago" if passed.total_seconds() >= 0 else f"in {span(-passed)}"


def span(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def priority(row: Facts) -> str | None:
    value = row.get("priority")
    return Priority(value).name.lower() if value in set(Priority) else value


def is_undeclared(job: Facts) -> bool:
    """Tell whether a job waits for the first declaration of its kind: until then its defaults are open."""
    return job["status"] not in FINISHED and any(name not in job for name in _DEFAULTS)


def _remark(job: Facts, _: datetime) -> str:
    if is_undeclared(job):
        return "kind not declared"
    if "error" in job:
        return shortened(job["error"])
    if "cancel_requested_at" in job and job["status"] not in FINISHED:
        return "asked to stop"
    counts = [f"{job[name]} {name}" for name in ("failures", "crashes") if job[name] and job["status"] not in FINISHED]
    return ", ".join(counts)


def _age(job: Facts, now: datetime) -> str:
    """Return for how long the job has been what it is; of a delayed one, when it comes."""
    if job["status"] == Status.DELAYED:
        return distance(job["run_at"], now).removesuffix(" ago")
    since = job.get("finished_at") or (job["started_at"] if job["status"] == Status.RUNNING else job["submitted_at"])
    return span(max(now - instant(since), timedelta(0)))


def _passed(seconds: float | None) -> str | None:
    return None if seconds is None else span(timedelta(seconds=seconds))


def _note(row: Facts, waiting: int, *, is_declared: bool) -> Text:
    """Return what holds jobs back: they are not declared, there is no worker for them, or they are paused."""
    parts = [] if is_declared else [Text("not declared")]
    if waiting and is_declared and not row["workers"]:
        parts.append(Text("no worker", "red"))
    if row["paused"]:
        left = "" if row["paused_for"] is None else f", {_passed(row['paused_for'])} left"
        parts.append(text(f"paused by {row['paused_by']}{left}"))
        parts[-1].stylize("yellow")
    return Text(", ").join(parts)


def _state(worker: Facts) -> Text:
    return Text("dead", "red") if worker["dead"] else Text("draining", "yellow") if worker["draining"] else Text("up")


JOBS = (
    Column("id", right=True),
    Column("kind", narrow="cut"),
    Column("status", lambda job, _: status(job["status"])),
    Column("queue", narrow="cut"),
    Column("prio", lambda job, _: priority(job)),
    Column("tries", lambda job, _: job["attempt"], right=True),
    Column("age", _age, right=True),
    Column("error", _remark, narrow="cut"),
)
QUEUES = (
    Column("queue", narrow="fold"),
    *(Column(name, right=True) for name in ("pending", "running", "delayed", "blocked")),
    Column("oldest", lambda row, _: _passed(row["oldest"]), right=True),
    Column("note", lambda row, _: _note(row, row["pending"], is_declared=row["queue"] is not None), narrow="fold"),
)
KINDS = (
    Column("kind", narrow="fold"),
    Column("queue", narrow="fold"),
    Column("executor"),
    *(Column(name, right=True) for name in ("waiting", "running")),
    Column("note", lambda row, _: _note(row, row["waiting"], is_declared=row["seen"] is not None), narrow="fold"),
)
WORKERS = (
    Column("worker", lambda row, _: row["id"][:8]),
    Column("host", narrow="fold"),
    Column("pid", right=True),
    Column("version"),
    Column("queues", lambda row, _: " ".join(row["queues"]), narrow="fold"),
    Column("running", lambda row, _: f"{row['running']}/{sum(row['slots'].values())}", right=True),
    Column("age", lambda row, _: _passed(row["age"]), right=True),
    Column("seen", lambda row, _: _passed(row["seen"]), right=True),
    Column("state", lambda row, _: _state(row)),
)
_LISTS = {"jobs": JOBS, "queues": QUEUES, "kinds": KINDS, "workers": WORKERS}
