"""The worker: which parts it has, who owns what, and the order in which they start and stop.

One thread, that of the event loop, owns everything that decides: slots, attempts, outcomes. Between a check and its act
there is no await, so there is no lock. Two others hand things over with call_soon_threadsafe: the keeper's thread (lost
leases, cancellations; it also notes renewals) and the threads of BlockingJobs (how they ended). Children speak through
the loop's own I/O; the thread of the callbacks is told, and says nothing.

Start: database, schema, declaration, executors, keeper, loops, and claims last. Stop: claims first, then attempts (they
finish, or are stopped and given back), then the outbox, then the loops, and the keeper's renewals last of all.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from scheduler.connections import open_pool, reach
from scheduler.job import KINDS
from scheduler.settings import WorkerSettings, dsn_from
from worker.attempt import Leases, now
from worker.callbacks import Callbacks
from worker.child import child_modules
from worker.claimer import Claimer, Doze
from worker.duties import Firer, Resolver, promote, reap, retain
from worker.executors import AsyncExecutor, Executor, ThreadExecutor
from worker.health import Health, judge
from worker.keeper import BEAT, Keeper
from worker.listener import listen
from worker.loops import STEP, Loop, Steps
from worker.presence import declare, process_facts
from worker.processes import ProcessExecutor
from worker.running import Running
from worker.settler import Settler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scheduler.connections import Pool
    from scheduler.embedded import Held
    from scheduler.job import Job
    from worker.executors import Ended
    from worker.transitions import Callback

log = logging.getLogger("scheduler.worker")

LIST = 1.0  # seconds between looks whether the list of workers is right
CONNECTIONS = 4  # shared by claims, settler and duties; the keeper and the listener have their own


class Worker:
    """Runs jobs of one database in this process: `async with Worker(dsn): ...`, or `await worker.run()`.

    `kinds`: the job classes to run; all that are imported by default. `on_transition`: one function or several, called
    in a thread of their own with each Transition that this worker makes. Other settings: see WorkerSettings.
    Raises ConfigurationError, DatabaseUnavailable or SchemaMismatch when it starts.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        kinds: Iterable[type[Job]] | None = None,
        listen_dsn: str | None = None,
        on_transition: Callback | Iterable[Callback] = (),
        settings: WorkerSettings | None = None,
        **numbers: Any,  # noqa: ANN401 - the fields of WorkerSettings
    ) -> None:
        self.id = uuid4()
        self.settings = settings or WorkerSettings(**numbers)
        self._dsn = dsn_from(dsn)
        self._listen_dsn = listen_dsn and dsn_from(listen_dsn)
        self._kinds = {kind.options.kind: kind for kind in (KINDS.values() if kinds is None else kinds)}
        self._queues = self.settings.queues or tuple(
            sorted({"default", *(kind.options.queue or "default" for kind in self._kinds.values())})
        )
        self._held: Held | None = None
        self._starting: asyncio.Task[Worker] | None = None
        self._stopping: asyncio.Task[int] | None = None
        self._pool: Pool | None = None
        self._hurry = False  # no grace any more
        self._begun = now()
        self._stopped_at: float | None = None
        self._claimers: list[Claimer] = []
        self._tasks: list[asyncio.Task[None]] = []  # none until it has started
        self._steps = Steps()
        self._leases = Leases()
        self.callbacks = Callbacks(on_transition)
        self.executors: list[Executor] = []
        self._who = process_facts()
        self._listed: object = None  # what the list of workers says of this one, and since when

    @property
    def peak_running(self) -> dict[str, int]:
        """The most attempts that ran at once, per executor."""
        return {executor.name: executor.slots.peak for executor in self.executors}

    @property
    def health(self) -> Health:
        """Tell whether claims succeed: half a lease without an answer is bad health, and so is the way to the end."""
        return judge(
            self._claimers if self._tasks else None, len(self._leases), begun=self._begun, stopping=self._stopped_at,
            patience=self.settings.lease.total_seconds() / 2,
        )  # fmt: skip

    # Starting.

    async def start(self) -> Worker:
        modules = child_modules(self._kinds.values(), self.settings.processes)
        try:
            self._held = await reach(self._dsn)
            self._pool = await open_pool(self._held.url, size=CONNECTIONS, name="scheduler-worker")
            self._store = self.callbacks.store(self._pool, self.id, self._leases)
            await self._store.check_schema()
            await declare(self._store, self._kinds)
            self._assemble(self._held.url, modules)
            await self._register()
        except BaseException:
            await self._close_connections()
            raise
        self.callbacks.start()
        self._keeper.start()
        self._tasks = [asyncio.create_task(loop.run(), name=loop.name) for loop in self._loops]
        log.info("worker %s runs %d kinds from %s", self.id, len(self._kinds), ", ".join(self._queues))
        return self

    def _assemble(self, dsn: str, modules: list[str]) -> None:
        settings, store, leases, found = self.settings, self._store, self._leases, self._poke_claims
        poll = settings.poll.total_seconds()
        self._channel = f"scheduler_{self.id.hex}"
        self._resolver = Resolver(store, found)
        self._promoting = Loop("promote", partial(promote, store, poll, found))
        self._settler = Settler(store, self.id, leases, self._resolver.add, self._promoting.poke)
        self._listing = Loop("list", self._register)
        self._running = Running(self.id.hex, self._kinds, leases, self._settler)
        self._keeper = Keeper(
            dsn, self.id, settings.lease, settings.heartbeat, leases, self._running.lost, self._running.cancel
        )
        self._claimers = list(self._ways_to_run(modules, Doze(store, self.id, poll, found)))
        self._loops = [
            self._settler.loop, self._resolver.loop, self._promoting, self._listing,
            Loop("reap", partial(reap, store, settings.lease, self._resolver.add)),
            Loop("fire", Firer(store, poll, found).fire),
            Loop("retain", partial(retain, store)),
            Loop("listen", partial(listen, self._listen_dsn or dsn, self._channel, self._noticed)),
            *(claimer.loop for claimer in self._claimers),
        ]  # fmt: skip

    def _ways_to_run(self, modules: list[str], doze: Doze) -> Iterator[Claimer]:
        """Make each executor that has both slots and kinds, and what claims for it."""
        settings = self.settings
        children = partial(
            ProcessExecutor, modules=modules, memory=settings.child_memory, most_jobs=settings.child_jobs
        )
        ways: dict[str, tuple[int, Callable[[int, Ended], Executor]]] = {
            "async": (settings.async_slots, AsyncExecutor),
            "thread": (settings.threads, ThreadExecutor),
            "process": (settings.processes, children),
        }
        for way, (slots, make) in ways.items():
            kinds = [name for name, kind in self._kinds.items() if kind.options.executor == way]
            if slots and kinds:
                self.executors.append(make(slots, self._running.ended))
                yield Claimer(
                    self._store, self.id, self.executors[-1], list(self._queues), kinds, settings.lease, doze,
                    self._running.begin, self._settler.__len__, self._promoting.poke_in,
                )  # fmt: skip

    async def _register(self) -> float:
        facts = self._who | {
            "queues": self._queues,
            "kinds": sorted(self._kinds),
            "slots": {executor.name: executor.slots.total for executor in self.executors},
            "channel": self._channel,
            "draining": self._stopping is not None,
            "abandoned": sum(len(executor.abandoned) for executor in self.executors),
        }
        listed = facts, now() // BEAT  # again and again: it may have been struck off, or lost in a failover
        if listed != self._listed:
            await self._store.register(self.id, facts)
            self._listed = listed
        return LIST

    # Pokes.

    def _poke_claims(self) -> None:
        for claimer in self._claimers:
            claimer.loop.poke()

    def _noticed(self, payload: str) -> None:
        if payload == "cancel":
            self._keeper.poke()
            return
        self._promoting.poke()
        self._poke_claims()

    # Stopping.

    async def stop(self, *, cancel_running: bool = False) -> int:
        """Stop: claim nothing more, let attempts finish for the grace time, give back what is left.

        Returns the exit code: 0 drained, 6 something was given back. With `cancel_running` there is no grace; calling
        it so while a first stop waits ends the waiting.
        """
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            return 0
        if self._stopping is None:
            self._stopped_at = now()
            self._stopping = asyncio.create_task(self._stop())
        if cancel_running:
            self._hurry = True
            self._running.release_all()
        return await asyncio.shield(self._stopping)

    async def _stop(self) -> int:
        grace_ends = now() + self.settings.grace.total_seconds()
        for claimer in self._claimers:
            claimer.stop()
        self._listing.stop()
        # A claim under way is started if its answer comes soon; if not, its jobs come back when their lease lapses.
        ending = [task for task in self._tasks if task.get_name() in {"claim", "list"}]
        await self._steps.take(asyncio.wait(ending))
        for task in ending:
            task.cancel()
        await self._steps.take(self._register())
        drained = await self._running.wait(grace_ends - now())
        if not drained:
            self._running.release_all()
            if not await self._running.wait(STEP):
                self._running.give_up()
        await self._flush(grace_ends)
        left = len(self._settler)
        if left:
            log.warning("%d outcomes could not be recorded: these jobs run again when their leases lapse", left)
        await self._close()
        return 6 if self._running.gave_back or left else 0

    async def _flush(self, grace_ends: float) -> None:
        """Wait until the outbox is empty: while there is grace, and for as long as it gets shorter."""
        left, since = len(self._settler), now()
        self._settler.loop.poke()
        while left and now() < max(since + STEP, 0 if self._hurry else grace_ends):
            await asyncio.sleep(0.01)
            if len(self._settler) < left:
                left, since = len(self._settler), now()

    async def _close(self) -> None:
        self._running.close()
        for loop in self._loops:
            loop.stop()
        for task in self._tasks:
            task.cancel()
        await self._steps.take(asyncio.wait(self._tasks))
        for executor in self.executors:
            await executor.close()
        await self._keeper.stop()
        await self.callbacks.close()
        await self._steps.take(self._store.deregister(self.id))
        await self._close_connections()

    async def _close_connections(self) -> None:
        if self._pool is not None:
            if not self._steps.silent:
                await self._steps.take(self._pool.close())
            self._pool.terminate()
        if self._held is not None:
            self._held.close()

    async def run(self) -> int:
        """Start, and return the exit code once something has called stop."""
        self._starting = asyncio.create_task(self.start())
        try:
            await self._starting
        except asyncio.CancelledError:
            if self._starting.cancelled():
                return 0
            raise
        while self._stopping is None:  # noqa: ASYNC110 - a flag of the same loop, looked at without hurry
            await asyncio.sleep(0.05)
        return await asyncio.shield(self._stopping)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self.stop(cancel_running=error is not None)
