"""The child process of a CpuBoundJob: reads a job, runs it, writes how it ended, and again.

Everything that leaves it is JSON made here; no exception and no pickle crosses. It must die with its parent, whatever
kills that: the kernel is asked for it where it can (Linux), and a thread waits for the end of a pipe that only the
parent holds.
"""

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

import msgspec

from scheduler.apps import IMPORTING
from scheduler.context import Context
from scheduler.error_text import describe_exception
from scheduler.errors import ConfigurationError, InvalidJob
from scheduler.graph import JOB
from scheduler.job import KINDS, Job
from scheduler.payload import decode_payload
from scheduler.transaction import Transaction
from worker.attempt import Attempt, Settlement, failure, raised, returned

_PR_SET_PDEATHSIG = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LENGTH = 4  # bytes before each message


class Order(msgspec.Struct):
    context: dict[str, Any]
    payload: str


class Hello(msgspec.Struct):
    """The first message of a child: ready, or why it never will be."""

    error: str | None = None


def child_modules(kinds: Iterable[type[Job]], processes: int) -> list[str]:
    """Return the modules that a child must import. Raises ConfigurationError when it could not, or should not."""
    if IMPORTING:
        raise ConfigurationError(
            f"a Worker is started while {IMPORTING[-1]} is imported for its job classes:"
            ' put what starts it under `if __name__ == "__main__":`'
        )
    in_children = [kind for kind in kinds if kind.options.executor == "process"] if processes else []
    unreachable = ", ".join(kind.__name__ for kind in in_children if kind.__module__ == "__main__")
    if unreachable:
        raise ConfigurationError(
            f"{unreachable}: a CpuBoundJob is defined in the script that is run: move it to a module,"
            " so that a child process can import it, or run the script as --app of scheduler-worker"
            ' with what it starts under `if __name__ == "__main__":`'
        )
    return sorted({kind.__module__ for kind in in_children})


def die_with(parent: int, lifeline: int) -> None:
    """End this process when `parent` ends; `lifeline` is the reading end of a pipe of the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def run(order: Order) -> Settlement:
    """Run one job to its end, whatever its handler does short of killing the process."""
    context = Context(**order.context, transactions=Transaction)
    attempt = Attempt(context, order.payload, None, 0.0)
    JOB.set(context.job_id)
    try:
        kind = KINDS.get(context.kind)
        if kind is None:
            return failure(attempt, "UnknownKind", f"no class of kind {context.kind!r} in the child", retryable=False)
        try:
            job = decode_payload(kind, order.payload)
        except InvalidJob as error:
            return failure(attempt, "InvalidPayload", str(error), retryable=False)
        return returned(attempt, job.run(context))  # type: ignore[attr-defined] # a CpuBoundJob
    except BaseException as error:  # noqa: BLE001 - sys.exit in a handler fails the job and keeps the child
        return raised(attempt, error)


def main() -> None:
    fd, lifeline, parent, memory = (int(argument) for argument in sys.argv[1:5])
    die_with(parent, lifeline)
    pipe = socket.socket(fileno=fd)
    if memory:  # private writable memory. RLIMIT_AS would count what is only reserved, or mapped from files, too
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = min(memory << 20, hard if hard != resource.RLIM_INFINITY else memory << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # What a handler forks must not keep the pipe open: the worker sees the end of this process by it.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS),  # until it hears them as any process does
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS),
        after_in_child=lambda: _forked(pipe),
    )
    for signal_number in SIGNALS:
        # A terminal or a supervisor signals the whole group; the worker decides when a child stops. A function, and not
        # SIG_IGN, which the programs that a handler starts would inherit.
        signal.signal(signal_number, lambda *_: None)
    with contextlib.suppress(ConnectionError):  # the worker is gone, and nobody left to read
        serve(fd, sys.argv[5:])


def _forked(pipe: socket.socket) -> None:
    """Make a fork of the child an ordinary process: a Pool of multiprocessing is ended by SIGTERM."""
    pipe.close()  # once: in a fork of the fork its number may belong to another file
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def serve(fd: int, modules: list[str]) -> None:
    """Import the modules of the job classes, say so, and run one order after the other."""
    inbox, outbox = open(fd, "rb", closefd=False), open(fd, "wb", closefd=False)  # noqa: SIM115 - for good

    def send(message: bytes) -> None:
        outbox.write(len(message).to_bytes(LENGTH, "big") + message)
        outbox.flush()

    try:
        for module in modules:
            IMPORTING[:] = [module]
            importlib.import_module(module)
        IMPORTING.clear()
    except BaseException as error:  # noqa: BLE001 - the worker reports it
        name, message, _ = describe_exception(error)
        send(msgspec.json.encode(Hello(f"{name}: {message}")))
        return
    send(msgspec.json.encode(Hello()))
    decode, encode = msgspec.json.Decoder(Order).decode, msgspec.json.Encoder().encode
    while size := inbox.read(LENGTH):
        send(encode(run(decode(inbox.read(int.from_bytes(size, "big"))))))
