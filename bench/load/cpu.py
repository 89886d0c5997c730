"""The CPU time that a service and its Postgres have taken."""

from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class CpuTime:
    """Seconds of one core."""

    app: float
    postgres: float

    def since(self, earlier: "CpuTime") -> "CpuTime":
        return CpuTime(self.app - earlier.app, self.postgres - earlier.postgres)


def read_postmaster_pid(folder: Path) -> int:
    """Return the pid of the embedded Postgres of a service in this folder."""
    return int((folder / "data" / "postgres" / "postmaster.pid").read_text().split()[0])


def read_cpu_time(app_pids: list[int], postmaster: int | None) -> CpuTime:
    """Read the time of these processes with their children, and of Postgres with all its backends.

    The children that Postgres has reaped, such as parallel workers, count: the kernel adds them to the postmaster's.
    """
    postgres = 0.0 if postmaster is None else _sum_tree(postmaster, excluded=None)
    app = sum(_sum_tree(pid, excluded=postmaster) for pid in app_pids)
    return CpuTime(app, postgres)


def _sum_tree(pid: int, excluded: int | None) -> float:
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        children = process.children()
    except psutil.NoSuchProcess:  # a backend that has ended since it was listed
        return 0.0
    return total + sum(_sum_tree(child.pid, excluded) for child in children if child.pid != excluded)
