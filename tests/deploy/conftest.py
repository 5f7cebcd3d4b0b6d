"""A real PgBouncer in transaction mode, a server of its own where roles matter, and the workers of tests/worker."""

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from scheduler.cluster import Cluster, wheel_binaries

WORKER_TESTS = Path(__file__).parents[1] / "worker"
sys.path.append(str(WORKER_TESTS))
_spec = importlib.util.spec_from_file_location("worker_fixtures", WORKER_TESTS / "conftest.py")
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)
scheduler, gate, work, launch = _fixtures.scheduler, _fixtures.gate, _fixtures.work, _fixtures.launch

POOL = 2  # connections to the server, for each database
CONFIGURATION = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 1000
"""


class PgBouncer:
    """One PgBouncer before one server; what it is not told here is its default."""

    def __init__(self, server_dsn, folder):
        self.server = urlsplit(server_dsn)
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "users").write_text(f'"{unquote(self.server.username)}" "{unquote(self.server.password or "")}"\n')
        host, port = self.server.hostname, self.server.port or 5432
        configuration = CONFIGURATION.format(host=host, port=port, listen=self.port, folder=folder, pool=POOL)
        (folder / "pgbouncer.ini").write_text(configuration)
        for path in folder.iterdir():
            path.chmod(0o644)

    def start(self):
        account = {}
        if os.geteuid() == 0:  # it refuses root
            nobody = pwd.getpwnam("nobody")
            account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with (self.folder / "log").open("ab") as log:
            words = [shutil.which("pgbouncer"), str(self.folder / "pgbouncer.ini")]
            self.process = subprocess.Popen(words, cwd="/", stdout=log, stderr=log, **account)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return

    def kill(self):
        self.process.kill()
        self.process.wait()

    def address(self, dsn):
        """Return the way through this PgBouncer to a database of its server."""
        parts = urlsplit(dsn)
        login = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{login}@127.0.0.1:{self.port}", query="").geturl()


@pytest.fixture(scope="session")
def pgbouncer(server_dsn):
    os.environ["PATH"] += ":/usr/sbin"
    if shutil.which("pgbouncer") is None:
        pytest.skip("PgBouncer is not installed (on Debian: apt-get install pgbouncer)")
    folder = Path(tempfile.mkdtemp(prefix="leasework-pgbouncer-"))
    folder.chmod(0o755)
    bouncer = PgBouncer(server_dsn, folder)
    bouncer.start()
    yield bouncer
    bouncer.kill()
    shutil.rmtree(folder)


@pytest.fixture
def pooled_dsn(pgbouncer, dsn):
    """The address of this test's database behind PgBouncer."""
    if pgbouncer.process.poll() is not None:
        pgbouncer.start()
    return pgbouncer.address(dsn)


@pytest.fixture(scope="module")
def fresh_server():
    """The address of a superuser on a server that nobody has used: no role of the scheduler is there."""
    folder = Path(tempfile.mkdtemp(prefix="leasework-tests-"))
    folder.chmod(0o755)
    server = Cluster(wheel_binaries(), folder / "server", {"fsync": "off"})
    try:
        server.start()
        yield server.url
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
