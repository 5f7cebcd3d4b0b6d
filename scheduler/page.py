"""All that is known of one job, as a page: facts, attempts, the newest traceback; payload and result when asked for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from rich.table import Table
from rich.text import Text

from scheduler import tables
from scheduler.states import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scheduler.calls import Facts

_TIMES = ("submitted_at", "run_at", "started_at", "lease_expires_at", "cancel_requested_at", "finished_at", "fire_time")
_PLAIN = ("tenant", "idempotency_key", "unique_key", "cancelled_by", "schedule_id", "worker_id", "timeout")


def one_job(job: Facts, now: datetime, *, payload: bool) -> str:
    parts: list[Table | Text] = [_title(job), _facts(job, now)]
    attempts = [*job["attempts"], *_last_attempt(job)]
    if attempts:
        parts += [Text(), tables.table("attempt> outcome started duration> worker error~", _ATTEMPTS, attempts, now)]
    traces = [attempt for attempt in attempts if attempt.get("traceback")]
    if traces:
        parts += [_heading(f"traceback of attempt {traces[-1]['attempt']}"), _lines(traces[-1]["traceback"])]
    for name in ("payload", "result") if payload else ():
        shown = msgspec.json.format(msgspec.json.encode(job.get(name)), indent=2).decode()
        parts += [_heading(name), _lines(shown)]
    return tables.rendered(*parts)


def _title(job: Facts) -> Text:
    title = tables.text(f"job {job['id']}  {job['kind']}  ")
    title.append_text(tables.status(job["status"]))
    title.stylize("bold")
    return title


def _facts(job: Facts, now: datetime) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _facts_in_words(job, now):
        grid.add_row(tables.text(f"  {name}"), tables.text(value))
    return grid


def _facts_in_words(job: Facts, now: datetime) -> Iterable[tuple[str, str]]:
    if tables.is_undeclared(job):
        yield "waits for", f"a declaration of {job['kind']}: run `scheduler declare`, or a worker that has this kind"
    if job.get("open_batch"):
        yield "open_batch", f"until close_batch({job['id']}), or `scheduler cancel {job['id']}`"
    yield "queue", job.get("queue", "-")
    yield "priority", str(tables.priority(job) or "-")
    yield "attempts", str(job["attempt"])
    for counted, limit in (("failures", "max_attempts"), ("crashes", "max_crashes")):
        yield counted, f"{job[counted]} of at most {job[limit]}" if limit in job else str(job[counted])
    for name in _TIMES:
        if name in job and (name, job[name]) != ("run_at", job["submitted_at"]):
            yield _words(name), f"{tables.instant(job[name]):%Y-%m-%d %H:%M:%S} UTC, {tables.distance(job[name], now)}"
    yield from _what_is_set(job)
    if "error" in job:
        yield "error", tables.shortened(job["error"])


def _what_is_set(job: Facts) -> Iterable[tuple[str, str]]:
    for name in _PLAIN:
        if job.get(name):
            yield _words(name), str(job[name])
    for name in ("depends_on", "children"):
        if others := [other for other in job[name] if other != job["id"]]:  # a batch depends on itself
            yield _words(name), ", ".join(map(str, others))
    if job["unmet"]:
        yield "parents left", str(job["unmet"])
    if job["metadata"]:
        yield "metadata", msgspec.json.encode(job["metadata"]).decode()


def _last_attempt(job: Facts) -> list[Facts]:
    """Return the attempt that runs or completed: it is in the job's row, not among those that went wrong."""
    if job["status"] not in {Status.RUNNING, Status.COMPLETED}:
        return []
    return [job | {"outcome": job["status"].lower(), "ended_at": job.get("finished_at"), "error": None}]


def _words(column: str) -> str:
    return {"cancel_requested_at": "asked to stop", "lease_expires_at": "lease until", "run_at": "not before"}.get(
        column, column.removesuffix("_at").removesuffix("_id").replace("_", " ")
    )


def _heading(words: str) -> Text:
    return Text(f"\n{words}", "bold")


def _lines(written: str) -> Text:
    return Text("\n").join(tables.text(line.expandtabs(4)) for line in written.splitlines())


def _duration(attempt: Facts, now: datetime) -> str | None:
    """Return the exact length of an attempt: 7 ms, 2.51 s, 0:45:10."""
    if not attempt.get("started_at"):
        return None
    ended = attempt.get("ended_at")
    seconds = ((tables.instant(ended) if ended else now) - tables.instant(attempt["started_at"])).total_seconds()
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


_ATTEMPTS: dict[str, tables.Cell] = {
    "outcome": lambda row, _: tables.status(row["outcome"]),
    "started": lambda row, now: tables.distance(row["started_at"], now) if row.get("started_at") else None,
    "duration": _duration,
    "worker": lambda row, _: (row.get("worker_id") or "-")[:8],
    "error": lambda row, _: tables.shortened(": ".join(row[x] for x in ("error_type", "error") if row.get(x))),
}
