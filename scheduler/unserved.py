"""Tell a person that a job waits for a worker that may never come, and which name may have been meant.

A misspelt kind or queue is no error: its rows wait, because a worker that has it may start tomorrow.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scheduler.store import Store

_MOST = 5  # sentences about one list of jobs


async def warn(store: Store, jobs: Iterable[dict[str, Any]]) -> None:
    """Say on stderr of which of the jobs nobody runs the kind, or serves the queue; each needs `kind`, at least."""
    pending = [job for job in jobs if job.get("status", "PENDING") == "PENDING"]
    waiting = dict.fromkeys((job["kind"], job.get("queue")) for job in pending)
    for kind, queue in list(waiting)[:_MOST]:
        known = await store.who_runs(kind)
        if reason := _reason(kind, queue or known["queue"], known):
            click.echo(f"scheduler: {reason}", err=True)


def _reason(kind: str, queue: str | None, known: dict[str, Any]) -> str | None:
    if known["queue"] is None:
        way_out = _meant(kind, known["kinds"]) or "start a scheduler-worker whose --app has it"
        return f"jobs of the kind {kind!r} wait, for no worker has had it yet: {way_out}"
    if queue in known["served"]:
        return None
    if queue not in known["queues"] or known["served"]:
        way_out = _meant(queue, known["queues"]) or f"start a scheduler-worker with --queues {queue}"
        return f"jobs of the kind {kind!r} wait in the queue {queue!r}, which no live worker serves for it: {way_out}"
    return f"jobs of the kind {kind!r} wait, for no live worker runs it: start a scheduler-worker whose --app has it"


def _meant(name: str | None, names: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name or "", [known for known in names if known != name], n=1)
    return f"did you mean {near[0]!r}?" if near else None
