"""nginx with the configuration that is deployed, before replicas on this machine."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.service import free_port
from tests.support.paths import ROOT

CONFIGURATION = ROOT / "deploy/nginx/nginx.conf"


def nginx() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    assert found, "the tests need nginx"
    return found


def here(folder: Path, port: int, replicas: Sequence[int]) -> Path:
    """The same, with addresses of this machine in the place of Docker's names."""
    servers = " ".join(f"server 127.0.0.1:{replica} max_fails=0;" for replica in replicas)
    text = CONFIGURATION.read_text()
    for deployed, local in [
        ("resolver 127.0.0.11 valid=1s ipv6=off;", f"upstream replicas {{ {servers} }}"),
        ("app:8000", "replicas"),
        ("listen 8080;", f"listen 127.0.0.1:{port};"),
        ("/tmp/", f"{folder}/"),  # noqa: S108 of the container's own
    ]:
        assert deployed in text
        text = text.replace(deployed, local)
    path = folder / "nginx.conf"
    path.write_text(text)
    return path


@contextmanager
def running_nginx(folder: Path, replicas: Sequence[int]) -> Iterator[str]:
    port = free_port()
    # started as root, as in CI, it would work as nobody, to whom the folder of a test is closed
    as_we_are = "user root;" if os.geteuid() == 0 else ""
    configuration = str(here(folder, port, replicas))
    command = [nginx(), "-c", configuration, "-e", "stderr", "-g", f"daemon off; {as_we_are}"]
    process = subprocess.Popen(command)
    try:
        _await_port(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _await_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("nginx does not answer")
