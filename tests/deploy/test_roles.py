"""Who may migrate, what the roles are good for, and how to be rid of it all, on a server that has never seen it."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from documents import block

pytestmark = pytest.mark.slow  # a server of its own, and many programs
PROGRAM = Path(sys.executable).with_name("scheduler")
WARNING = "scheduler: warning: no roles were created or granted"
OWNER = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'scheduler'"
ROLES = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'scheduler\\_%'"


class Server:
    """The server, one database in it, and accounts; after each test all is gone again."""

    def __init__(self, url, admin):
        self.url, self.admin = urlsplit(url), admin
        self.accounts = []

    def address(self, account=None):
        host = self.url.netloc.rpartition("@")[2]
        netloc = self.url.netloc if account is None else f"{account}:choose one@{host}".replace(" ", "%20")
        return self.url._replace(netloc=netloc, path="/shop").geturl()

    async def account(self, name, rights="", *, owner=False):
        await self.admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'choose one' {rights}")
        if owner:
            await self.admin.execute(f"ALTER DATABASE shop OWNER TO {name}")
        return self.address(name)

    def migrate(self, address):
        done = subprocess.run([PROGRAM, "migrate", "--dsn", address], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def submit(self, address):
        words = [PROGRAM, "submit", "k", "--dsn", address]
        return subprocess.run(words, capture_output=True, text=True, check=False).returncode


@pytest.fixture
async def server(fresh_server):
    admin = await asyncpg.connect(fresh_server)
    await admin.execute("CREATE DATABASE shop")
    yield Server(fresh_server, admin)
    await admin.execute("DROP DATABASE shop WITH (FORCE)")
    for (name,) in await admin.fetch("SELECT rolname FROM pg_roles WHERE oid >= 16384"):
        await admin.execute(f"DROP OWNED BY {name} CASCADE")
        await admin.execute(f"DROP ROLE {name}")
    await admin.close()


@pytest.fixture
async def empty_dsn():
    """Keep `connect` from making a database of its own on the other server."""


async def test_the_owner_of_a_database_without_createrole_owns_everything_and_so_it_stays(server, connect):
    plain = await server.account("plain", owner=True)

    first, again, by_superuser = (server.migrate(address) for address in (plain, plain, server.address()))

    assert [code for code, *_ in (first, again, by_superuser)] == [0, 0, 0]
    assert all(error.startswith(WARNING) and error.count("\n") == 1 for *_, error in (first, again, by_superuser))
    db = await connect(server.address())
    assert await db.fetchval(OWNER) == "plain"
    functions = "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'scheduler'::regnamespace"
    assert [name for (name,) in await db.fetch(functions)] == ["plain"]
    assert server.submit(plain) == 0


async def test_an_account_with_createrole_makes_the_roles_and_may_grant_them(server, connect):
    maker = await server.account("maker", "CREATEROLE", owner=True)
    await server.account("service")

    first, again = server.migrate(maker), server.migrate(maker)

    assert [first[0], first[2], again[0], again[2]] == [0, "", 0, ""]
    db = await connect(maker)
    assert await db.fetchval(OWNER) == "scheduler_owner"
    assert await db.fetchval(ROLES) == 5
    await db.execute("GRANT scheduler_submitter TO service")
    service = await connect(server.address("service"))
    assert await service.fetchval("INSERT INTO scheduler.jobs (kind) VALUES ('k') RETURNING id") == 1


async def test_roles_that_a_superuser_prepared_are_used_by_an_account_that_may_not_create_any(server, connect):
    deployer = await server.account("deployer")
    await server.admin.execute(block("sql", "TO deployer"))

    assert server.migrate(deployer)[::2] == (0, "")
    assert server.migrate(deployer)[::2] == (0, "")

    db = await connect(server.address())
    assert await db.fetchval(OWNER) == "scheduler_owner"


async def test_services_and_workers_get_the_roles_that_the_document_grants(server, connect):
    assert server.migrate(server.address())[0] == 0
    await server.admin.execute(block("sql", "CREATE ROLE shop_worker"))

    assert server.submit(server.address("shop")) == 0
    shop, worker = await connect(server.address("shop")), await connect(server.address("shop_worker"))
    assert (await shop.fetchval("SELECT scheduler.job(1)")) is not None
    claim = "SELECT FROM scheduler.claim(gen_random_uuid(), gen_random_uuid(), '{default}', '{k}', 1, '30 s')"
    await worker.execute(claim)
    for connection, forbidden in (
        (shop, claim),
        (worker, "SELECT payload FROM scheduler.jobs"),
        (worker, "DROP SCHEMA scheduler"),
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(forbidden)


@pytest.mark.parametrize("migrated", [False, True])
async def test_an_account_without_rights_is_refused_in_one_sentence(server, connect, migrated):
    stranger = await server.account("stranger")
    if migrated:
        assert server.migrate(server.address())[0] == 0

    code, out, error = server.migrate(stranger)

    assert (code, out, error.count("\n")) == (4, "", 1)
    assert error.startswith("scheduler: the database refuses: permission denied")
    assert "run it as the owner of the database, or as a member of scheduler_owner" in error
    db = await connect(server.address())
    assert (await db.fetchval(OWNER) is not None) == migrated


async def test_after_uninstalling_nothing_is_left_and_it_can_be_installed_again(server, connect):
    everything = "SELECT count(*) FROM pg_namespace WHERE nspname = 'scheduler'"
    for _ in range(2):
        assert server.migrate(server.address())[::2] == (0, "")
        assert server.submit(server.address()) == 0

        db = await connect(server.address())
        await db.execute(block("sql", "DROP SCHEMA"))
        await db.execute(block("sql", "DROP ROLE"))

        assert await db.fetchval(everything) == 0
        assert await db.fetchval(ROLES) == 0
