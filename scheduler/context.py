"""What a handler sees of its attempt.

A context knows no worker and no store: the worker fills it, and sends it over a process boundary as JSON.
"""

import threading
from datetime import UTC, datetime
from typing import Any

import msgspec

_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode
_one_event = threading.Lock()  # shared: held only while an event is made, once per job at most


class Context:
    """One attempt of one job; made once per job, so nothing is computed before it is asked for.

    `fence` only grows from attempt to attempt: hand it to outside resources that can refuse older ones.
    `worker_id` names the process that claimed the job; `timeout` is in seconds; `failures` counts the attempts
    that failed before this one. `metadata` may be given as the JSON text of the row.
    """

    __slots__ = (
        "_cancelled", "_fire_time", "_key", "_metadata",
        "attempt", "failures", "fence", "job_id", "kind", "queue", "tenant", "timeout",
        "worker_id",
    )  # fmt: skip

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
        self._fire_time = fire_time
        self._cancelled: threading.Event | None = None

    @property
    def idempotency_key(self) -> str:
        """Name the effect, equal on every attempt: the job's own key, else `scheduler:<job id>`."""
        return self._key if self._key is not None else f"scheduler:{self.job_id}"

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the job's tags; the same dict every time."""
        if isinstance(self._metadata, str):
            self._metadata = _decode_metadata(self._metadata)
        return self._metadata

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

    def to_wire(self) -> dict[str, Any]:
        """Return what makes an equal context in another process, as JSON values; a cancellation does not cross."""
        shown = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        return {**shown, "idempotency_key": self._key, "metadata": self._metadata, "fire_time": self._fire_time}

    def __repr__(self) -> str:
        return f"Context(job_id={self.job_id}, kind={self.kind!r}, attempt={self.attempt})"
