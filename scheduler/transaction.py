"""A handler's own transaction: it is written by an attempt that owns its job when it commits, or not at all.

The worker hands this to the context, which knows no store. A connection that blocks is used in place.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from scheduler.borrowed import Borrowed, in_place
from scheduler.errors import InvalidJob
from scheduler.payload import encode_result
from scheduler.store import Store
from scheduler.submission import Json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Generator

    from scheduler.context import Context


class Transaction:
    """Entered by `async with`, or by `with` where the connection blocks; see Context.transaction."""

    def __init__(self, context: Context, connection: object) -> None:
        self._context = context
        self._borrowed = Borrowed(connection)
        self._verbs = Store(self._borrowed, own=False)
        self._block = self._held()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        joined, begin = self._borrowed.transaction()
        hold = partial(self._verbs.hold, self._context.job_id, self._context.fence)
        async with AsyncExitStack() as stack:
            if joined:  # before the savepoint: refused here, the whole transaction is, whoever catches the error
                await hold()
            if self._borrowed.blocking:
                stack.enter_context(begin())
            else:
                await stack.enter_async_context(begin())
            if await self._borrowed.commits_by_itself():
                raise InvalidJob("connection", "is in AUTOCOMMIT: take one of another isolation level")
            if not joined:
                await hold()
            yield

    def complete(self, result: Any) -> Awaitable[None]:  # noqa: ANN401 - any JSON
        """Complete the job in the open transaction; on a connection that blocks it has been done on return."""
        encoded = Json(encode_result(result) or b"null", "utf-8")
        self._context.completing = True  # also where nobody awaits it: the attempt must not count as completed then
        call = self._verbs.complete(self._context.job_id, self._context.fence, encoded)
        if not self._borrowed.blocking:
            return call
        in_place(call)
        return _Done()

    def __enter__(self) -> None:
        if not self._borrowed.blocking:
            raise InvalidJob("connection", "belongs to an event loop: write `async with ctx.transaction(connection)`")
        in_place(self._block.__aenter__())

    def __exit__(self, *error: Any) -> bool | None:  # noqa: ANN401, PYI036 - type, value and traceback
        return in_place(self._block.__aexit__(*error))

    async def __aenter__(self) -> None:
        if self._borrowed.blocking:
            raise InvalidJob("connection", "blocks: write `with ctx.transaction(connection)`, best in a BlockingJob")
        await self._block.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: ANN401, PYI036 - as above
        return await self._block.__aexit__(*error)


class _Done:
    """What has been done already may be awaited all the same."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()
