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
    # Not pytest's own folder: a second pytest session closes that one to the OS user of Postgres.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def folder(scratch: Path) -> Path:
    """An initialised data folder, shared because initdb is slow; each test leaves it stopped."""
    closed = scratch / ("closed-" * 20)
    closed.mkdir(mode=0o700)
    server = EmbeddedPostgres(closed / "data")
    server.start()
    query(server, "CREATE TABLE memory (word text)")
    server.stop()
    return closed / "data"


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


def remember(server: EmbeddedPostgres) -> str:
    return str(query(server, "INSERT INTO memory VALUES (gen_random_uuid()) RETURNING word"))


def remembers(server: EmbeddedPostgres, word: str) -> bool:
    return query(server, f"SELECT EXISTS (SELECT FROM memory WHERE word = '{word}')") is True


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def postgres_of_another_process(
    folder: Path, python: str = sys.executable, **popen: Any
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process that started Postgres in the folder, and the pid of Postgres."""
    command = [python, "-c", START, str(folder)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, **popen) as parent:
        assert parent.stdout is not None
        try:
            yield parent, int(parent.stdout.readline())
        finally:
            parent.kill()


@contextlib.contextmanager
def slow_to_end(postgres: int) -> Iterator[None]:
    os.kill(postgres, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(postgres, signal.SIGCONT)
        wait_until(lambda: has_ended(postgres))


def test_the_first_start_initialises_postgres_18_with_pgvector(scratch: Path) -> None:
    leftover_of_a_killed_start = scratch / "first" / "postgres.new" / "PG_VERSION"
    leftover_of_a_killed_start.parent.mkdir(parents=True)
    leftover_of_a_killed_start.touch()
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


def test_it_listens_only_on_a_socket_in_a_private_folder_that_goes_with_it(server: EmbeddedPostgres) -> None:
    server.start()
    socket_dir = Path(query(server, "SHOW unix_socket_directories"))

    assert query(server, "SHOW listen_addresses") == ""
    assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
    server.stop()
    assert not socket_dir.exists()


def test_data_survives_a_stop_and_a_start(server: EmbeddedPostgres) -> None:
    server.start()
    assert server.running
    word = remember(server)
    server.stop()
    assert (server.running, server.pid) == (False, None)
    server.start()
    assert remembers(server, word)


def test_a_second_start_in_the_same_process_is_refused_and_leaves_the_first_alone(
    folder: Path, server: EmbeddedPostgres
) -> None:
    server.start()
    second = EmbeddedPostgres(folder)

    for refused in (second, server):
        with pytest.raises(ConfigurationError, match=rf"{folder} is in use .* \(pid {os.getpid()}\)"):
            refused.start()
    second.stop()
    word = remember(server)

    server.stop()
    second.start()
    assert remembers(second, word)
    second.stop()


def test_a_second_start_from_another_process_is_refused(folder: Path, server: EmbeddedPostgres) -> None:
    server.start()
    command = [sys.executable, "-c", START, str(folder)]
    other = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert other.returncode != 0
    assert f"ConfigurationError: The folder {folder} is in use by another Toolscout (pid {os.getpid()})" in other.stderr


def test_kill_9_of_the_parent_ends_postgres_and_keeps_the_data(folder: Path, server: EmbeddedPostgres) -> None:
    with postgres_of_another_process(folder) as (parent, postgres):
        word = remember(server)
        assert not has_ended(postgres)
        parent.kill()
        wait_until(lambda: has_ended(postgres))

    server.start()
    assert remembers(server, word)


def test_a_start_waits_for_a_predecessor_that_is_still_shutting_down(folder: Path, server: EmbeddedPostgres) -> None:
    with postgres_of_another_process(folder) as (parent, postgres), ThreadPoolExecutor(1) as pool:
        with slow_to_end(postgres):
            parent.kill()
            parent.wait()
            start = pool.submit(server.start)
            wait_until(lambda: (folder / "postgres.lock").read_text() == str(os.getpid()))
            assert not start.done()
        start.result()

    assert server.running


def test_a_predecessor_that_does_not_end_is_named(
    folder: Path, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.local_postgres.postgres.PREDECESSOR_PATIENCE_S", 0.1)
    with postgres_of_another_process(folder) as (parent, postgres), slow_to_end(postgres):
        parent.kill()
        parent.wait()
        with pytest.raises(ConfigurationError, match=rf"pid .*{postgres}.* still runs in {folder}"):
            server.start()


def test_a_stale_pid_file_is_not_believed_when_its_number_belongs_to_another_process(
    folder: Path, server: EmbeddedPostgres
) -> None:
    owner = (folder / "postgres").stat().st_uid
    with subprocess.Popen(["sleep", "600"], user=owner if AS_ROOT else None) as stranger:
        (folder / "postgres" / "postmaster.pid").write_text(f"{stranger.pid}\n{folder}/postgres\n1\n5432\n\n\n\n")
        try:
            server.start()
        finally:
            stranger.kill()
    assert server.running


async def test_supervise_brings_postgres_back_after_kill_9_with_its_data(server: EmbeddedPostgres) -> None:
    await asyncio.to_thread(server.start)
    killed, word = server.pid, remember(server)
    assert killed is not None

    async with supervised(server):
        os.kill(killed, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: server.pid != killed and answers(server))

    assert remembers(server, word)


async def test_supervise_keeps_trying_while_postgres_cannot_start(
    folder: Path, server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.local_postgres.postgres.POLL_S", 0.02)
    await asyncio.to_thread(server.start)
    assert server.pid is not None
    async with supervised(server):
        with damaged(folder):
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: caplog.text.count("could not be started") > 1)
        await asyncio.to_thread(wait_until, lambda: answers(server))


@contextlib.asynccontextmanager
async def supervised(server: EmbeddedPostgres) -> AsyncIterator[None]:
    supervisor = asyncio.create_task(server.supervise())
    yield
    supervisor.cancel()
    with pytest.raises(asyncio.CancelledError):
        await supervisor


def answers(server: EmbeddedPostgres) -> bool:
    try:
        return query(server, "SELECT true") is True
    except psycopg.OperationalError:
        return False


def test_postgres_outlives_the_worker_thread_that_started_it(server: EmbeddedPostgres) -> None:
    # After the join the thread of the loop has ended, and so has the worker of `to_thread`.
    starter = threading.Thread(target=lambda: asyncio.run(asyncio.to_thread(server.start)))
    starter.start()
    starter.join()

    assert server.pid is not None
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(server.pid).wait(timeout=0.5)
    assert answers(server)


def test_a_long_path_below_a_closed_folder_works_and_is_opened_no_more_than_needed(
    folder: Path, server: EmbeddedPostgres
) -> None:
    assert len(str(folder)) > 108  # more than fits in the address of a unix socket
    server.start()
    assert answers(server)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == (0o701 if AS_ROOT else 0o700)


def test_a_damaged_folder_is_refused_with_the_end_of_the_log(folder: Path, server: EmbeddedPostgres) -> None:
    with damaged(folder):
        for _ in range(2):  # a refused start holds no lock
            with pytest.raises(ConfigurationError, match=r"could not be started in (.*\n)*.*pg_control"):
                server.start()
    server.start()
    assert server.running


@contextlib.contextmanager
def damaged(folder: Path) -> Iterator[None]:
    control, hidden = folder / "postgres" / "global" / "pg_control", folder / "pg_control"
    control.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(control)


def test_a_log_grown_large_is_set_aside_at_the_next_start(
    folder: Path, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = (folder / "postgres.log").read_text()
    monkeypatch.setattr("app.local_postgres.postgres.MAX_LOG_BYTES", len(grown) - 1)
    server.start()
    assert (folder / "postgres.log.old").read_text() == grown


def test_a_folder_that_cannot_be_made_is_refused(scratch: Path) -> None:
    (scratch / "file").touch()

    with pytest.raises(ConfigurationError, match=r"cannot be run in .*file/data: .*Not a directory"):
        EmbeddedPostgres(scratch / "file" / "data").start()


def test_an_ordinary_user_can_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwnam("nobody") if AS_ROOT else pwd.getpwuid(os.geteuid())
    become: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if AS_ROOT else {}
    home = Path(tempfile.mkdtemp())  # not in the scratch folder, which belongs to root
    os.chown(home, user.pw_uid, user.pw_gid)
    # both look for the socket there, also where the system's own folder for such things is closed to this user
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    found_by = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LD_LIBRARY_PATH": str(home / "lib"),
        "TMPDIR": str(home),
    }
    server = EmbeddedPostgres(home / "data")

    python = python_for(become, home)
    with postgres_of_another_process(home / "data", python, env=os.environ | found_by, **become) as (parent, postgres):
        assert psutil.Process(postgres).uids().real == user.pw_uid != 0
        assert query(server, "SELECT current_database()") == "toolscout"
        socket_dir = query(server, "SHOW unix_socket_directories")
        parent.kill()
        wait_until(lambda: has_ended(postgres))

    assert Path(str(socket_dir)).parent == home
    shutil.rmtree(home)


def python_for(become: dict[str, Any], home: Path) -> str:
    """Our interpreter, or a copy of it where it lies in a folder that the ordinary user may not enter."""
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, cwd="/", **become)
    except PermissionError:
        base, stdlib = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib"))
        unneeded = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip", "config-*")
        shutil.copytree(stdlib, home / stdlib.relative_to(base), ignore=unneeded, copy_function=link_or_copy)
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
