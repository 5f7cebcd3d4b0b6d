"""Stopping goes step by step, and no step may keep the process: a database that does not answer is left behind."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable

log = logging.getLogger("scheduler.worker")

STEP = 1.5  # seconds for each step that may hang, so that all together take less than 5 after the grace


class Steps:
    """Takes steps that may hang. `silent`: the database has not answered during one; the next are not waited for."""

    def __init__(self) -> None:
        self.silent = False

    async def take(self, step: Awaitable[Any]) -> None:
        """Take one step, or leave it: it is not awaited after its time, as the driver would wait for an answer then."""
        task = asyncio.ensure_future(step)
        if self.silent:
            task.cancel()
        done, _ = await asyncio.wait([task], timeout=STEP)
        self.silent = self.silent or not done
        if not done:
            task.cancel()
            log.warning("the database does not answer; stopping goes on without it")
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning("stopping goes on: %s", error)
