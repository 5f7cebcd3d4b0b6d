"""Jobs of schedules, and one schedule that stands beside its job; for workers that are told `--app recurring_jobs`."""

from datetime import timedelta

from scheduler import AsyncJob, BlockingJob, Context, CpuBoundJob, Schedule


class TellTime(AsyncJob):
    async def run(self, ctx: Context):
        return ctx.fire_time and ctx.fire_time.isoformat()


class TellTimeInThread(BlockingJob):
    def run(self, ctx: Context):
        return ctx.fire_time and ctx.fire_time.isoformat()


class TellTimeInProcess(CpuBoundJob):
    def run(self, ctx: Context):
        return ctx.fire_time and ctx.fire_time.isoformat()


class Tick(AsyncJob):
    """Every second, whatever happens to workers; none is left out."""

    async def run(self, ctx: Context):
        return None


Schedule("ticks", Tick(), every=timedelta(seconds=1), overlap="allow", misfire="backfill")
