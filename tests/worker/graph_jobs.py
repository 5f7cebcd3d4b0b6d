"""Job classes of graphs: they tell what they see of their parents, wait where they should not, and fan out."""

from scheduler import AsyncJob, BlockingJob, Context, CpuBoundJob, NonRetryableError, Scheduler, SyncScheduler


def seen(ctx):
    return [[parent.id, parent.name, parent.status, parent.result, parent.error] for parent in ctx.parents.values()]


class Value(AsyncJob):
    value: object = None

    async def run(self, ctx: Context) -> object:
        return self.value


class Fails(AsyncJob):
    async def run(self, ctx: Context) -> None:
        raise NonRetryableError("on purpose")


class Sees(AsyncJob):
    async def run(self, ctx: Context) -> object:
        return seen(ctx)


class SeesInThread(BlockingJob):
    def run(self, ctx: Context) -> object:
        return seen(ctx)


class SeesInChild(CpuBoundJob):
    def run(self, ctx: Context) -> object:
        return seen(ctx)


class SeesByName(AsyncJob):
    async def run(self, ctx: Context) -> object:
        return ctx.parents["left"].result + ctx.parents["right"].result


class WaitsFor(AsyncJob):
    """Submits a job and waits for it, which holds a slot."""

    dsn: str
    how: str = "result"

    async def run(self, ctx: Context) -> object:
        async with Scheduler.connect(self.dsn) as scheduler:
            child = await scheduler.submit(Value(1))
            return await (child.result() if self.how == "result" else scheduler.wait([child]))


class WaitsForInThread(BlockingJob):
    dsn: str

    def run(self, ctx: Context) -> object:
        with SyncScheduler.connect(self.dsn) as scheduler:
            return scheduler.submit(Value(1)).result()


class WaitsForInChild(CpuBoundJob):
    dsn: str

    def run(self, ctx: Context) -> object:
        with SyncScheduler.connect(self.dsn) as scheduler:
            return scheduler.submit(Value(1)).result()


class FansOut(AsyncJob):
    """A member that adds members, once its batch is closed."""

    dsn: str
    batch: int
    depth: int

    async def run(self, ctx: Context) -> int:
        if self.depth:
            async with Scheduler.connect(self.dsn, connections=1) as scheduler:
                more = FansOut(self.dsn, self.batch, self.depth - 1)
                await scheduler.submit_many([more, more], member_of=self.batch)
        return 1


class Sum(AsyncJob):
    async def run(self, ctx: Context) -> int:
        return sum(parent.result for parent in ctx.parents.values())


class CountPages(AsyncJob):
    """Reads its parents page by page, as they are too large for a claim."""

    dsn: str

    async def run(self, ctx: Context) -> object:
        try:
            return len(ctx.parents)
        except Exception as error:
            async with Scheduler.connect(self.dsn, connections=1) as scheduler:
                total, pages, last = 0, 0, 0
                while page := await scheduler.parents(ctx.job_id, after=last):
                    total, pages, last = total + len(page), pages + 1, page[-1].id
            return [type(error).__name__, total, pages]
