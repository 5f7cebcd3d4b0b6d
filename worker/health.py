"""Whether a worker does its work: told by HTTP to whoever asks, and to systemd where it wants to know.

Both live in the worker's event loop, for what they tell is whether that turns. An outage of the database is bad health,
but no reason to end a process that keeps results and will record them: systemd's watchdog and /live ask for no more
than a turn of the loop, and only /health asks for claims that succeed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from scheduler.errors import ConfigurationError
from worker.attempt import now

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from worker.claimer import Claimer

SLOWEST = 5.0  # seconds for one request
MOST = 20  # requests at once; more are turned away
LARGEST = 8192  # bytes of a request
EVERY = 1.0  # seconds between looks at what systemd should know


class Health(msgspec.Struct, frozen=True):
    """How a worker does: starting, running, failing or draining; the same in words; since when; how many jobs run."""

    state: str
    words: str
    since: datetime
    running: int


def judge(
    claimers: Sequence[Claimer] | None, running: int, *, begun: float, stopping: float | None, patience: float
) -> Health:
    """Judge by the claims of all executors, None before the start; instants are of `now()`, `patience` in seconds."""
    asked = min((claimer.asked for claimer in claimers or () if claimer.asked), default=now())
    answered = [claimer.answered for claimer in claimers or ()]
    if stopping is not None:
        state, words, since = "draining", "it is stopping", stopping
    elif claimers is None or not all(answered):
        state, words, since = "starting", "no claim has been answered yet", begun
    elif now() - asked > patience:
        state, words, since = "failing", "claims are not answered, its log says why", asked
    elif not claimers:
        state, words, since = "running", "it has no slots, and does what every worker does for all", begun
    else:
        state, words, since = "running", "claims succeed", max(answered)
    at = datetime.now(UTC) - timedelta(seconds=now() - since)
    return Health(state, f"{state} since {at:%F %T} UTC: {words}; {running} jobs run", at, running)


class Http:
    """Answers GET /health with 200 only while claims succeed, and GET /live with 200 as long as it answers.

    Slow and hostile clients cost little: a request has a largest size and a longest time, and few are heard at once.
    """

    def __init__(self, health: Callable[[], Health]) -> None:
        self._health = health
        self._heard = 0

    async def serve(self, host: str, port: int) -> None:
        """Listen. Raises ConfigurationError where that cannot be."""
        try:
            self._server = await asyncio.start_server(self._answer, host, port, limit=LARGEST)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that can be no host's
            raise ConfigurationError(f"--http {host}:{port}: {error}: name a free port of this host") from error

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._heard += 1
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(SLOWEST if self._heard <= MOST else 0):
                writer.write(self._reply(await reader.readuntil(b"\r\n\r\n")))
                writer.close()
                await writer.wait_closed()
        self._heard -= 1
        writer.transport.abort()

    def _reply(self, request: bytes) -> bytes:
        asked = re.match(rb"(GET|HEAD) /(health|live)[? ]", request)
        health = self._health()
        good = asked and (asked[2] == b"live" or health.state == "running")
        body = msgspec.json.encode(health) if asked else b"ask for /health or /live"
        head = (
            f"HTTP/1.1 {'200 OK' if good else '503 Service Unavailable' if asked else '404 Not Found'}\r\n"
            f"Content-Type: {'application/json' if asked else 'text/plain'}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if request.startswith(b"HEAD") else body)


class Systemd:
    """Tells systemd what it asks for in the environment, where nothing is left of it for the programs of handlers."""

    def __init__(self, health: Callable[[], Health], environment: MutableMapping[str, str] = os.environ) -> None:
        self._health = health
        address, usec, pid = (environment.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        self._address = "\0" + address[1:] if address.startswith("@") else address  # the abstract namespace of Linux
        self._watched = usec.isdecimal() and pid in {"", str(os.getpid())}
        self._every = min(EVERY, int(usec) / 2e6) if self._watched else EVERY

    async def keep_telling(self) -> None:
        while self._address:
            self.tell()
            await asyncio.sleep(self._every)

    def tell(self) -> None:
        health = self._health()
        lines = [f"STATUS={health.words}", *["WATCHDOG=1"] * self._watched]
        lines += {"draining": ["STOPPING=1"], "running": ["READY=1"]}.get(health.state, [])
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.setblocking(False)  # noqa: FBT003 - whoever does not listen shall not keep us
                connection.sendto("\n".join(lines).encode(), self._address)
