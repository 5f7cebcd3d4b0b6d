"""The installed command in a terminal of its own: it asks, and is answered."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

from .commands import PROGRAM

PATIENCE = 60  # seconds


class Terminal:
    """A command whose stdin and stderr, and stdout unless it is piped, are a terminal."""

    def __init__(self, *arguments, environment, columns=80, stdout=None):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            # A session's leader that opens a terminal makes it its own: Ctrl-C must reach it.
            ["sh", "-c", 'exec "$@" <"$0"', os.ttyname(theirs), PROGRAM, *map(str, arguments)],
            stdout=stdout or theirs,
            stderr=theirs,
            env=environment | {"TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        os.close(theirs)
        self._raw = b""

    @property
    def text(self):
        """What was shown so far, without what steers the terminal."""
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", self._raw.decode(errors="replace")).replace("\r\n", "\n")

    @property
    def colours(self):
        return b"\x1b[" in self._raw

    def expect(self, words):
        deadline = time.monotonic() + PATIENCE
        while words not in self.text:
            assert self._read(deadline), f"ended or silent without {words!r}:\n{self.text}"
        return self.text

    def expect_question(self, words):
        """Wait until it has asked and reads the answer: between the two, Ctrl-C is not yet noticed by the C library."""
        self.expect(words)
        state = Path(f"/proc/{self.process.pid}/stat")
        while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        return self.text

    def type(self, text):
        os.write(self._ours, text.encode())

    def interrupt(self):
        self.type("\x03")

    def end(self):
        """Return the exit code and all that was shown."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        code = self.process.wait(PATIENCE)
        assert "Traceback" not in self.text, self.text
        return code, self.text

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)

    def _read(self, deadline):
        ready, _, _ = select.select([self._ours], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"silent after:\n{self.text}"
        with contextlib.suppress(OSError):  # Linux says so when the other side is closed
            got = os.read(self._ours, 65536)
            self._raw += got
            return bool(got)
        return False
