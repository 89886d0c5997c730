"""A primary and a streaming replica of it: two embedded Postgres servers, the second a copy of the first."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from app.local_postgres.postgres import EmbeddedPostgres, binaries_dir

_QUICK = {"fsync": "off", "full_page_writes": "off", "wal_retrieve_retry_interval": "'100ms'"}
"""The data need not survive the machine, and the replica need not wait to connect."""
_DEADLINE_S = 60.0


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def run_sql(url: str, statement: str) -> Any:
    """Return the first column of the first row, if there is one."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


class StreamingReplica:
    """`postgres` is the server, a copy of `primary`. After `promote` it is no replica any more, until `restore`."""

    def __init__(self, primary: EmbeddedPostgres, folder: Path) -> None:
        self.primary = primary
        self._folder = folder
        self.postgres = EmbeddedPostgres(folder)

    def url(self, primary_url: str) -> str:
        """Return the URL of the same database on this server."""
        return primary_url.replace(_get_address(self.primary), _get_address(self.postgres))

    def restore(self) -> None:
        """Repair what a test has done to it."""
        if not self.postgres.is_service_running or not run_sql(self.postgres.url, "SELECT pg_is_in_recovery()"):
            self.rebuild()

    def rebuild(self) -> None:
        """Stop the server and copy the primary."""
        self.postgres.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        cluster = self._folder / "postgres"
        copy = [
            str(binaries_dir() / "pg_basebackup"),
            "--pgdata",
            str(cluster),
            "--checkpoint=fast",
            "--write-recovery-conf",
        ]
        subprocess.run([*copy, "--no-sync", "--dbname", self.primary.url], check=True, capture_output=True)
        owner = (self.primary.data_dir / "postgres").stat()
        for path in (cluster, *cluster.rglob("*")):  # Postgres does not run as root
            os.chown(path, owner.st_uid, owner.st_gid)
        self.start()

    def start(self) -> None:
        self.postgres.start()
        wait_until(lambda: run_sql(self.postgres.url, "SELECT count(*) FROM pg_stat_wal_receiver") == 1)

    def wait_until_caught_up(self) -> None:
        position = run_sql(self.primary.url, "SELECT pg_current_wal_lsn()")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        wait_until(lambda: run_sql(self.postgres.url, reached))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Replay nothing of what the primary writes."""
        run_sql(self.postgres.url, "SELECT pg_wal_replay_pause()")
        run_sql(self.primary.url, "SELECT pg_logical_emit_message(false, '', '', true)")  # it pauses at a record
        wait_until(lambda: run_sql(self.postgres.url, "SELECT pg_get_wal_replay_pause_state()") == "paused")
        try:
            yield
        finally:
            run_sql(self.postgres.url, "SELECT pg_wal_replay_resume()")

    def kill(self) -> None:
        _send(signal.SIGKILL, [self._server, *self._server.children(recursive=True)])
        wait_until(lambda: not self.postgres.is_service_running)
        self.postgres.stop()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let the server accept connections, through the kernel, and answer nothing."""
        processes = [self._server]
        try:
            _send(signal.SIGSTOP, processes)  # first: it starts no further processes
            processes += self._server.children(recursive=True)
            _send(signal.SIGSTOP, processes)
            yield
        finally:
            _send(signal.SIGCONT, processes)

    def promote(self) -> None:
        assert run_sql(self.postgres.url, "SELECT pg_promote()")

    @property
    def _server(self) -> psutil.Process:
        assert self.postgres.pid is not None
        return psutil.Process(self.postgres.pid)


def _send(signum: signal.Signals, processes: Sequence[psutil.Process]) -> None:
    """Leave out those that have ended. psutil compares their times of start, so that no other process is hit."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signum)


@contextmanager
def running_primary(folder: Path) -> Iterator[EmbeddedPostgres]:
    """Run a server of its own: a copy takes all databases along, and other tests have many."""
    primary = EmbeddedPostgres(folder)
    primary.start()
    try:
        for setting, value in _QUICK.items():
            run_sql(primary.url, f"ALTER SYSTEM SET {setting} = {value}")
        run_sql(primary.url, "SELECT pg_reload_conf()")
        yield primary
    finally:
        primary.stop()


@contextmanager
def running_replica(primary: EmbeddedPostgres, folder: Path) -> Iterator[StreamingReplica]:
    replica = StreamingReplica(primary, folder)
    try:
        replica.rebuild()
        yield replica
    finally:
        replica.postgres.stop()


def _get_address(postgres: EmbeddedPostgres) -> str:
    return postgres.url.partition("?")[2]
