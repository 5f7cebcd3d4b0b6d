"""How the commands show rows to people: aligned columns, in colour on a terminal, readable at 80 columns.

Texts of handlers are foreign: what could steer a terminal is replaced before it is shown. What goes into a pipe or a
file is as wide as it is: nothing is cut there.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler.options import Priority
from scheduler.states import FINISHED, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scheduler.calls import Facts

    Cell = Callable[[Facts, datetime], object]

_LONGEST_ERROR = 300  # characters; --json has all of them
_UNCUT = 10_000  # columns
_STYLES = {"RUNNING": "cyan", "COMPLETED": "green", "FAILED": "red", "TIMED_OUT": "red", "CANCELLED": "magenta"}
# What every job of a declared kind has.
_DEFAULTS = ("queue", "priority", "max_attempts", "max_crashes", "timeout", "retry_base")


def of(what: str, rows: Iterable[Facts], now: datetime, to: TextIO | None = None) -> str:
    """Return a list of jobs, queues, kinds or workers, to be printed on stdout or elsewhere."""
    return rendered(table(*_LISTS[what], rows, now), to=to)


def table(columns: str, cells: Mapping[str, Cell], rows: Iterable[Facts], now: datetime) -> Table:
    """Return rows as a table: each column shows the fact of its name, or what its cell makes of the row.

    A mark behind the name: > aligns to the right; where the terminal is too narrow, ~ folds the column and … cuts it.
    """
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    marked = [(column.rstrip(">~…"), column[-1]) for column in columns.split()]
    for name, mark in marked:
        shown.add_column(name, justify="right" if mark == ">" else "left", no_wrap=mark not in "~…", overflow="fold")
    for row in rows:
        shown.add_row(
            *(_cell(cells[name](row, now) if name in cells else row.get(name), mark) for name, mark in marked)
        )
    return shown


def _cell(value: object, mark: str) -> Text:
    cell = value if isinstance(value, Text) else text("-" if value is None else value)
    if mark == "…":
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


def _passed(name: str) -> Cell:
    return lambda row, _: None if row[name] is None else span(timedelta(seconds=row[name]))


def _note(waiting: str, declared: str) -> Cell:
    """Return the cell that says what holds jobs back: no declaration, no worker, a pause."""

    def note(row: Facts, now: datetime) -> Text:
        parts = [Text("not declared")] if row[declared] is None else []
        if row[waiting] and not parts and not row["workers"]:
            parts.append(Text("no worker", "red"))
        if row["paused"]:
            left = "" if row["paused_for"] is None else f", {_passed('paused_for')(row, now)} left"
            parts.append(text(f"paused by {row['paused_by']}{left}"))
            parts[-1].stylize("yellow")
        return Text(", ").join(parts)

    return note


def _when(schedule: Facts, _: datetime) -> str:
    if schedule["cron"] is not None:
        return f"{schedule['cron']} {schedule['time_zone']}"
    every = span(timedelta(seconds=schedule["every"]))
    return f"every {every}" if schedule["mode"] == "fixed_rate" else f"{every} after its job"


def _time(name: str) -> Cell:
    return lambda row, now: None if row[name] is None else distance(row[name], now)


def _stands_still(schedule: Facts, now: datetime) -> Text:
    if schedule["error"] is not None:
        return Text.assemble(("stopped: ", "red"), text(shortened(schedule["error"])))
    if schedule["paused"]:
        return Text("paused", "yellow")
    is_over = schedule["ends_at"] is not None and instant(schedule["ends_at"]) <= now
    return Text("ended" if is_over else f"{schedule['unfinished']} unfinished" if schedule["unfinished"] else "")


def _state(worker: Facts) -> Text:
    state = Text("dead", "red") if worker["dead"] else Text("draining", "yellow") if worker["draining"] else Text("up")
    return state.append(f", {worker['abandoned']} abandoned", "yellow") if worker["abandoned"] else state


_LISTS: dict[str, tuple[str, dict[str, Cell]]] = {
    "jobs": (
        "id> kind… status queue… prio tries> age> error…",
        {
            "status": lambda job, _: status(job["status"]),
            "prio": lambda job, _: priority(job),
            "tries": lambda job, _: job["attempt"],
            "age": _age,
            "error": _remark,
        },
    ),
    "queues": (
        "queue~ pending> running> delayed> blocked> oldest> note~",
        {"oldest": _passed("oldest"), "note": _note("pending", declared="queue")},
    ),
    "kinds": ("kind~ queue~ executor waiting> running> note~", {"note": _note("waiting", declared="seen")}),
    "schedules": (
        "name~ kind~ when~ next> last> skipped> note~",
        {"when": _when, "next": _time("next_fire"), "last": _time("last_fire"), "note": _stands_still},
    ),
    "workers": (
        "worker host~ pid> version queues~ running> age> seen> state",
        {
            "worker": lambda row, _: row["id"][:8],
            "queues": lambda row, _: " ".join(row["queues"]),
            "running": lambda row, _: f"{row['running']}/{sum(row['slots'].values())}",
            "age": _passed("age"),
            "seen": _passed("seen"),
            "state": lambda row, _: _state(row),
        },
    ),
}
