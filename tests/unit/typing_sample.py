# pyright: strict
"""What type checkers must accept and refuse; read by mypy and pyright in test_typing.py, never run.

Each ignored line is a mistake a checker must see: an ignore that nothing needs is an error itself.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, assert_type

from scheduler.client import Scheduler
from scheduler.context import Context
from scheduler.job import AsyncJob, BlockingJob, CpuBoundJob, kind_declaration
from scheduler.options import Options, Priority, Queue, Retry
from scheduler.payload import decode_payload, encode_payload, encode_result
from scheduler.submission import Submission, SubmitOptions
from scheduler.submitting import Handle
from scheduler.sync_client import SyncHandle, SyncScheduler

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session


class SendEmail(
    AsyncJob,
    kind="send_email",
    queue="mail",
    priority=Priority.HIGH,
    timeout=timedelta(seconds=30),
    retry=Retry(max_attempts=8, cap=timedelta(minutes=10)),
    idempotency_window=timedelta(days=1),
    kw_only=True,
):
    to: str
    copies: tuple[str, ...] = ()

    async def run(self, ctx: Context) -> int:
        assert_type(ctx.idempotency_key, str)
        return len(self.copies)


class Checksum(BlockingJob, priority=-5, rename="camel"):
    file_path: str

    def run(self, ctx: Context) -> str:
        return "stopped" if ctx.cancelled.is_set() else self.file_path


class CountNodes(CpuBoundJob):
    source: str

    def run(self, ctx: Context) -> None:
        del ctx


email = SendEmail(to="a@example.org")
assert_type(SendEmail.options, Options)
assert_type(email.to, str)
assert_type(encode_payload(email), bytes)
assert_type(decode_payload(SendEmail, "{}"), SendEmail)
assert_type(encode_result([1]), bytes | None)
kind_declaration(Checksum)
Queue("mail", ordering="fifo")

SendEmail(to=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
SendEmail()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
email.to = "b@example.org"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
Queue("mail", ordering="random")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
kind_declaration(email)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Misspelt(AsyncJob, qeue="mail"):  # pyright: ignore[reportArgumentType]
    async def run(self, ctx: Context) -> None: ...


class Misjudged(AsyncJob, timeout=30):  # pyright: ignore[reportArgumentType]
    async def run(self, ctx: Context) -> None: ...


class Mixed(AsyncJob):
    def run(self, ctx: Context) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]


async def submit_in_a_transaction(
    scheduler: Scheduler,
    connection: "asyncpg.Connection[asyncpg.Record] | psycopg.AsyncConnection | AsyncConnection | AsyncSession",
) -> None:
    options: SubmitOptions = {"priority": Priority.HIGH, "delay": timedelta(minutes=5)}
    parent = await scheduler.submit(email, connection=connection, **options)
    assert_type(parent, Handle)
    many = await scheduler.submit_many(
        [email, Submission(email, depends_on=[parent, 7])], tenant="t", connection=connection
    )
    assert_type(many, list[Handle])
    assert_type(scheduler.submit_threadsafe(email, priority=1).result(), Handle)
    await scheduler.submit(email, prioritty=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await scheduler.submit(email, delay=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Submission(email, run_at="now")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def submit_without_a_loop(scheduler: SyncScheduler, connection: "psycopg.Connection | Connection | Session") -> None:
    parent = scheduler.submit(email, connection=connection, metadata={"a": 1})
    assert_type(parent, SyncHandle)
    assert_type(scheduler.submit_many([email], depends_on=[parent]), list[SyncHandle])
    scheduler.submit_many(email)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
