"""How the commands show jobs to people: aligned columns, in colour on a terminal, readable at 80 columns.

Texts of handlers are foreign: what could steer a terminal is replaced before it is shown.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler.options import Priority
from scheduler.states import FINISHED, Status

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

Facts = dict[str, Any]  # what the verbs `job` and `list_jobs` return

_LONGEST_ERROR = 300  # characters; --json has all of them
_STYLES = {
    Status.RUNNING: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.TIMED_OUT: "red",
    Status.CANCELLED: "magenta",
}
# What every job of a declared kind has.
_DEFAULTS = ("queue", "priority", "max_attempts", "max_crashes", "timeout", "retry_base")
_INSTANTS = (
    "submitted_at",
    "run_at",
    "started_at",
    "lease_expires_at",
    "cancel_requested_at",
    "finished_at",
    "fire_time",
)
_PLAIN = ("tenant", "idempotency_key", "unique_key", "cancelled_by", "schedule_id", "worker_id", "timeout")


def list_of_jobs(jobs: Sequence[Facts], now: datetime) -> str:
    """Return a table with one line per job."""
    table = _table("id", "kind", "status", "queue", "prio", "tries", "age", "error", right={"id", "tries", "age"})
    for job in jobs:
        table.add_row(
            _text(job["id"]),
            _cut(job["kind"]),
            _status(job["status"]),
            _cut(job.get("queue", "-")),
            _text(_priority(job)),
            _text(job["attempt"]),
            _text(_age(job, now)),
            _cut(_remark(job)),
        )
    for name in (1, 3, 7):
        table.columns[name].no_wrap = False  # these give way in a narrow terminal, the widest first
    return _rendered(table)


def one_job(job: Facts, now: datetime, *, payload: bool) -> str:
    """Return all that is known of a job: facts, attempts, the newest traceback; payload and result when asked for."""
    parts: list[Table | Text] = [_title(job), _facts(job, now)]
    attempts = [*job["attempts"], *_last_attempt(job)]
    if attempts:
        parts += [Text(), _attempts(attempts, now)]
    traces = [attempt for attempt in attempts if attempt.get("traceback")]
    if traces:
        parts += [_heading(f"traceback of attempt {traces[-1]['attempt']}"), _lines(traces[-1]["traceback"])]
    for name in ("payload", "result") if payload else ():
        shown = msgspec.json.format(msgspec.json.encode(job.get(name)), indent=2).decode()
        parts += [_heading(name), _lines(shown)]
    return _rendered(*parts)


def is_undeclared(job: Facts) -> bool:
    """Tell whether a job waits for the first declaration of its kind: until then its defaults are open."""
    return job["status"] not in FINISHED and any(name not in job for name in _DEFAULTS)


def _title(job: Facts) -> Text:
    title = _text(f"job {job['id']}  {job['kind']}  ")
    title.append_text(_status(job["status"]))
    title.stylize("bold")
    return title


def _facts(job: Facts, now: datetime) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _facts_in_words(job, now):
        grid.add_row(_text(f"  {name}"), _text(value))
    return grid


def _facts_in_words(job: Facts, now: datetime) -> Iterable[tuple[str, str]]:
    if is_undeclared(job):
        yield "waits for", f"a declaration of {job['kind']}: run `scheduler declare`, or a worker that has this kind"
    yield "queue", job.get("queue", "-")
    yield "priority", _priority(job)
    yield "attempts", str(job["attempt"])
    for counted, limit in (("failures", "max_attempts"), ("crashes", "max_crashes")):
        yield counted, f"{job[counted]} of at most {job[limit]}" if limit in job else str(job[counted])
    for name in _INSTANTS:
        if name in job and (name, job[name]) != ("run_at", job["submitted_at"]):
            yield _words(name), f"{_instant(job[name]):%Y-%m-%d %H:%M:%S} UTC, {_distance(job[name], now)}"
    yield from _what_is_set(job)
    if "error" in job:
        yield "error", _shortened(job["error"])


def _what_is_set(job: Facts) -> Iterable[tuple[str, str]]:
    for name in _PLAIN:
        if job.get(name):
            yield _words(name), str(job[name])
    for name in ("depends_on", "children"):
        if job[name]:
            yield _words(name), ", ".join(map(str, job[name]))
    if job["unmet"]:
        yield "parents left", str(job["unmet"])
    if job["metadata"]:
        yield "metadata", msgspec.json.encode(job["metadata"]).decode()


def _attempts(attempts: Sequence[Facts], now: datetime) -> Table:
    table = _table("attempt", "outcome", "started", "duration", "worker", "error", right={"attempt", "duration"})
    table.columns[-1].no_wrap = False
    for attempt in attempts:
        started, ended = attempt.get("started_at"), attempt.get("ended_at")
        table.add_row(
            _text(attempt["attempt"]),
            _status(attempt["outcome"]),
            _text(_distance(started, now) if started else "-"),
            _text(_duration((_instant(ended) if ended else now) - _instant(started)) if started else "-"),
            _text((attempt.get("worker_id") or "-")[:8]),
            _text(_shortened(": ".join(attempt[part] for part in ("error_type", "error") if attempt.get(part)))),
        )
    return table


def _last_attempt(job: Facts) -> list[Facts]:
    """Return the attempt that runs or completed: it is in the job's row, not among those that went wrong."""
    if job["status"] not in {Status.RUNNING, Status.COMPLETED}:
        return []
    return [job | {"outcome": job["status"].lower(), "ended_at": job.get("finished_at"), "error": None}]


