"""A durable job scheduler whose engine is PostgreSQL.

    class SendEmail(AsyncJob, queue="mail"):
        to: str

        async def run(self, ctx: Context) -> None: ...

    async with Scheduler.connect() as scheduler:
        await scheduler.submit(SendEmail(to="a@example.org"))

Workers run jobs: the command `scheduler-worker`, or `worker.Worker` in code.
"""

from scheduler.client import Scheduler
from scheduler.context import Context
from scheduler.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidJob,
    InvalidSchedule,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobNotFound,
    JobTimedOut,
    LeaseLost,
    NonRetryableError,
    ParentsTooLarge,
    ResultTimeout,
    RetryAfter,
    SchedulerError,
    SchemaMismatch,
    Snooze,
    WaitsInJob,
)
from scheduler.graph import Parent, Parents
from scheduler.job import AsyncJob, BlockingJob, CpuBoundJob, Job
from scheduler.options import Priority, Queue, Retry
from scheduler.schedules import Schedule, ScheduleOptions
from scheduler.states import Status
from scheduler.submission import Submission, SubmitOptions
from scheduler.submitting import Handle
from scheduler.sync_client import SyncHandle, SyncScheduler

__all__ = [
    "AsyncJob", "BlockingJob", "ConfigurationError", "Context", "CpuBoundJob", "DatabaseUnavailable", "Handle",
    "InvalidJob", "InvalidSchedule", "Job", "JobCancelled", "JobEnded", "JobFailed", "JobNotFound", "JobTimedOut",
    "LeaseLost", "NonRetryableError", "Parent", "Parents", "ParentsTooLarge", "Priority", "Queue", "ResultTimeout",
    "Retry", "RetryAfter", "Schedule", "ScheduleOptions", "Scheduler", "SchedulerError", "SchemaMismatch", "Snooze",
    "Status", "Submission", "SubmitOptions", "SyncHandle", "SyncScheduler", "WaitsInJob",
]  # fmt: skip
