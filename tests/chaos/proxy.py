"""A network of one wire: a proxy before whatever server is the primary now. It cuts, goes silent, and loses replies."""

import asyncio
import contextlib
import re
from collections.abc import Callable


class Proxy:
    """Passes on between its client and `target()`, message by message."""

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self._target = target
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._loses: str | None = None
        self.lost = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Break all connections."""
        for end in list(self._ends):
            end.transport.abort()

    def silence(self) -> None:
        """Keep all connections and pass nothing on; what is sent arrives late, after `speak`, or never, after `cut`."""
        self._speaks.clear()

    def speak(self) -> None:
        self._speaks.set()

    def lose_reply_to(self, verb: str | None) -> None:
        """Let the next call of a verb reach the server, but break the connection before its reply arrives."""
        self._loses = verb

    async def close(self) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        there: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._speaks.wait()
            from_there, there = await asyncio.open_connection(*self._target())
            self._ends.add(there)
            conversation = Conversation()
            ways = [self._forth(conversation, reader, there), self._back(conversation, from_there, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for end in (writer, there):
            if end is not None:
                end.transport.abort()
                self._ends.discard(end)

    async def _forth(
        self, conversation: "Conversation", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(await message(reader, typed=False))  # the start-up message
        while True:
            data = await message(reader)
            await self._speaks.wait()
            verb = conversation.verb(data)
            if verb is not None and verb == self._loses:
                self._loses, conversation.loses = None, True
            pass_on(data, writer)

    async def _back(
        self, conversation: "Conversation", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            data = await message(reader)
            await self._speaks.wait()
            if not conversation.loses:
                pass_on(data, writer)
            elif data[:1] == b"Z":  # ready again: what was asked is done, and committed
                self.lost += 1
                return


class Conversation:
    """What one connection has prepared: enough to know which verb a message executes."""

    def __init__(self) -> None:
        self.loses = False
        self._statements: dict[bytes, str] = {}

    def verb(self, data: bytes) -> str | None:
        if data[:1] == b"P":  # parse: a name, and the statement
            name, query = data[5:].split(b"\0", 2)[:2]
            found = re.search(rb"scheduler\.(\w+)\(", query)
            self._statements[name] = found[1].decode() if found else ""
        elif data[:1] == b"B":  # bind: a portal, and the name of a statement
            return self._statements.get(data[5:].split(b"\0", 2)[1])
        return None


def pass_on(data: bytes, writer: asyncio.StreamWriter) -> None:
    if writer.transport.is_closing():
        raise ConnectionResetError
    writer.write(data)


async def message(reader: asyncio.StreamReader, *, typed: bool = True) -> bytes:
    head = await reader.readexactly(5 if typed else 4)
    return head + await reader.readexactly(int.from_bytes(head[-4:], "big") - 4)
