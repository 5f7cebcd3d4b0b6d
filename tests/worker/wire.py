"""A proxy before PostgreSQL that reads along: it counts calls of verbs and connections, can lose a reply, and can go
silent, or swallow what its connections say while new ones pass.
"""

import asyncio
import re
from collections import Counter
from urllib.parse import urlsplit

from witness import until


class Wire:
    """Speaks enough of the protocol to know which verb a message executes."""

    def __init__(self, dsn):
        self._target = urlsplit(dsn)
        self._connections = {}  # the writers of both ends, by connection
        self._tasks = set()
        self._heard = asyncio.Event()
        self._heard.set()
        self.calls = Counter()
        self.asked = 0  # connections, refused ones too
        self.refuses = False  # or True, or the fields of an error of PostgreSQL
        self._loses = self._swallows = None
        self.lost = 0
        self._holds = None
        self._let_go = asyncio.Event()

    async def open(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        login = self._target.netloc.rpartition("@")[0]
        self.dsn = self._target._replace(netloc=f"{login}@{host}:{port}", query="sslmode=disable").geturl()
        return self

    def lose_reply_to(self, verb):
        """Let the next call of a verb reach PostgreSQL, but not its reply: that connection breaks instead."""
        self._loses = verb

    def hold_reply_with(self, words):
        """Keep back the next reply that contains these words, and whatever follows on its connection."""
        self._holds = words.encode()

    def let_go(self):
        self._let_go.set()

    def cut(self):
        """Break all connections."""
        for ends in list(self._connections.values()):
            for end in ends:
                end.transport.abort()

    def go_silent(self):
        """Keep all connections, and pass nothing on any more."""
        self._heard.clear()

    def swallow(self):
        """Let the connections there are stay open, and pass nothing on them ever again; new ones work."""
        for connection in self._connections:
            connection.swallowed = True

    def swallow_at(self, verb):
        """Swallow the next call of a verb, and all that is said on its connection after it."""
        self._swallows = verb

    def speak_again(self):
        self._heard.set()

    async def close(self):
        self._server.close()
        self.speak_again()
        self.let_go()
        self.cut()
        await until(lambda: not self._tasks, "the proxy's connections should have ended")
        await self._server.wait_closed()

    def _accept(self, reader, writer):
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader, writer):
        self.asked += 1
        if self.refuses:
            if self.refuses is not True:
                writer.write(b"E" + (len(self.refuses) + 4).to_bytes(4, "big") + self.refuses)
                await asyncio.sleep(0.05)  # until it is read
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        connection = _Connection()
        self._connections[connection] = writer, there_writer
        try:
            await asyncio.gather(
                self._forth(connection, reader, there_writer), self._back(connection, there_reader, writer)
            )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            del self._connections[connection]
            writer.transport.abort()
            there_writer.transport.abort()

    async def _forth(self, connection, reader, writer):
        writer.write(await _message(reader, typed=False))  # the start-up message
        while True:
            message = await _message(reader)
            await self._heard.wait()
            if connection.swallowed:
                continue
            verb = connection.verb(message)
            if verb:
                self.calls[verb] += 1
                if verb == self._swallows:
                    self._swallows, connection.swallowed = None, True
                    continue
                if verb == self._loses:
                    self._loses, connection.loses = None, True
            writer.write(message)

    async def _back(self, connection, reader, writer):
        while True:
            message = await _message(reader)
            await self._heard.wait()
            if self._holds and self._holds in message:
                self._holds = None
                await self._let_go.wait()
            if connection.swallowed:
                continue
            if not connection.loses:
                writer.write(message)
            elif message[:1] == b"Z":  # it is done, and committed
                self.lost += 1
                raise ConnectionResetError


class _Connection:
    def __init__(self):
        self.loses = self.swallowed = False
        self._statements = {}

    def verb(self, message):
        """Return the verb that a message executes, or COMMIT, `?` for another statement, None for another message."""
        kind, body = message[:1], message[5:]
        if kind == b"P":  # parse: remember what the statement calls
            name, query = body.split(b"\0", 2)[:2]
            found = re.search(rb"scheduler\.(\w+)\(", query)
            self._statements[name] = found[1].decode() if found else "?"
        elif kind == b"B":  # bind: it is about to be executed
            return self._statements.get(body.split(b"\0", 2)[1], "?")
        elif kind == b"Q":
            return "COMMIT" if body.startswith(b"COMMIT") else "?"
        return None


async def _message(reader, *, typed=True):
    head = await reader.readexactly(5 if typed else 4)
    return head + await reader.readexactly(int.from_bytes(head[-4:], "big") - 4)
