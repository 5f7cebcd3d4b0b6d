"""The job classes that these tests submit."""

import asyncio
from typing import Any

from scheduler import AsyncJob, Context


class Note(AsyncJob, kind="client_note"):
    text: Any = ""

    async def run(self, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return self.text
