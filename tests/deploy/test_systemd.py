"""The systemd unit is read by systemd itself, where it is installed; it is not started."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.settings import WorkerSettings

UNIT = Path(__file__).parents[2] / "examples" / "systemd" / "scheduler-worker@.service"
AFTER_GRACE = 5  # seconds in which a worker gives back what has not finished


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (on Debian: apt-get install systemd)")
    copy = tmp_path / "scheduler-worker@1.service"
    program = Path(sys.executable).with_name("scheduler-worker")
    copy.write_text(UNIT.read_text().replace("/opt/leasework/bin/scheduler-worker", str(program)))

    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_lets_a_worker_drain():
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(UNIT)
    service = parser["Service"]

    assert int(service["TimeoutStopSec"]) > WorkerSettings().grace.total_seconds() + AFTER_GRACE
    assert service["KillMode"] == "mixed"  # children end with their worker, not before it
    assert service["Type"] == "notify"  # see test_health: READY=1, STATUS=, WATCHDOG=1, STOPPING=1
    assert int(service["WatchdogSec"]) > 60  # seconds; what blocks an event loop for less is reported, not killed
    assert service["RestartPreventExitStatus"] == "2 3"
