"""The store says DatabaseUnavailable for whatever an ended session looks like."""

import asyncio
from urllib.parse import urlsplit

import pytest

from scheduler.connections import open_connection
from scheduler.errors import DatabaseUnavailable
from scheduler.store import Store


async def wire_that_hides_the_end(dsn):
    """Make a proxy that passes on all that the server says, but not that it has hung up."""
    address, last_words = urlsplit(dsn), asyncio.Event()

    async def pass_on(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            if b"57P01" in data:  # terminated by an administrator
                last_words.set()

    async def serve(reader, writer):
        there_reader, there_writer = await asyncio.open_connection(address.hostname, address.port)
        back = asyncio.create_task(pass_on(there_reader, writer))
        await pass_on(reader, there_writer)
        await back
        there_writer.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    login, port = address.netloc.rpartition("@")[0], server.sockets[0].getsockname()[1]
    return server, address._replace(netloc=f"{login}@127.0.0.1:{port}", query="sslmode=disable").geturl(), last_words


async def test_a_session_that_was_terminated_is_a_lost_database_before_its_connection_breaks(db, dsn):
    server, address, last_words = await wire_that_hides_the_end(dsn)
    async with server:
        connection = await open_connection(address, name="doomed")
        await db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'")
        await last_words.wait()
        for _ in range(10):  # turns of the loop: the words are in the socket, and the driver reads them
            await asyncio.sleep(0)

        with pytest.raises(DatabaseUnavailable):
            await Store(connection).check_schema()

        connection.terminate()
