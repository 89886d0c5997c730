"""Runs the real service, as an operator would, in a folder of its own, for a benchmark or a test."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ADMIN_KEY = "bench-admin-key-0123456789"
_PATIENCE_S = 60.0


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
    folder: Path, settings: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[Service]:
    port = port or free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "TOOLSCOUT_PORT": str(port),
        "TOOLSCOUT_DATA_DIR": str(folder / "data"),
        "TOOLSCOUT_ADMIN_API_KEY": ADMIN_KEY,
        "TOOLSCOUT_DEMO": "0",
        **(settings or {}),
    }
    with (folder / "service.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve"], cwd=Path.cwd(), env=environment, stdout=log, stderr=log
        )
    service = Service(f"http://127.0.0.1:{port}", port, process, folder)
    try:
        _await_ready(service)
        yield service
    finally:
        process.terminate()
        process.wait(timeout=60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_ready(service: Service) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    with httpx.Client() as client:
        while time.monotonic() < deadline and service.process.poll() is None:
            try:
                if client.get(f"{service.url}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
    raise RuntimeError((service.folder / "service.log").read_text()[-2_000:])
