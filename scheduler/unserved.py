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


async def warn(store: Store, jobs: Iterable[dict[str, Any]]) -> None:
    """Say on stderr, five times at most, that nobody runs the kind of a job or serves its queue."""
    pending = [job for job in jobs if job.get("status", "PENDING") == "PENDING"]
    for kind, queue in list(dict.fromkeys((job["kind"], job.get("queue")) for job in pending))[:5]:
        known = await store.who_runs(kind)
        if reason := _reason(kind, queue or known["queue"], known):
            click.echo(f"scheduler: jobs of the kind {kind!r} wait{reason}", err=True)


def _reason(kind: str, queue: str, known: dict[str, Any]) -> str | None:
    start = "start a scheduler-worker whose --app has it"
    if known["queue"] is None:
        return f", for no worker has had it yet: {_meant(kind, known['kinds'], start)}"
    if queue in known["served"]:
        return None
    if queue in known["queues"] and not known["served"]:
        return f", for no live worker runs it: {start}"
    start = f"start a scheduler-worker with --queues {queue}"
    return f" in the queue {queue!r}, which no live worker serves for it: {_meant(queue, known['queues'], start)}"


def _meant(name: str, names: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, [known for known in names if known != name], n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
