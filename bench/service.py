"""Run the real service, as an operator would, in its own folder, for a benchmark or a test."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

ADMIN_KEY = "bench-admin-key-0123456789"
_START_TIMEOUT_S = 300.0
"""Generous, for slow machines; a service that exits is noticed at once."""
_PORTS = range(10_000, 32_000)
"""Below the ephemeral ports, which the system assigns by itself."""


@dataclass(frozen=True)
class Service:
    url: str
    port: int
    process: subprocess.Popen[bytes]
    folder: Path

    def admin(self, user_id: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"} | ({"X-User-Id": user_id} if user_id else {})
        return httpx.Client(base_url=self.url, headers=headers, timeout=300)


@contextmanager
def running_service(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    port: int | None = None,
    cwd: Path | None = None,
    module: str = "app",
    *,
    own_session: bool = False,
) -> Iterator[Service]:
    """Start a service with these settings, and with those of `.env` in `cwd`; by default in `folder`, which has none.

    `module` starts it: `app`, or one that changes something before. In a session of its own it gets its own share of
    busy cores from Linux, as a container or a service of systemd does.
    """
    port = port or free_port()
    environment = {
        # the socket of the embedded Postgres is among the temporary files
        **{name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ},
        # for a `module`, or an embedder, of a benchmark
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "TOOLSCOUT_PORT": str(port),
        "TOOLSCOUT_DATA_DIR": str(folder / "data"),
        "TOOLSCOUT_ADMIN_API_KEY": ADMIN_KEY,
        "TOOLSCOUT_DEMO": "0",
        **(settings or {}),
    }
    with (folder / "service.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve"],
            cwd=cwd or folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=own_session,
        )
    service = Service(f"http://127.0.0.1:{port}", port, process, folder)
    try:
        _wait_until_ready(service)
        yield service
    finally:
        process.terminate()
        process.wait(timeout=60)


def free_port() -> int:
    """Return a port that is unlikely to be taken before it is used. `secrets`, as test processes share their seed."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait_until_ready(service: Service) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with httpx.Client() as client:
        while time.monotonic() < deadline and service.process.poll() is None:
            with suppress(httpx.TransportError):
                if client.get(f"{service.url}/readyz").status_code == 200:
                    return
            time.sleep(0.05)
    raise RuntimeError((service.folder / "service.log").read_text()[-2_000:])
