import pytest

from . import steps


@pytest.fixture
async def db(connect):
    """A connection as superuser to a database in which the kind `k` is declared, retried without jitter."""
    connection = await connect()
    await steps.declare(connection, {"kind": "k", "retry_jitter": False})
    return connection
