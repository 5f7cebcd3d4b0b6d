"""The kinds that the examples submit, for a Python worker."""

from scheduler import AsyncJob, Context


class SendReceipt(AsyncJob, kind="send_receipt"):
    order: str

    async def run(self, ctx: Context) -> str:
        return f"receipt of order {self.order}"


class AskForReview(AsyncJob, kind="ask_for_review"):
    order: str

    async def run(self, ctx: Context) -> None: ...
