"""Child processes that do not outlive us, and that do outlive the thread which asked for them.

This file is also run as a script: it is the small launcher between us and the program.
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

# Our own environment holds secrets, and PG* variables that would bend the server: neither is handed down.
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH")


class Account(NamedTuple):
    uid: int
    gid: int

    @classmethod
    def ours(cls) -> "Account":
        return cls(os.geteuid(), os.getegid())


class ChildProcess:
    """A program run as `account`; the kernel sends it SIGINT when our process ends, even by kill -9.

    Linux fires that signal when the *thread* that forked ends. A worker of `asyncio.to_thread` may end at any time, so
    every child has a thread of its own, which forks it and then waits for it. Where `prctl` is missing (macOS) there
    is no such signal: a child stopped by nobody lives on.
    """

    def __init__(self, command: Sequence[str], account: Account, output: IO[bytes]) -> None:
        spawned: Future[subprocess.Popen[bytes]] = Future()
        self._keeper = threading.Thread(target=_keep, args=(command, account, output, spawned), daemon=True)
        self._keeper.start()
        self._process = spawned.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._keeper.is_alive()

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def wait(self, seconds: float) -> bool:
        """Whether it ended in time."""
        self._keeper.join(seconds)
        return not self.running

    def stop(self) -> None:
        """Asks, insists, then kills."""
        for signum, patience_s in STOP_SIGNALS:
            self._process.send_signal(signum)
            if self.wait(patience_s):
                return


def _keep(
    command: Sequence[str], account: Account, output: IO[bytes], spawned: "Future[subprocess.Popen[bytes]]"
) -> None:
    # A launcher rather than `preexec_fn`: Python code between fork and exec can deadlock in a process with threads.
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
            start_new_session=True,  # Ctrl-C in our terminal is for us: we still need the child while we shut down
        )
    except OSError as error:
        spawned.set_exception(error)
        return
    spawned.set_result(process)
    process.wait()


def _launch(parent: int, account: Account, command: list[str]) -> None:
    if os.geteuid() != account.uid:
        os.setgroups([])
        os.setgid(account.gid)
        os.setuid(account.uid)
    # Only now: a change of user clears the parent-death signal. It outlasts exec.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None and prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT)) != 0:
        sys.exit("The parent-death signal could not be set.")
    if os.getppid() != parent:
        sys.exit("The parent ended before the signal was set.")
    os.execv(command[0], command)  # noqa: S606 there is no shell to go through


if __name__ == "__main__":
    _launch(int(sys.argv[1]), Account(int(sys.argv[2]), int(sys.argv[3])), sys.argv[4:])
