"""A real PgBouncer in transaction mode, a server of its own where roles matter, and the workers of tests/worker."""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from bouncer import PgBouncer

from scheduler.cluster import Cluster, wheel_binaries

WORKER_TESTS = Path(__file__).parents[1] / "worker"
sys.path.append(str(WORKER_TESTS))
_spec = importlib.util.spec_from_file_location("worker_fixtures", WORKER_TESTS / "conftest.py")
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)
scheduler, gate, work, launch = _fixtures.scheduler, _fixtures.gate, _fixtures.work, _fixtures.launch


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
