"""A worker tells how it does: by HTTP, by a command, and to systemd. Good health is only where claims succeed."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from wire import Wire
from witness import asleep, ended, insert, until

SCHEDULER = Path(sys.executable).with_name("scheduler")


@pytest.fixture
async def wire(dsn):
    wire = await Wire(dsn).open()
    yield wire
    await wire.close()


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def ask(address, request="GET /health HTTP/1.1\r\nHost: here\r\n\r\n"):
    """Return status, headers and body of the answer; None when there is none."""
    try:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(request if isinstance(request, bytes) else request.encode())
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
    except OSError:
        return None
    if not answer:
        return None
    head, body = answer.split(b"\r\n\r\n", 1)
    return int(head.split()[1]), head.decode(), body


async def state(address):
    answer = await ask(address)
    return answer and json.loads(answer[2])["state"]


async def is_in(address, expected):
    async def reached():
        return await state(address) == expected

    await until(reached, f"the worker should be {expected}")


def unblock(gate):
    Path(f"{gate.path}.pipe").write_text("go on")


def command(address):
    environment = {**os.environ, "SCHEDULER_HTTP": address}
    return subprocess.run([SCHEDULER, "health"], env=environment, capture_output=True, text=True, check=False)


async def test_a_worker_is_in_good_health_while_its_claims_succeed(db, launch, address):
    launch(http=address)
    await is_in(address, "running")

    status, head, body = await ask(address)

    assert status == 200
    assert "application/json" in head
    assert json.loads(body).keys() == {"state", "words", "since", "running"}
    assert re.fullmatch(r"running since [\d-]+ [\d:]+ UTC: claims succeed; 0 jobs run", json.loads(body)["words"])
    assert (await ask(address, "HEAD /health HTTP/1.1\r\n\r\n"))[2] == b""
    assert (await ask(address, "GET /live HTTP/1.0\r\n\r\n"))[0] == 200
    done = command(address)
    assert (done.returncode, done.stderr) == (0, "")
    assert "claims succeed" in done.stdout


@pytest.mark.parametrize("database", ["refusing", "silent"])
@pytest.mark.slow
async def test_b18_an_outage_is_bad_health_until_it_is_over_and_no_reason_to_end(db, wire, launch, address, database):
    process = launch(address=wire.dsn, http=address, lease=6)
    await is_in(address, "running")

    if database == "silent":
        wire.go_silent()
    else:
        wire.refuses = True
        wire.cut()
    await is_in(address, "failing")

    assert (await ask(address))[0] == 503
    assert (await ask(address, "GET /live HTTP/1.1\r\n\r\n"))[0] == 200
    done = await asyncio.to_thread(command, address)
    assert (done.returncode, "claims are not answered" in done.stdout) == (1, True)
    wire.refuses = False
    wire.speak_again()
    await is_in(address, "running")
    assert process.popen.poll() is None
    assert (await ended(db, await insert(db, "Echo")))["attempt"] == 1


async def test_claims_that_are_refused_are_bad_health(db, launch, address):
    launch(http=address, lease=3)
    await is_in(address, "running")

    await db.execute("ALTER TABLE scheduler.jobs_active RENAME TO away")
    await is_in(address, "failing")
    await db.execute("ALTER TABLE scheduler.away RENAME TO jobs_active")

    await is_in(address, "running")


async def test_claims_that_are_refused_are_bad_health_though_the_database_can_be_read(db, launch, address):
    name = await db.fetchval("SELECT current_database()")
    launch(http=address, lease=3)
    await is_in(address, "running")

    await db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await terminate_workers(db)
    job_id = await insert(db, "Echo")  # this connection is older; a claim that finds nothing writes nothing
    await is_in(address, "failing")
    await db.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await terminate_workers(db)

    assert (await ended(db, job_id))["attempt"] == 1
    await is_in(address, "running")


async def terminate_workers(db):
    ours = "application_name LIKE 'scheduler-worker%' AND datname = current_database()"
    await db.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")


async def test_a_worker_without_slots_is_in_good_health(db, launch, address):
    launch(http=address, **{"async": 0, "threads": 0, "processes": 0})

    await is_in(address, "running")

    assert (await ask(address))[0] == 200
    assert b"it has no slots" in (await ask(address))[2]


async def test_a_worker_that_is_full_is_in_good_health(db, launch, gate, address):
    gate = gate()
    launch(http=address, lease=2, **{"async": 1, "threads": 0, "processes": 0})
    await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    begun = asyncio.get_running_loop().time()

    async def longer_than_patience():
        assert await state(address) == "running"
        return asyncio.get_running_loop().time() > begun + 2

    await until(longer_than_patience, "it should stay in good health")


async def test_a_worker_that_is_told_to_stop_says_so(db, launch, gate, address):
    gate, process = gate(), launch(http=address, grace=60)
    await insert(db, "Wait", {"path": gate.path})
    await gate.begun()

    process.send(signal.SIGTERM)
    await is_in(address, "draining")

    assert (await ask(address))[0] == 503
    assert command(address).returncode == 1
    gate.open()
    assert await process.exits() == 0


async def test_a_worker_that_waits_in_its_start_is_not_in_good_health(db, connect, launch, address):
    blocker = await connect()
    async with blocker.transaction():
        await blocker.execute("LOCK TABLE scheduler.kinds")
        launch(http=address)

        await is_in(address, "starting")

        assert (await ask(address))[0] == 503
    await is_in(address, "running")


async def test_nobody_is_answered_while_the_event_loop_is_blocked(db, launch, gate, address):
    gate = gate()
    os.mkfifo(f"{gate.path}.pipe")
    launch(http=address)
    await is_in(address, "running")
    await insert(db, "BlockTheLoop", {"path": gate.path})
    await gate.begun()

    done = await asyncio.to_thread(command, address)  # which waits for 5 s

    assert done.returncode == 1
    assert "no worker answers" in done.stderr
    unblock(gate)
    await is_in(address, "running")


def test_the_command_says_when_there_is_no_worker(address):
    done = command(address)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"scheduler: no worker answers at {address} (")
    assert "\n" not in done.stderr.strip()


def test_the_command_says_when_no_worker_is_named():
    done = command("")

    assert done.returncode == 3
    assert "SCHEDULER_HTTP" in done.stderr


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("GET /healthy HTTP/1.1\r\n\r\n", 404),
        ("POST /health HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 404),
        ("GET /health?full=1 HTTP/1.1\r\n\r\n", 200),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 404),
        (b"\0" * 5000 + b"\r\n\r\n", 404),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", None),
        (b"x" * 1_000_000, None),
    ],
)
async def test_whatever_is_asked_the_worker_goes_on(db, launch, address, request_, status):
    process = launch(http=address)
    await is_in(address, "running")

    answer = await ask(address, request_)

    assert (answer and answer[0]) == status
    assert (await ended(db, await insert(db, "Echo")))["status"] == "COMPLETED"
    assert await state(address) == "running"
    assert "Traceback" not in process.log


def open_files(pid):
    return list(Path(f"/proc/{pid}/fd").iterdir())


async def test_slow_clients_are_turned_away_and_take_no_place_for_long(db, launch, address):
    process = launch(http=address)
    await is_in(address, "running")
    slow = [await asyncio.open_connection(*address.split(":")) for _ in range(300)]
    for _, writer in slow:
        writer.write(b"GET /health HTTP/1.1\r\n")

    job = await ended(db, await insert(db, "Echo"))
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(reader.read() for reader, _ in slow), return_exceptions=True)

    assert job["status"] == "COMPLETED"
    assert {answer for answer in answers if not isinstance(answer, ConnectionError)} <= {b""}
    await is_in(address, "running")
    assert len(open_files(process.pid)) < 100
    assert "Traceback" not in process.log
    for _, writer in slow:
        writer.close()


@pytest.mark.parametrize("wrong", ["9420", "127.0.0.1:", ":9420", "127.0.0.1:99999", "http://127.0.0.1:9420"])
async def test_an_address_that_is_none_is_refused(launch, wrong):
    process = launch(http=wrong)

    assert await process.exits() == 2
    assert "must be host:port, as in 127.0.0.1:9420" in process.log


@pytest.mark.parametrize("host", ["a..b", "x" * 300])
async def test_a_name_that_is_no_hosts_is_refused(launch, host):
    process = launch(http=f"{host}:9420")

    assert await process.exits() == 3
    assert process.log.startswith("scheduler-worker: --http ")


async def test_a_port_that_is_taken_is_refused(launch, address):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", int(address.split(":")[1])))
        holder.listen()
        process = launch(http=address)

        assert await process.exits() == 3
    assert f"--http {address}: " in process.log


class Supervisor:
    """The end of NOTIFY_SOCKET at which systemd listens."""

    def __init__(self, address):
        self.environment = {"NOTIFY_SOCKET": address.replace("\0", "@", 1)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(address)
        self.messages = []

    def heard(self, line):
        """Tell whether a line has been heard, now or before; what STATUS= says may be part of it."""
        try:
            while True:
                self.messages += self._socket.recv(4096).decode().split("\n")
        except BlockingIOError:
            return any(message.startswith(line) for message in self.messages)

    def close(self):
        self._socket.close()


@pytest.fixture(params=["a file", "abstract"])
def supervisor(request, tmp_path):
    address = (
        str(tmp_path / "notify") if request.param == "a file" else f"\0leasework-test-{os.getpid()}-{id(tmp_path)}"
    )
    supervisor = Supervisor(address)
    yield supervisor
    supervisor.close()


async def test_systemd_is_told_of_the_start_the_work_and_the_end(db, connect, launch, gate, supervisor):
    gate, blocker = gate(), await connect()
    async with blocker.transaction():
        await blocker.execute("LOCK TABLE scheduler.kinds")
        process = launch(environment={**supervisor.environment, "WATCHDOG_USEC": "1000000"}, grace=60)
        await until(lambda: supervisor.heard("STATUS=starting"), "the start should be told")
        await until(lambda: supervisor.heard("WATCHDOG=1"), "the watchdog should be told")
        assert not supervisor.heard("READY=1")

    await until(lambda: supervisor.heard("READY=1"), "it should be ready")
    assert (await ended(db, await insert(db, "Echo")))["status"] == "COMPLETED"
    await insert(db, "Wait", {"path": gate.path})
    await gate.begun()
    process.send(signal.SIGTERM)
    await until(lambda: supervisor.heard("STOPPING=1"), "the end should be told")
    await until(lambda: supervisor.heard("STATUS=draining"), "the state should be told")
    supervisor.messages.clear()
    await until(lambda: supervisor.heard("WATCHDOG=1"), "a worker that drains is alive")
    gate.open()
    assert await process.exits() == 0
    supervisor.heard("")
    assert supervisor.messages.count("READY=1") == 0


async def test_the_watchdog_hears_nothing_from_a_blocked_event_loop(db, launch, gate, tmp_path):
    gate, supervisor = gate(), Supervisor(str(tmp_path / "notify"))
    os.mkfifo(f"{gate.path}.pipe")
    process = launch(environment={**supervisor.environment, "WATCHDOG_USEC": "200000"})
    await until(lambda: supervisor.heard("READY=1"), "it should be ready")
    await insert(db, "BlockTheLoop", {"path": gate.path})
    await gate.begun()
    await process.says("the event loop has been blocked")  # for a second, five times as long as the watchdog waits
    supervisor.heard("")
    supervisor.messages.clear()

    await asyncio.sleep(1)  # nothing is expected, so nothing can be waited for

    assert not supervisor.heard("WATCHDOG=1")
    unblock(gate)
    await until(lambda: supervisor.heard("WATCHDOG=1"), "it should go on")
    supervisor.close()


async def test_an_outage_is_told_to_systemd_and_ends_no_worker_that_keeps_results(db, wire, launch, gate, tmp_path):
    gate, supervisor = gate(), Supervisor(str(tmp_path / "notify"))
    process = launch(
        address=wire.dsn, lease=6, environment={**supervisor.environment, "WATCHDOG_USEC": "200000"}, grace=1
    )
    await until(lambda: supervisor.heard("READY=1"), "it should be ready")
    wire.refuses = True
    wire.cut()

    await until(lambda: supervisor.heard("STATUS=failing"), "the outage should be told")
    supervisor.messages.clear()
    await until(lambda: supervisor.heard("WATCHDOG=1"), "the worker is alive")
    wire.refuses = False
    await until(lambda: supervisor.heard("STATUS=running"), "the end of the outage should be told")

    assert process.popen.poll() is None
    supervisor.close()


async def test_a_watchdog_of_another_process_is_not_told_and_handlers_inherit_nothing(db, launch, tmp_path):
    supervisor = Supervisor(str(tmp_path / "notify"))
    process = launch(environment={**supervisor.environment, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"})
    await until(lambda: supervisor.heard("READY=1"), "it should be ready")
    await asleep(db)

    assert not supervisor.heard("WATCHDOG=1")
    job = await ended(db, await insert(db, "Environment"))
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(json.loads(job["result"]))
    assert process.popen.poll() is None
    supervisor.close()
