"""PgBouncer in transaction mode between one place for workers and whatever server is the primary now."""

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

from deploy.bouncer import PgBouncer

from .proxy import Proxy

# After a failed login it would refuse its clients for 15 s, by when every lease has lapsed.
RETRY = "server_login_retry = 1\nserver_connect_timeout = 3\n"


class Pooler:
    """`link`: the wire between it and the server."""

    def __init__(self, link: Proxy, login: str, folder: Path, actor: str) -> None:
        self.link = link
        folder.mkdir()
        folder.chmod(0o755)
        self._bouncer = PgBouncer(f"postgresql://{login}@127.0.0.1:{link.port}/postgres", folder)
        # What a client says when it connects does not reach the server, so the pooler says who is behind it.
        says = rf"\g<0> connect_query='SET chaos.actor = ''{actor}'' '"
        file = folder / "pgbouncer.ini"
        text = re.sub(r"^\* = .*$", says, file.read_text(), count=1, flags=re.MULTILINE)
        file.write_text(text.replace("default_pool_size = 2", "default_pool_size = 5") + RETRY)

    async def start(self) -> None:
        await asyncio.to_thread(self._bouncer.start)

    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._bouncer.port

    def stop(self) -> None:
        self._bouncer.kill()


def version() -> str | None:
    """Return which PgBouncer is installed, or None."""
    if "/usr/sbin" not in os.environ["PATH"].split(":"):
        os.environ["PATH"] += ":/usr/sbin"  # where it is, and not everybody looks
    program = shutil.which("pgbouncer")
    if program is None:
        return None
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
