import secrets
from urllib.parse import quote, urlsplit

import pytest

from . import steps


@pytest.fixture
async def db(connect):
    """A connection as superuser to a database in which the kind `k` is declared, retried without jitter."""
    connection = await connect()
    await steps.declare(connection, {"kind": "k", "retry_jitter": False})
    return connection


@pytest.fixture
async def login(db, connect, dsn):
    """Make connections of login roles that may do what the given role of the scheduler may, and nothing else."""
    names = []

    async def login(role):
        names.append(f"leasework_test_{secrets.token_hex(6)}")
        await db.execute(f"CREATE ROLE {names[-1]} LOGIN PASSWORD 'x' IN ROLE {role}")
        address = urlsplit(dsn)
        host = address.netloc.rpartition("@")[2]
        return await connect(address._replace(netloc=f"{quote(names[-1])}:x@{host}").geturl())

    yield login
    for name in names:
        await db.execute(f"DROP ROLE {name}")
