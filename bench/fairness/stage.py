"""A running service with an attacker and a victim, and what can be seen of it from outside."""

import itertools
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.fairness.victim import Kind, Victim
from bench.load.catalogue import PRODUCTS, push_tools
from bench.service import Service, running_service

ATTACKER, VICTIM = "attacker", "victim"
PUSHED_SERVER = "pushed"
RELEASE_S = 10.0
"""How long the service may take to release everything after the attacker has gone."""
_GAUGES = {
    "requests": "toolscout_requests_in_flight",
    "waiting": "toolscout_requests_waiting",
    "database connections": "toolscout_pool_in_use",
}


@dataclass(frozen=True)
class Ports:
    """What attackers let the service connect to: a port that never answers, and an MCP server whose tool hangs."""

    silent: int
    hanging: int


@dataclass(frozen=True)
class Keys:
    attacker: str
    victim: str


@dataclass(frozen=True)
class Template:
    """The folder of a service that has stopped: each attack begins with a copy, since another may leave traces."""

    folder: Path
    keys: Keys
    server_id: str
    """A server of the victim, for pushes."""


@dataclass
class Stage:
    service: Service
    ports: Ports
    template: Template
    _numbers: Iterator[int]
    attacker_statuses: Counter[str] = field(default_factory=Counter)
    """How the attacker's requests were answered."""

    @property
    def keys(self) -> Keys:
        return self.template.keys

    def next_number(self) -> int:
        """Return a number for questions and texts that nobody has sent before."""
        return next(self._numbers)

    def attacker(self) -> httpx.Client:
        return self.client(self.keys.attacker)

    def client(self, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.service.url, headers=headers, timeout=60)

    def victim(self, kind: Kind) -> Victim:
        upstream_url = f"http://localhost:{self.ports.hanging}/mcp"
        start = self.next_number()
        return Victim(self.service.url, self.keys.victim, kind, self.template.server_id, upstream_url, start)

    def read_memory_mb(self) -> float:
        return psutil.Process(self.service.process.pid).memory_info().rss / 2**20

    def read_gauge(self, name: str) -> float:
        text = httpx.get(f"{self.service.url}/metrics").text
        families = text_string_to_metric_families(text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def count_connections(self) -> int:
        """Count the connections of clients, without those that the service makes itself."""
        connections = psutil.Process(self.service.process.pid).net_connections(kind="tcp")
        return sum(each.laddr.port == self.service.port and each.status == "ESTABLISHED" for each in connections)

    def wait_for_release(self) -> dict[str, float]:
        """Hang up, and return what is still held after `RELEASE_S`; nothing, as soon as all is released."""
        self._close_own_connections()
        deadline = time.monotonic() + RELEASE_S
        while held := self._list_held():
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return held

    def _close_own_connections(self) -> None:
        """Close what a cancelled HTTP client has left open: the service may keep such a connection for its next use."""
        for connection in psutil.Process().net_connections(kind="tcp"):
            if connection.raddr and connection.raddr.port == self.service.port:
                # a copy: the client's own socket closes its descriptor some time
                with socket.socket(fileno=os.dup(connection.fd)) as copied, suppress(OSError):
                    copied.shutdown(socket.SHUT_RDWR)

    def _list_held(self) -> dict[str, float]:
        held = {label: self.read_gauge(name) for label, name in _GAUGES.items()}
        held["connections"] = self.count_connections()
        return {label: value for label, value in held.items() if value}


def make_template(folder: Path, products: Sequence[str]) -> Template:
    """Create an attacker with the tools of these products and a victim with 100 tools, and stop the service."""
    with running_service(folder) as service, service.admin() as admin:
        keys = {}
        for user, owned in ((ATTACKER, products), (VICTIM, PRODUCTS[:2])):
            push_tools(service, owned, user)
            keys[user] = admin.post("/keys", json={"kind": "user", "user_id": user}).raise_for_status().json()["key"]
        with service.admin(VICTIM) as client:
            server = (
                client.post("/servers", json={"name": PUSHED_SERVER, "transport": "push"}).raise_for_status().json()
            )
    return Template(folder, Keys(keys[ATTACKER], keys[VICTIM]), server["id"])


@contextmanager
def open_stage(
    template: Template, folder: Path, ports: Ports, settings: Mapping[str, str], module: str = "app"
) -> Iterator[Stage]:
    # not `shutil.copytree`, which loses the owner: as root, Postgres runs as a user of its own
    subprocess.run(["cp", "-a", str(template.folder / "data"), str(folder / "data")], check=True)  # noqa: S607
    allowed = ",".join(
        f"{host}:{port}" for host in ("127.0.0.1", "localhost") for port in (ports.silent, ports.hanging)
    )
    with running_service(folder, {"TOOLSCOUT_OUTBOUND_ALLOW": allowed, **settings}, module=module) as service:
        yield Stage(service, ports, template, itertools.count(time.time_ns() // 1_000_000 % 1_000_000, 10_000))
