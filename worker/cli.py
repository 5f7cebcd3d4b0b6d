"""The command scheduler-worker: arguments, environment, signals and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import gc
import logging
import os
import pkgutil
import select
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from scheduler import apps, arguments
from scheduler.errors import ConfigurationError, SchedulerError
from scheduler.job import KINDS
from scheduler.options import QUEUES
from scheduler.settings import WorkerSettings
from worker.health import Http, Systemd
from worker.runner import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from worker.transitions import Callback

log = logging.getLogger("scheduler.worker")

FORCED = 7
LAST_STEPS = 5.0  # seconds that a worker may take to end, beyond the grace time
GARBAGE = 20_000  # new objects between two collections of the youngest
LEVELS = ("debug", "info", "warning", "error")
_option = functools.partial(click.option, show_envvar=True)
_preset = functools.partial(_option, show_default=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "SCHEDULER"})
@arguments.dsn_option
@_option("--listen-dsn", help="Where to listen for notices when --dsn goes through a pooler.")
@_option("--app", help="Modules with job classes, separated by commas, as in myservice.jobs.")
@_option("--queues", help="Queues to serve, separated by commas. Default: those of the job classes.")
@_preset("--async", "async_slots", envvar="SCHEDULER_ASYNC", default=100, help="AsyncJobs at once.")
@_preset("--threads", default=10, help="BlockingJobs at once.")
@_preset("--processes", default=2, help="CpuBoundJobs at once.")
@_preset("--child-memory", default=0, help="MB of memory for each process of CpuBoundJobs, on Linux; 0: no limit.")
@_preset("--child-jobs", default=0, help="Jobs after which such a process is replaced; 0: no limit.")
@_preset("--lease", default=30.0, help="Seconds without a renewal after which a job is anyone's.")
@_preset("--grace", default=30.0, help="Seconds that running jobs get when the worker stops.")
@arguments.http_option
@_option("--on-transition", help="Functions to call with each transition of a job, separated by commas, as in"
         " myservice.metrics:count.")  # fmt: skip
@_preset("--log", "level", envvar="SCHEDULER_LOG", default="info", type=click.Choice(LEVELS),
         help="What to log, to stderr.")  # fmt: skip
@click.version_option(package_name="leasework")
def command(  # noqa: PLR0913 - one per option that is no setting
    *, dsn: str | None, listen_dsn: str | None, app: str | None, queues: str | None, http: tuple[str, int] | None,
    on_transition: str | None, level: str, lease: float, grace: float, **numbers: Any,  # noqa: ANN401 - those of WorkerSettings
) -> None:  # fmt: skip
    """Run jobs until SIGTERM or SIGINT.

    The first signal lets running jobs finish for the grace time, the second gives them back at once, the third ends the
    process, as does its failure to end 5 s after the grace time. Exit codes: 0 drained, 2 usage, 3 configuration,
    4 database, 5 schema, 6 jobs were given back, 7 forced.
    """
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        apps.load(app)
        settings = WorkerSettings(
            queues=tuple(name.strip() for name in (queues or "").split(",") if name.strip()),
            lease=_seconds("lease", lease), grace=_seconds("grace", grace), **numbers,
        )  # fmt: skip
        _warn_of_misspelt(settings.queues)
        # A fifth of a busy worker's time went into looking for cycles among modules and short-lived attempts.
        gc.freeze()
        gc.set_threshold(GARBAGE)
        told = list(_functions(on_transition or ""))
        _loop(_serve(Worker(dsn, listen_dsn=listen_dsn, on_transition=told, settings=settings), http))
    except SchedulerError as error:
        click.echo(f"scheduler-worker: {error}", err=True)
        _end(error.exit_code)


def _seconds(option: str, value: float) -> timedelta:
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"--{option} {value}: must be a number of seconds, as in 30") from None


def _warn_of_misspelt(queues: Iterable[str]) -> None:
    """Warn of a queue that is nearly one of the application's: serving it is no error, but it may serve nobody."""
    known = {"default", *QUEUES, *(kind.options.queue or "default" for kind in KINDS.values())}
    words = "no job class of this application is in the queue %r: did you mean %r? If not, declare it: Queue(%r)"
    for queue in set(queues) - known:
        if near := difflib.get_close_matches(queue, known, n=1):
            log.warning(words, queue, near[0], queue)


def _functions(names: str) -> Iterator[Callback]:
    for name in filter(None, map(str.strip, names.split(","))):
        try:
            yield pkgutil.resolve_name(name)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"--on-transition {name}: {words}; name it as module:function") from error


def _end(code: int) -> None:
    """End the process now: a handler that swallows its cancellation, or a thread in C, would keep it for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(code)


class Signals:
    """SIGTERM and SIGINT, counted where a handler that blocks the event loop does not keep them from being heard."""

    def __init__(self, worker: Worker, told: Callable[[], None]) -> None:
        self._worker = worker
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._stops: list[asyncio.Task[int]] = []
        self._count = 0
        reading, self._writing = os.pipe()  # a thread, or a lock, is nothing for a signal handler
        grace = worker.settings.grace.total_seconds()
        threading.Thread(target=_force, args=(reading, grace), name="scheduler-signals", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)

    def _heard(self, *_: object) -> None:
        self._count += 1
        if self._count > 2:
            os._exit(FORCED)
        os.write(self._writing, b"!")
        self._loop.call_soon_threadsafe(self._stop, self._count > 1)

    def _stop(self, again: bool) -> None:  # noqa: FBT001 - a callback
        log.info("stopping: %s", "jobs are given back" if again else "running jobs may finish; again to give them back")
        self._stops.append(asyncio.create_task(self._worker.stop(cancel_running=again)))
        self._loop.call_soon(self._told)


def _force(signals: int, grace: float) -> None:
    """End the process some time after the first signal, or after the second: whatever keeps the event loop from it."""
    os.read(signals, 1)
    if select.select([signals], [], [], grace + LAST_STEPS)[0]:
        time.sleep(LAST_STEPS)
    os.write(2, b"scheduler-worker: it does not stop: it is ended, and its jobs come back when their leases lapse\n")
    os._exit(FORCED)


async def _serve(worker: Worker, http: tuple[str, int] | None) -> None:
    systemd = Systemd(lambda: worker.health)
    if http:
        await Http(lambda: worker.health).serve(*http)
    Signals(
        worker, systemd.tell
    )  # right before the start: one that comes sooner ends the process, as nothing has begun
    telling = asyncio.create_task(systemd.keep_telling())
    code = await worker.run()
    telling.cancel()
    _end(code)  # here, inside the loop: its end would wait for every task


def _loop(main: Coroutine[None, None, None]) -> None:
    """Run `main` to its end. sys.exit() in a task that a handler has made leaves the loop, and ends that task alone."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):  # absent on some platforms
        import uvloop  # noqa: PLC0415

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        task = runner.get_loop().create_task(main)
        while not task.done():
            try:
                runner.get_loop().run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done():
                    raise
                log.warning("a task of a handler raised %s; the worker goes on", type(error).__name__)


def main() -> None:
    command.main(prog_name="scheduler-worker")
