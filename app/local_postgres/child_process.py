"""Starts child processes that end with this process, but not with the thread that started them.

This file is also run as a script: the launcher between this process and the program.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import IO, NamedTuple

PR_SET_PDEATHSIG = 1
STOP_SIGNALS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
"""Signals in the order in which `stop()` sends them, each with the seconds to wait for the process to end."""

# Our environment holds secrets, and PG* variables that would change the server's behaviour: pass neither on.
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH")


class Account(NamedTuple):
    uid: int
    gid: int

    @classmethod
    def current(cls) -> "Account":
        return cls(os.geteuid(), os.getegid())


class ChildProcess:
    """A program that runs as `account`. The kernel sends it SIGINT when this process ends, even by kill -9.

    Linux sends that signal when the *thread* that forked ends. A worker thread of `asyncio.to_thread` may end at any
    time, so every child gets its own thread, which forks it and then waits for it. Without `prctl` (macOS) the signal
    does not exist: there a child that is not stopped outlives this process.
    """

    def __init__(self, command: Sequence[str], account: Account, output: IO[bytes]) -> None:
        spawned: Future[subprocess.Popen[bytes]] = Future()
        self._thread = threading.Thread(target=_spawn_and_wait, args=(command, account, output, spawned), daemon=True)
        self._thread.start()
        self._process = spawned.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_service_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def wait(self, seconds: float) -> bool:
        """Wait for the process to end and return whether it ended in time."""
        self._thread.join(seconds)
        return not self.is_service_running

    def stop(self) -> None:
        """Send the stop signals, one after the other, until the process has ended."""
        for signum, patience_s in STOP_SIGNALS:
            self._process.send_signal(signum)
            if self.wait(patience_s):
                return


def _spawn_and_wait(
    command: Sequence[str], account: Account, output: IO[bytes], spawned: "Future[subprocess.Popen[bytes]]"
) -> None:
    # A launcher instead of `preexec_fn`: Python code between fork and exec can deadlock in a process with threads.
    launcher = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(account.uid), str(account.gid)]
    variables = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    try:
        process = subprocess.Popen(  # noqa: S603 the command is ours
            [*launcher, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=variables | {"LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True,  # Ctrl-C in the terminal must not reach the child: it is needed during shutdown
        )
    except OSError as error:
        spawned.set_exception(error)
        return
    spawned.set_result(process)
    process.wait()


def _launch(parent: int, account: Account, command: list[str]) -> None:
    """Switch to the account, set the parent-death signal and replace this process by the command."""
    if os.geteuid() != account.uid:
        os.setgroups([])
        os.setgid(account.gid)
        os.setuid(account.uid)
    # Set it after the change of user, which clears the signal; exec keeps it.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None and prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT)) != 0:
        sys.exit("cannot set the parent-death signal")
    if os.getppid() != parent:
        sys.exit("the parent process ended before the parent-death signal was set")
    os.execv(command[0], command)  # noqa: S606 no shell is needed


if __name__ == "__main__":
    _launch(int(sys.argv[1]), Account(int(sys.argv[2]), int(sys.argv[3])), sys.argv[4:])
