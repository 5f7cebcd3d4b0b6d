"""What a handler sees of its attempt.

A context knows no worker and no store: the worker fills it, gives it the class that makes transactions, and sends it
over a process boundary as JSON.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.errors import SchedulerError
from scheduler.graph import Parents, read_parents

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from scheduler.transaction import Transaction

_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode
_one_event = threading.Lock()  # shared: held only while an event is made, once per job at most


class Context:
    """One attempt of one job; made once per job, so nothing is computed before it is asked for.

    `fence` only grows from attempt to attempt: hand it to outside resources that can refuse older ones.
    `worker_id` names the process that claimed the job; `timeout` is in seconds; `failures` counts the attempts
    that failed before this one. `completing`: `complete` has been called. `metadata` may be given as the JSON text of
    the row. `transactions`: what makes them, in a worker.
    """

    def __init__(  # noqa: PLR0913 - one value per column it is filled from
        self,
        *,
        job_id: int,
        kind: str,
        queue: str,
        tenant: str,
        attempt: int,
        failures: int,
        fence: int,
        timeout: float,
        idempotency_key: str | None = None,
        metadata: str | dict[str, Any] = "{}",
        fire_time: float | None = None,
        worker_id: str = "",
        transactions: type[Transaction] | None = None,
        parents: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.kind = kind
        self.queue = queue
        self.tenant = tenant
        self.attempt = attempt
        self.failures = failures
        self.fence = fence
        self.timeout = timeout
        self.worker_id = worker_id
        self._key = idempotency_key
        self._metadata = metadata
        self._transactions = transactions
        self.completing = False
        self._parents = parents
        self._fire_time = fire_time
        self._cancelled: threading.Event | None = None

    @property
    def idempotency_key(self) -> str:
        """Name the effect, equal on every attempt: the job's own key, else `scheduler:<job id>`."""
        return self._key if self._key is not None else f"scheduler:{self.job_id}"

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Return the job's tags; the same dict every time."""
        return _decode_metadata(self._metadata) if isinstance(self._metadata, str) else self._metadata

    @cached_property
    def parents(self) -> Parents:
        """Return how the jobs ended that this one depends on, members of its batch among them: see Parents.

        Raises ParentsTooLarge when that is over 1 MB of JSON.
        """
        return read_parents(self.job_id, self._parents)

    @property
    def fire_time(self) -> datetime | None:
        """Return the time for which a schedule made this job, its logical date, in UTC; None without a schedule."""
        return None if self._fire_time is None else datetime.fromtimestamp(self._fire_time, UTC)

    @property
    def cancelled(self) -> threading.Event:
        """Return the event that is set once this attempt should stop; a blocking handler looks at it."""
        event = self._cancelled
        if event is None:
            with _one_event:  # the handler's thread and the canceller's must meet at the same event
                event = self._cancelled = self._cancelled or threading.Event()
        return event

    def cancel(self) -> None:
        """Ask the attempt to stop; safe from any thread, and before the handler looked."""
        self.cancelled.set()

    def transaction(self, connection: object) -> Transaction:
        """Make a transaction part of this attempt: `async with`, or `with` where the connection blocks.

        The block begins and commits it; in an open one it is a savepoint, and whoever began that commits. Until it ends
        nobody can take the job away. Raises LeaseLost when somebody has: the whole transaction rolls back. InvalidJob.
        """
        return self._made(connection)

    def complete(self, connection: object, result: Any = None) -> Awaitable[None]:  # noqa: ANN401 - any JSON
        """Complete the job in the open transaction of a connection; await it, unless the connection blocks.

        What it writes and the end of the job become true together, or neither does. Do it last: what the handler
        returns counts no more, and unless the transaction commits before that the attempt fails (NotCommitted).
        Raises LeaseLost as `transaction` does; InvalidJob for a result that is no JSON or over 64 kB.
        """
        return self._made(connection).complete(result)

    def _made(self, connection: object) -> Transaction:
        if self._transactions is None:
            raise SchedulerError("this context belongs to no worker: give it transactions=, or run the job on a worker")
        return self._transactions(self, connection)

    def to_wire(self) -> dict[str, Any]:
        """Return what makes an equal context in another process, as JSON values; a cancellation does not cross."""
        shown = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "completing"}
        hidden = {"metadata": self._metadata, "parents": self._parents, "fire_time": self._fire_time}
        return {**shown, "idempotency_key": self._key, **hidden}

    def __repr__(self) -> str:
        return f"Context(job_id={self.job_id}, kind={self.kind!r}, attempt={self.attempt})"
