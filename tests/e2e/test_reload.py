"""`toolscout reload` and SIGHUP on a running service."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from bench.service import ADMIN_KEY, Service, running_service

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
LIMITED = {"Authorization": f"Bearer {ADMIN_KEY}", "X-User-Id": "alice"}


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("reload")
    with running_service(folder, cwd=folder) as running:
        yield running


@pytest.fixture
def service(shared_service: Service) -> Service:
    """The service with the same settings for each test, whatever the test before has changed."""
    (shared_service.folder / ".env").write_text("TOOLSCOUT_MAX_TOOLS=5\n")
    assert reload(shared_service).returncode == 0
    return shared_service


def reload(service: Service) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "TOOLSCOUT_DATA_DIR": str(service.folder / "data")}
    return subprocess.run(
        [sys.executable, "-m", "app", "reload"],
        cwd=service.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_command_applies_what_can_change_and_names_the_rest(service: Service) -> None:
    (service.folder / ".env").write_text("TOOLSCOUT_MAX_TOOLS=6\nTOOLSCOUT_DATABASE_POOL_SIZE=4\n")
    done = reload(service)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"process {service.process.pid}: TOOLSCOUT_MAX_TOOLS changed",
        f"process {service.process.pid}: TOOLSCOUT_DATABASE_POOL_SIZE changed: needs a restart",
    ]
    (service.folder / ".env").write_text("TOOLSCOUT_MAX_TOOLS=6\n")
    assert reload(service).stdout == f"process {service.process.pid}: nothing changed\n"


def test_the_command_names_misspelt_settings(service: Service) -> None:
    (service.folder / ".env").write_text(
        "TOOLSCOUT_MAX_TOOLS=5\nTOOLSCOUT_DATABASE_POOL_SIZE=4\nTOOLSCOUT_ROLOUT_PERCENT=5\n"
    )
    assert reload(service).stdout.splitlines() == [
        f"process {service.process.pid}: TOOLSCOUT_DATABASE_POOL_SIZE changed: needs a restart",
        f"process {service.process.pid}: unknown setting TOOLSCOUT_ROLOUT_PERCENT; "
        "did you mean TOOLSCOUT_ROLLOUT_PERCENT?",
    ]


def test_an_invalid_setting_changes_nothing(service: Service) -> None:
    (service.folder / ".env").write_text("TOOLSCOUT_MAX_TOOLS=none\n")
    refused = reload(service)
    assert refused.returncode == 1
    assert "TOOLSCOUT_MAX_TOOLS" in refused.stderr
    (service.folder / ".env").write_text(f"TOOLSCOUT_GLOSSARY_FILE={service.folder / 'missing'}\n")
    refused = reload(service)
    assert refused.returncode == 1
    assert "nothing was changed: cannot read the glossary" in refused.stdout
    assert httpx.get(f"{service.url}/readyz").status_code == 200


def test_a_signal_is_enough(service: Service) -> None:
    def count_events() -> int:
        events = httpx.get(f"{service.url}/audit", params={"actor": "operator:sighup"}, headers=ADMIN).json()
        return len(events["items"])

    before = count_events()
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: count_events() == before + 1)
    assert service.process.poll() is None


def test_without_a_running_service_the_command_says_where_to_run_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app", "reload"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "TOOLSCOUT_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert f"no running service found in {tmp_path}" in done.stderr


@contextmanager
def serving_in_terminal(folder: Path, on_hangup: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], None]]]:
    """Yield a service in a terminal of its own, and a function that closes the terminal.

    `on_hangup` is what the shell has set for SIGHUP: the process that runs the tests may have been started with nohup.
    """
    controller, terminal = pty.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "TOOLSCOUT_DATA_DIR": str(folder / "data"),
        "TOOLSCOUT_ADMIN_API_KEY": ADMIN_KEY,
        "TOOLSCOUT_DEMO": "0",
        "TOOLSCOUT_PORT": "0",
        "TOOLSCOUT_DRAIN_S": "0",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, on_hangup, sys.executable, "-m", "app", "serve"],
            cwd=folder,
            env=environment,
            stdin=terminal,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(terminal)
    try:
        wait_until(lambda: b"is running at" in (folder / "log").read_bytes() or process.poll() is not None)
        yield process, partial(os.close, controller)
    finally:
        process.kill()
        process.wait()


def test_closing_the_terminal_stops_a_service_that_runs_in_it(tmp_path: Path) -> None:
    """A shell that ends with its terminal must not leave a service behind."""
    with serving_in_terminal(tmp_path, "SIG_DFL") as (process, close_terminal):
        close_terminal()
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 0, (tmp_path / "log").read_text()


def test_a_service_that_was_started_with_nohup_survives_its_terminal(tmp_path: Path) -> None:
    with serving_in_terminal(tmp_path, "SIG_IGN") as (process, close_terminal):
        close_terminal()
        wait_until(lambda: b"settings reloaded" in (tmp_path / "log").read_bytes())
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0, (tmp_path / "log").read_text()


IN_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""
