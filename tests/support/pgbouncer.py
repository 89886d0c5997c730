"""Runs pgbouncer between a service and a Postgres on this machine."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from pydantic import SecretStr
from sqlalchemy import make_url

from app.local_postgres.child_process import Account, ChildProcess
from app.settings import Pooler
from bench.service import free_port
from tests.support.programs import PGBOUNCER

_ADMIN = "postgres"
_PREPARED_SINCE = (1, 22)
"""Since 1.21, pgbouncer keeps prepared statements by the protocol; since 1.22, clients can also close them."""


class PgBouncer:
    """Leads to the Postgres at `url`, from `start()` to `stop()`.

    It refuses to run as root, and the socket of an embedded Postgres is in a folder of Postgres' own user: it runs as
    the owner of that folder. It logs in to Postgres as the user of `url` for every client.
    """

    def __init__(self, folder: Path, url: str, **options: Any) -> None:
        self.port = free_port()
        self._folder = folder
        target = conninfo_to_dict(url)
        socket_folder = Path(str(target["host"])).stat()
        self._account = Account(socket_folder.st_uid, socket_folder.st_gid)
        self._write_configuration(target, {"pool_mode": "transaction", "default_pool_size": 1, **options})
        self._process: ChildProcess | None = None

    def _write_configuration(self, target: dict[str, Any], options: dict[str, Any]) -> None:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": _ADMIN,
            "ignore_startup_parameters": "extra_float_digits",
            # a client waits no longer for pgbouncer than it would for a connection of its own pool
            "query_wait_timeout": 60,
            "server_login_retry": 0.1,
            **({"max_prepared_statements": 0} if "transaction_prepared" in list_poolers() else {}),
            **options,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        database = f"* = host={target['host']} port={target['port']} user={target['user']}"
        self.configuration.write_text("\n".join(["[databases]", database, "[pgbouncer]", *lines, ""]))
        for path in (self._folder, self.configuration):
            os.chown(path, self._account.uid, self._account.gid)

    @property
    def configuration(self) -> Path:
        return self._folder / "pgbouncer.ini"

    @property
    def log(self) -> Path:
        return self._folder / "pgbouncer.log"

    def url_of(self, url: str) -> str:
        """Return the URL that leads through pgbouncer to the database of `url`."""
        target = make_url(url)
        return f"postgresql://{target.username}@127.0.0.1:{self.port}/{target.database}"

    def settings(self, url: str, pooler: Pooler = "transaction") -> dict[str, Any]:
        """Return the settings of a service whose database is that of `url`, behind pgbouncer."""
        return {
            "database_url": SecretStr(self.url_of(url)),
            "database_pooler": pooler,
            "listen_database_url": SecretStr(url),
        }

    def start(self) -> None:
        program = PGBOUNCER.find()
        assert program is not None, "mark the test with needs_pgbouncer"
        with self.log.open("ab") as output:
            self._process = ChildProcess([program, str(self.configuration)], self._account, output)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.command("SHOW VERSION")
            except psycopg.OperationalError:
                if not self._process.is_service_running or time.monotonic() > deadline:
                    raise RuntimeError(f"pgbouncer does not start: {self.log.read_text()}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self, sent: signal.Signals = signal.SIGINT) -> None:
        """Let it end the transactions that are open, or kill it. At SIGTERM, version 1.23 waits for all clients."""
        if self._process is not None and self._process.is_service_running:
            os.kill(self._process.pid, sent)
            assert self._process.wait(60), "pgbouncer does not stop"

    def command(self, command: str) -> list[dict[str, Any]]:
        """Run a command of the admin console, such as PAUSE, and return its rows."""
        url = f"postgresql://{_ADMIN}@127.0.0.1:{self.port}/pgbouncer"
        with psycopg.connect(url, autocommit=True, connect_timeout=5, row_factory=dict_row) as console:
            # the console knows the simple protocol alone
            cursor = psycopg.ClientCursor(console, row_factory=dict_row).execute(command.encode())
            return [] if cursor.description is None else cursor.fetchall()


def list_poolers() -> list[Pooler]:
    """Return the ways in which the service can use the pgbouncer that is installed."""
    program = PGBOUNCER.find()
    return ["transaction", "transaction_prepared"] if program and _keeps_statements(program) else ["transaction"]


def options_for(pooler: Pooler) -> dict[str, int]:
    return {"max_prepared_statements": 200} if pooler == "transaction_prepared" else {}


@cache
def _keeps_statements(program: str) -> bool:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.match(r"PgBouncer (\d+)\.(\d+)", shown)
    assert version is not None, shown
    return tuple(map(int, version.groups())) >= _PREPARED_SINCE


@contextmanager
def running_pgbouncer(url: str, **options: Any) -> Iterator[PgBouncer]:
    """Start pgbouncer in front of the Postgres at `url`, in transaction mode, with one connection to each database."""
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))  # pytest's folders are closed to Postgres' user
    pgbouncer = PgBouncer(folder, url, **options)
    pgbouncer.start()
    try:
        yield pgbouncer
    finally:
        pgbouncer.stop()
        shutil.rmtree(folder)