def _remark(job: Facts) -> str:
    if is_undeclared(job):
        return "kind not declared"
    if "error" in job:
        return _shortened(job["error"])
    if "cancel_requested_at" in job and job["status"] not in FINISHED:
        return "asked to stop"
    counts = [f"{job[name]} {name}" for name in ("failures", "crashes") if job[name] and job["status"] not in FINISHED]
    return ", ".join(counts)


def _age(job: Facts, now: datetime) -> str:
    """Return for how long the job has been what it is; of a delayed one, when it comes."""
    if job["status"] == Status.DELAYED:
        return _distance(job["run_at"], now).removesuffix(" ago")
    since = job.get("finished_at") or (job["started_at"] if job["status"] == Status.RUNNING else job["submitted_at"])
    return _span(max(now - _instant(since), timedelta(0)))


def _distance(instant: str, now: datetime) -> str:
    passed = now - _instant(instant)
    return f"{_span(passed)} ago" if passed.total_seconds() >= 0 else f"in {_span(-passed)}"


def _span(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _duration(duration: timedelta) -> str:
    """Return the exact length of an attempt: 7 ms, 2.51 s, 0:45:10."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _priority(job: Facts) -> str:
    value = job.get("priority")
    if value is None:
        return "-"
    return Priority(value).name.lower() if value in set(Priority) else str(value)


def _words(column: str) -> str:
    return {"cancel_requested_at": "asked to stop", "lease_expires_at": "lease until", "run_at": "not before"}.get(
        column, column.removesuffix("_at").removesuffix("_id").replace("_", " ")
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_ERROR else f"{text[: _LONGEST_ERROR - 1]}…"


def _table(*names: str, right: Container[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True, overflow="ellipsis")
    return table


def _status(status: str) -> Text:
    return Text(status, _STYLES.get(status.upper(), ""))  # type: ignore[call-overload]  # a Status is its text


def _text(value: object) -> Text:
    """Return one line without anything that a terminal would obey."""
    return Text("".join(" " if c in "\n\r\t" else c if c.isprintable() else "\ufffd" for c in str(value)))


def _cut(value: object) -> Text:
    cut = _text(value)
    cut.no_wrap, cut.overflow = True, "ellipsis"
    return cut


def _lines(text: str) -> Text:
    return Text("\n").join(_text(line.expandtabs(4)) for line in text.splitlines())


def _heading(words: str) -> Text:
    return Text(f"\n{words}", "bold")


def _rendered(*parts: Table | Text) -> str:
    console = Console(highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))  # what may be copied is left for the terminal to wrap
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
