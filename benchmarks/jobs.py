"""A job that does nothing: what is measured is the scheduler."""

from scheduler import AsyncJob, Context


class Noop(AsyncJob, kind="noop"):
    n: int

    async def run(self, ctx: Context) -> None:
        pass
