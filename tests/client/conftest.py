"""Clients of this test's database, and callers with connections of every accepted kind."""

import callers
import pytest

from scheduler import Scheduler, SyncScheduler


@pytest.fixture
async def scheduler(dsn):
    async with Scheduler.connect(dsn) as client:
        yield client


@pytest.fixture
def sync_scheduler(dsn):
    with SyncScheduler.connect(dsn) as client:
        yield client


@pytest.fixture(params=[*callers.ASYNC, *callers.BLOCKING])
async def caller(request, dsn, scheduler, sync_scheduler):
    """A caller with an open transaction, for each kind of connection."""
    opened = (callers.ASYNC | callers.BLOCKING)[request.param]
    async with opened(dsn, scheduler, sync_scheduler) as one:
        yield one
