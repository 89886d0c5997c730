"""Runs nginx with the configuration that we deploy, in front of replicas on this machine."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.service import free_port
from tests.support.paths import ROOT
from tests.support.programs import NGINX

CONFIGURATION = ROOT / "deploy/nginx/nginx.conf"


def write_configuration(folder: Path, port: int, replicas: Sequence[int], *, is_public: bool = False) -> Path:
    """Write the deployed configuration with local addresses instead of Docker's names.

    With `is_public` the clients on this machine count as clients on the internet.
    """
    servers = " ".join(f"server 127.0.0.1:{replica} max_fails=0;" for replica in replicas)
    text = CONFIGURATION.read_text()
    for deployed, local in [
        ("resolver 127.0.0.11 valid=1s ipv6=off;", f"upstream replicas {{ {servers} }}"),
        ("app:8000", "replicas"),
        ("listen 8080;", f"listen 127.0.0.1:{port};"),
        ("/tmp/", f"{folder}/"),  # noqa: S108 a folder of the container
        *([("127.0.0.0/8 1;", "")] if is_public else []),
    ]:
        assert deployed in text
        text = text.replace(deployed, local)
    path = folder / "nginx.conf"
    path.write_text(text)
    return path


def nginx_command(configuration: Path, *options: str) -> list[str]:
    program = NGINX.find()
    assert program is not None, "mark the test with needs_nginx"
    return [program, "-c", str(configuration), "-e", "stderr", *options]


@contextmanager
def running_nginx(folder: Path, replicas: Sequence[int], *, is_public: bool = False) -> Iterator[str]:
    """Start nginx in front of the replicas on these ports and yield its URL."""
    port = free_port()
    # started as root, as in CI, nginx would become `nobody`, who may not read the folder of the test
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = write_configuration(folder, port, replicas, is_public=is_public)
    process = subprocess.Popen(nginx_command(configuration, "-g", f"daemon off; {user}"))
    try:
        _wait_for_port(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("nginx does not answer")
