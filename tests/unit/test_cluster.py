"""The starter with both sets of programs, and with what a crash leaves behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg
import pytest

from scheduler.cluster import Cluster, debian_binaries, wheel_binaries
from scheduler.errors import DatabaseUnavailable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded PostgreSQL needs Linux or macOS")
MAJORS = range(14, 19)


@pytest.fixture(scope="module")
def template():
    """A database created once; copies of it save every test a second."""
    folder = Path(tempfile.mkdtemp(prefix="leasework-"))
    folder.chmod(0o755)
    Cluster(wheel_binaries(), folder / "db", {"fsync": "off"}).initdb()
    yield folder / "db"
    shutil.rmtree(folder)


@pytest.fixture
def start(template):
    """Make servers in a folder any account may enter; each is stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="leasework-"))
    folder.chmod(0o755)
    servers = []

    def start(bin_dir=None, name="db", **settings):
        if bin_dir is None:
            subprocess.run(["cp", "-a", template, folder / name], check=True)
        server = Cluster(bin_dir or wheel_binaries(), folder / name, {"fsync": "off", **settings})
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()
    shutil.rmtree(folder)


async def fetch(server, query):
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.mark.parametrize("major", MAJORS)
async def test_debians_programs_run_as_well(start, major):
    if (bin_dir := debian_binaries(major)) is None:
        pytest.skip(f"Debian's PostgreSQL {major} is not installed")

    server = start(bin_dir)

    assert (await fetch(server, "SHOW server_version")).startswith(f"{major}.")


async def test_the_settings_are_those_given_and_sensible_ones(start):
    server = start(application_name="with 'quotes' and spaces", work_mem="5MB")

    assert await fetch(server, "SHOW work_mem") == "5MB"
    assert await fetch(server, "SHOW application_name") == "with 'quotes' and spaces"
    assert await fetch(server, "SHOW listen_addresses") == "127.0.0.1"
    assert await fetch(server, "SHOW unix_socket_directories") == ""
    assert await fetch(server, "SHOW max_connections") == "200"
    assert await fetch(server, "SHOW server_encoding") == "UTF8"


async def test_what_was_committed_survives_stop_and_kill(start):
    server = start(synchronous_commit="on")
    await fetch(server, "CREATE TABLE kept AS SELECT 7 AS number")

    server.stop()
    assert not server.is_running()
    server.start()
    kill(server)
    server.start()

    assert await fetch(server, "SELECT number FROM kept") == 7


@pytest.mark.slow
async def test_a_stale_pid_file_with_the_number_of_a_living_process_does_not_stop_a_start(start):
    server = start()
    pid_file = server.data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    server.stop()

    for number in (os.getpid(), zombie(), start(name="other")._postmaster()):
        pid_file.write_text("\n".join([str(number), *lines[1:], ""]))
        shutil.chown(pid_file, server.data.stat().st_uid)
        assert not server.is_running()
        server.start()
        assert await fetch(server, "SELECT 42") == 42
        server.stop()


@pytest.mark.parametrize("rubbish", ["", "\0\0\0\0", "-1\n"])
async def test_a_torn_pid_file_does_not_stop_a_start(start, rubbish):
    server = start()
    server.stop()
    (server.data / "postmaster.pid").write_text(rubbish)
    shutil.chown(server.data / "postmaster.pid", server.data.stat().st_uid)

    server.start()

    assert await fetch(server, "SELECT 42") == 42


@pytest.mark.slow
async def test_a_creation_that_was_killed_is_done_again(start):
    server = start()
    server.stop()
    server.data.rename(server.directory / "data-unfinished")  # what a kill -9 during initdb leaves

    server.start()

    assert await fetch(server, "SELECT 42") == 42
    assert [path.name for path in server.directory.glob("data*")] == ["data"]


def test_a_failed_start_shows_the_end_of_the_servers_log(start):
    with pytest.raises(DatabaseUnavailable, match='unrecognized configuration parameter "no_such_setting"'):
        start(no_such_setting="1")


def test_stopping_twice_is_harmless(start):
    server = start()

    server.stop()
    server.stop()

    assert not server.is_running()


def kill(server):
    os.kill(pid := server._postmaster(), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while server._postmaster() == pid:  # the kernel takes a moment
        assert time.monotonic() < deadline
        time.sleep(0.01)


def zombie():
    """A process that ended and that nobody reaps, as in a container; it goes with this one."""
    command = "import os, sys, signal; p = os.fork() or os._exit(0); print(p, flush=True); signal.pause()"
    keeper = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
    KEEPERS.append(keeper)
    return int(keeper.stdout.readline())


KEEPERS = []


@pytest.fixture(autouse=True)
def end_the_keepers():
    yield
    while KEEPERS:
        keeper = KEEPERS.pop()
        keeper.kill()
        keeper.communicate()
