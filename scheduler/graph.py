"""Jobs that wait for others: a graph put in order, and what a job sees of its parents.

A job never waits for another one while it holds a slot; that is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.errors import InvalidJob, ParentsTooLarge, WaitsInJob
from scheduler.states import Status  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

JOB: ContextVar[int] = ContextVar("scheduler_job")  # the id of the job whose handler runs here


def refuse_to_wait() -> None:
    """Raise WaitsInJob within a handler, and in the tasks that it made."""
    if (job_id := JOB.get(None)) is not None:
        raise WaitsInJob(job_id)


def ordered(wanted: Mapping[str, list[str]]) -> list[str]:
    """Return the names of nodes, parents first. Raises InvalidJob that names the cycle, or the node and its mistake."""
    for name, parents in wanted.items():
        if unknown := [parent for parent in parents if parent not in wanted]:
            raise InvalidJob("depends_on", f"names {unknown[0]!r}, which is no node of this graph: add it", name)
        if len(set(parents)) < len(parents):
            raise InvalidJob("depends_on", f"names a node twice in {parents}: once is enough", name)
    try:
        return list(TopologicalSorter(wanted).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise InvalidJob("depends_on", f"goes round in a cycle: {cycle}: leave out one of these edges") from None


class Parent(msgspec.Struct, frozen=True):
    """How a job ended that this one depended on; `name`: what the graph that both were submitted in calls it.

    `result` is that of a COMPLETED one; `error` says why another one did not complete.
    """

    id: int
    status: Status
    result: Any = None
    error: str | None = None
    name: str | None = None


class Parents(Mapping["int | str", Parent]):
    """The parents of a job by id, ids ascending; those of a graph are found by their names, too."""

    def __init__(self, parents: Iterable[Parent]) -> None:
        self._by_id: dict[int | str, Parent] = {parent.id: parent for parent in parents}
        self._by_name = {parent.name: parent for parent in self._by_id.values() if parent.name is not None}

    def __getitem__(self, key: int | str) -> Parent:
        return self._by_name[key] if isinstance(key, str) else self._by_id[key]

    def __iter__(self) -> Iterator[int | str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)


def read_parents(job_id: int, sent: str | None) -> Parents:
    """Return what a claim sent of the parents of a job. Raises ParentsTooLarge when that was too much to send."""
    found = msgspec.json.decode(sent or "[]", type=list[Parent] | bool)
    if isinstance(found, bool):
        raise ParentsTooLarge(job_id)
    return Parents(found)
