"""The embedded Postgres: start, stop, locks, crashes of either process, and the accounts that it runs as."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

import app
from app.errors import ConfigurationError
from app.local_postgres.postgres import EmbeddedPostgres

PROJECT = Path(app.__file__).parents[1]
AS_ROOT = os.geteuid() == 0

START = """
import signal, sys
from pathlib import Path
from app.local_postgres.postgres import EmbeddedPostgres

server = EmbeddedPostgres(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    # Not pytest's tmp_path: a second pytest session would lock the OS user of Postgres out of it.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def folder(scratch: Path) -> Path:
    """An initialised data folder, shared because initdb is slow. Every test stops the Postgres that it starts there."""
    private = scratch / ("private-" * 20)
    private.mkdir(mode=0o700)
    server = EmbeddedPostgres(private / "data")
    server.start()
    query(server, "CREATE TABLE memory (word text)")
    server.stop()
    return private / "data"


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    embedded = EmbeddedPostgres(folder)
    yield embedded
    embedded.stop()


def query(server: EmbeddedPostgres, statement: str) -> Any:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def insert_word(server: EmbeddedPostgres) -> str:
    return str(query(server, "INSERT INTO memory VALUES (gen_random_uuid()) RETURNING word"))


def has_word(server: EmbeddedPostgres, word: str) -> bool:
    return query(server, f"SELECT EXISTS (SELECT FROM memory WHERE word = '{word}')") is True


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


@contextlib.contextmanager
def postgres_elsewhere(
    folder: Path, python: str = sys.executable, **popen: Any
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start Postgres from another process; yield that process and the pid of Postgres."""
    command = [python, "-c", START, str(folder)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, **popen) as parent:
        assert parent.stdout is not None
        try:
            yield parent, int(parent.stdout.readline())
        finally:
            parent.kill()


@contextlib.contextmanager
def suspend(postgres: int) -> Iterator[None]:
    os.kill(postgres, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(postgres, signal.SIGCONT)
        wait_until(lambda: has_ended(postgres))


def test_the_first_start_initialises_postgres_18_with_pgvector(scratch: Path) -> None:
    leftover_of_killed_start = scratch / "first" / "postgres.new" / "PG_VERSION"
    leftover_of_killed_start.parent.mkdir(parents=True)
    leftover_of_killed_start.touch()
    server = EmbeddedPostgres(scratch / "first")
    server.start()
    try:
        query(server, "CREATE EXTENSION vector")
        pgvector = query(server, "SELECT extversion FROM pg_extension WHERE extname = 'vector'")

        assert query(server, "SELECT version()").startswith("PostgreSQL 18")
        assert tuple(map(int, pgvector.split("."))) >= (0, 8, 4)
        assert query(server, "SELECT upper('é') || current_setting('fsync')") == "Éon"
    finally:
        server.stop()


def test_it_listens_only_on_a_socket_in_a_private_folder_that_is_removed_on_stop(
    server: EmbeddedPostgres,
) -> None:
    server.start()
    socket_dir = Path(query(server, "SHOW unix_socket_directories"))

    assert query(server, "SHOW listen_addresses") == ""
    assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
    server.stop()
    assert not socket_dir.exists()


def test_data_survives_a_stop_and_a_start(server: EmbeddedPostgres) -> None:
    server.start()
    assert server.is_service_running
    word = insert_word(server)
    server.stop()
    assert (server.is_service_running, server.pid) == (False, None)
    server.start()
    assert has_word(server, word)


def test_a_second_start_in_the_same_process_is_refused_and_does_not_disturb_the_first(
    folder: Path, server: EmbeddedPostgres
) -> None:
    server.start()
    second = EmbeddedPostgres(folder)

    for refused in (second, server):
        with pytest.raises(ConfigurationError, match=rf"{folder} is in use .* \(pid {os.getpid()}\)"):
            refused.start()
    second.stop()
    word = insert_word(server)

    server.stop()
    second.start()
    assert has_word(second, word)
    second.stop()


def test_a_second_start_from_another_process_is_refused(folder: Path, server: EmbeddedPostgres) -> None:
    server.start()
    command = [sys.executable, "-c", START, str(folder)]
    other = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert other.returncode != 0
    assert (
        f"ConfigurationError: the data folder {folder} is in use by another Toolscout (pid {os.getpid()})"
        in other.stderr
    )


def test_kill_9_of_the_parent_ends_postgres_and_keeps_the_data(folder: Path, server: EmbeddedPostgres) -> None:
    with postgres_elsewhere(folder) as (parent, postgres):
        word = insert_word(server)
        assert not has_ended(postgres)
        parent.kill()
        wait_until(lambda: has_ended(postgres))

    server.start()
    assert has_word(server, word)


def test_a_start_waits_for_a_predecessor_that_is_still_shutting_down(folder: Path, server: EmbeddedPostgres) -> None:
    with postgres_elsewhere(folder) as (parent, postgres), ThreadPoolExecutor(1) as pool:
        with suspend(postgres):
            parent.kill()
            parent.wait()
            start = pool.submit(server.start)
            wait_until(lambda: (folder / "postgres.lock").read_text() == str(os.getpid()))
            assert not start.done()
        start.result()

    assert server.is_service_running


def test_a_predecessor_that_does_not_end_is_reported_with_its_pid(
    folder: Path, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.local_postgres.postgres.PREDECESSOR_TIMEOUT_S", 0.1)
    with postgres_elsewhere(folder) as (parent, postgres), suspend(postgres):
        parent.kill()
        parent.wait()
        with pytest.raises(ConfigurationError, match=rf"pid .*{postgres}.* still running in {folder}"):
            server.start()


def test_a_stale_pid_file_is_ignored_when_its_pid_belongs_to_another_process(
    folder: Path, server: EmbeddedPostgres
) -> None:
    owner = (folder / "postgres").stat().st_uid
    with subprocess.Popen(["sleep", "600"], user=owner if AS_ROOT else None) as other_process:
        (folder / "postgres" / "postmaster.pid").write_text(f"{other_process.pid}\n{folder}/postgres\n1\n5432\n\n\n\n")
        try:
            server.start()
        finally:
            other_process.kill()
    assert server.is_service_running


async def test_supervise_restarts_postgres_after_kill_9_and_the_data_is_kept(server: EmbeddedPostgres) -> None:
    await asyncio.to_thread(server.start)
    killed_pid, word = server.pid, insert_word(server)
    assert killed_pid is not None

    async with supervise(server):
        os.kill(killed_pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: server.pid != killed_pid and accepts_connections(server))

    assert has_word(server, word)


async def test_supervise_retries_while_postgres_cannot_start(
    folder: Path, server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.local_postgres.postgres.POLL_S", 0.02)
    await asyncio.to_thread(server.start)
    assert server.pid is not None
    async with supervise(server):
        with damage_cluster(folder):
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: caplog.text.count("failed to restart Postgres") > 1)
        await asyncio.to_thread(wait_until, lambda: accepts_connections(server))


@contextlib.asynccontextmanager
async def supervise(server: EmbeddedPostgres) -> AsyncIterator[None]:
    supervisor = asyncio.create_task(server.supervise())
    yield
    supervisor.cancel()
    with pytest.raises(asyncio.CancelledError):
        await supervisor


def accepts_connections(server: EmbeddedPostgres) -> bool:
    try:
        return query(server, "SELECT true") is True
    except psycopg.OperationalError:
        return False


def test_postgres_outlives_the_worker_thread_that_started_it(server: EmbeddedPostgres) -> None:
    # After the join, the event loop's thread and the worker thread of `to_thread` have ended.
    starter = threading.Thread(target=lambda: asyncio.run(asyncio.to_thread(server.start)))
    starter.start()
    starter.join()

    assert server.pid is not None
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(server.pid).wait(timeout=0.5)
    assert accepts_connections(server)


def test_a_long_path_below_a_private_folder_works_and_only_gains_the_execute_bit(
    folder: Path, server: EmbeddedPostgres
) -> None:
    assert len(str(folder)) > 108  # longer than the path of a unix socket may be
    server.start()
    assert accepts_connections(server)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == (0o701 if AS_ROOT else 0o700)


def test_a_damaged_cluster_is_refused_with_the_end_of_the_log(folder: Path, server: EmbeddedPostgres) -> None:
    with damage_cluster(folder):
        for _ in range(2):  # a failed start releases the lock
            with pytest.raises(ConfigurationError, match=r"failed to start Postgres in (.*\n)*.*pg_control"):
                server.start()
    server.start()
    assert server.is_service_running


@contextlib.contextmanager
def damage_cluster(folder: Path) -> Iterator[None]:
    control, hidden = folder / "postgres" / "global" / "pg_control", folder / "pg_control"
    control.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(control)


def test_a_large_log_is_rotated_at_the_next_start(
    folder: Path, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = (folder / "postgres.log").read_text()
    monkeypatch.setattr("app.local_postgres.postgres.MAX_LOG_BYTES", len(grown) - 1)
    server.start()
    assert (folder / "postgres.log.old").read_text() == grown


def test_a_folder_that_cannot_be_created_is_refused(scratch: Path) -> None:
    (scratch / "file").touch()

    with pytest.raises(ConfigurationError, match=r"cannot run Postgres in .*file/data: .*Not a directory"):
        EmbeddedPostgres(scratch / "file" / "data").start()


def test_an_ordinary_user_can_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwnam("nobody") if AS_ROOT else pwd.getpwuid(os.geteuid())
    run_as: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if AS_ROOT else {}
    home = Path(tempfile.mkdtemp())  # not in the scratch folder, which belongs to root
    os.chown(home, user.pw_uid, user.pw_gid)
    # both processes put the socket here, since the user may have no access to the system's temporary folder
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    environment = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LD_LIBRARY_PATH": str(home / "lib"),
        "TMPDIR": str(home),
    }
    server = EmbeddedPostgres(home / "data")

    python = python_for(run_as, home)
    with postgres_elsewhere(home / "data", python, env=os.environ | environment, **run_as) as (
        parent,
        postgres,
    ):
        assert psutil.Process(postgres).uids().real == user.pw_uid != 0
        assert query(server, "SELECT current_database()") == "toolscout"
        socket_dir = query(server, "SHOW unix_socket_directories")
        parent.kill()
        wait_until(lambda: has_ended(postgres))

    assert Path(str(socket_dir)).parent == home
    shutil.rmtree(home)


def python_for(run_as: dict[str, Any], home: Path) -> str:
    """Return our interpreter, or a copy of it if the ordinary user has no access to its folder."""
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, cwd="/", **run_as)
    except PermissionError:
        base, stdlib = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib"))
        ignored = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip", "config-*")
        shutil.copytree(stdlib, home / stdlib.relative_to(base), ignore=ignored, copy_function=link_or_copy)
        for library in base.glob("lib/libpython*"):
            shutil.copy(library, home / "lib")
        (home / "bin").mkdir()
        return str(shutil.copy(Path(sys.executable).resolve(), home / "bin"))
    return sys.executable


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)
