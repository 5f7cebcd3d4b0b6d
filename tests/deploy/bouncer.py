"""PgBouncer as a test starts it: in transaction mode, before the server of the tests."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from urllib.parse import unquote, urlsplit

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
