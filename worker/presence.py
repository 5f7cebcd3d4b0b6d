"""What the database knows of a worker process: what its job classes say of themselves, and who it is."""

from __future__ import annotations

import logging
import os
import socket
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from scheduler.job import kind_declaration, queue_declaration
from scheduler.options import QUEUES
from scheduler.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.job import Job
    from scheduler.store import Store

log = logging.getLogger("scheduler.worker")


async def declare(store: Store, kinds: Mapping[str, type[Job]]) -> None:
    """Declare queues, kinds and their schedules; warn of those that a newer version has declared otherwise."""
    declared = await store.declare(
        map(kind_declaration, kinds.values()),
        map(queue_declaration, QUEUES.values()),
        *(schedule for schedule in SCHEDULES.values() if schedule.definition["kind"] in kinds),
        force=False,
    )
    if declared.superseded:
        log.warning(
            "newer options of %s are in force; `scheduler declare --force` goes back to those of this version",
            ", ".join(declared.superseded),
        )


def process_facts() -> dict[str, Any]:
    """Return who this process is, for its row in the list of workers."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "version": version("leasework")}
