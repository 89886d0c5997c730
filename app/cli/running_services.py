"""Files in the data folder by which `toolscout reload` finds running services and reads what they have done.

A service holds a lock on its file. The lock ends with the process, however it ends, so that a process id that was given
to another program is never signalled.
"""

import fcntl
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from app.text.strict_json import Json

logger = logging.getLogger("toolscout")

_LOCK = ".lock"


@dataclass(frozen=True)
class RunningService:
    """A service on this host. Host names keep containers apart that share a data folder but no process ids."""

    folder: Path
    pid: int

    @property
    def lock_file(self) -> Path:
        return self.folder / f"{socket.gethostname()}-{self.pid}{_LOCK}"

    @property
    def _result_file(self) -> Path:
        return self.lock_file.with_suffix(".json")

    def request_reload(self) -> None:
        self._result_file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGHUP)

    def write_result(self, result: Json) -> None:
        """Write the result of a reload at once: a reader sees all of it or none."""
        part = self._result_file.with_suffix(".part")
        part.write_bytes(orjson.dumps(result))
        part.rename(self._result_file)

    def read_result(self) -> Json | None:
        """Return the result of the last reload, or None while there is none."""
        try:
            result: Json = orjson.loads(self._result_file.read_bytes())
        except FileNotFoundError:
            return None
        return result

    def remove_files(self) -> None:
        for path in (self.lock_file, self._result_file):
            path.unlink(missing_ok=True)


@contextmanager
def announce_service(data_dir: Path) -> Iterator[RunningService | None]:
    """Let `toolscout reload` find this process. Yield None if the data folder cannot be written to."""
    service = RunningService(_get_folder(data_dir), os.getpid())
    try:
        service.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(service.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        logger.info("`toolscout reload` cannot find this process: %s", error.strerror)
        yield None
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield service
    finally:
        with suppress(OSError):
            service.remove_files()
        os.close(descriptor)


def find_services(data_dir: Path) -> list[RunningService]:
    """Return the services that run on this host with this data folder, and remove the files of those that are gone."""
    folder, prefix = _get_folder(data_dir), f"{socket.gethostname()}-"
    pids = (path.name.removeprefix(prefix).removesuffix(_LOCK) for path in folder.glob(f"{prefix}*{_LOCK}"))
    services = [RunningService(folder, int(pid)) for pid in pids if pid.isdecimal()]
    return [service for service in services if _is_running(service)]


def _is_running(service: RunningService) -> bool:
    with service.lock_file.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    service.remove_files()
    return False


def _get_folder(data_dir: Path) -> Path:
    return data_dir / "run"
