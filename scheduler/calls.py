"""How a verb is called over a pool or a connection, and how its answer is read."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncpg
import msgspec

from scheduler.translation import translated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
Facts = dict[str, Any]  # what is known of a job, an attempt, a queue, a kind or a worker

LONGEST_NUMBER = 4000  # digits; Python refuses to read longer ones
CALL_TIMEOUT = 30.0  # seconds
TRIES = 4  # of a call that met a deadlock or a serialization failure


class Caller(Protocol):
    """A pool of asyncpg, or a connection of a caller: see borrowed."""

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]: ...  # noqa: ANN401
    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...  # noqa: ANN401, ASYNC109


class Calls:
    """Calls of verbs over a pool or a connection.

    Calls over a pool are transactions of their own, repeated after a deadlock or a serialization failure. A call over a
    caller's connection is part of the caller's transaction and is not.
    """

    def __init__(self, caller: Caller, *, own: bool = True) -> None:
        self._caller = caller
        self._own = own

    async def _value(self, call: str, *args: object, timeout: float | None = None) -> Any:  # noqa: ANN401, ASYNC109
        return await self._tried(lambda: self._caller.fetchval(call, *args, timeout=timeout))

    async def _read(self, shape: type[T], call: str, *args: object, timeout: float | None = None) -> T:  # noqa: ASYNC109
        answer = await self._value(call, *args, timeout=timeout)
        if isinstance(answer, str):
            return msgspec.json.decode(answer, type=shape)
        return msgspec.convert(answer, shape)  # the driver of a caller's connection has decoded it

    async def _rows(self, call: str, *args: object) -> list[asyncpg.Record]:
        return await self._tried(lambda: self._caller.fetch(call, *args))

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        with translated(own=self._own):
            for left in range(TRIES - 1 if self._own else 0, -1, -1):
                try:
                    return await call()
                except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                    if not left:
                        raise
                    await asyncio.sleep(random.uniform(0.005, 0.05))  # noqa: S311 - not a secret
        raise AssertionError  # the loop returns or raises

    async def _listed(self, call: str, *args: object) -> list[Facts]:
        return [read_facts(row[0]) for row in await self._rows(call, *args)]


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def read_facts(answer: str) -> Facts:
    """Read what is known of a job; a number too long for Python stays its digits, and hides no other job."""
    try:
        return msgspec.json.decode(answer, type=Facts)
    except msgspec.ValidationError:
        return dict(
            json.loads(answer, parse_int=lambda digits: int(digits) if len(digits) < LONGEST_NUMBER else digits)
        )
