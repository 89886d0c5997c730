"""Two replicas on one Postgres: both see every change, and stopping one fails no request."""

import asyncio
import re
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, free_port, running_service
from tests.support.factories import SECRET_KEY, SLOW_MACHINE_ENV, make_database, tool
from tests.support.nginx import running_nginx
from tests.support.worker_steps import until

REQUESTS_PER_SECOND = 50
MAX_CONCURRENT = 10
"""A limit for slow machines: no more than can be answered within the grace period of a stop."""
STOP_LIMIT_S = 15
"""The grace period in docker-compose.yml."""
QUESTION = {"query": "list the files", "limit": 5}
TOOLS = [
    tool(name, f"Does {name.replace('_', ' ')}.") for name in ("list_files", "read_file", "send_mail", "get_weather")
]
VOLATILE_FIELDS = re.compile(rb'"discovery_id":"[^"]+"|"search_duration_ms":[0-9.]+')


class Replicas:
    """Two services that start at the same time, as after a release."""

    def __init__(self, folder: Path, url: str) -> None:
        self._settings = {"DATABASE_URL": url, "TOOLSCOUT_SECRET_KEY": SECRET_KEY, **SLOW_MACHINE_ENV}
        self._folders = [folder / name for name in ("a", "b")]
        self._stacks = [ExitStack(), ExitStack()]
        for each in self._folders:
            each.mkdir()
        with ThreadPoolExecutor(2) as threads:
            self.services = list(threads.map(self._start, (0, 1), (free_port(), free_port())))

    def _start(self, index: int, port: int) -> Service:
        return self._stacks[index].enter_context(running_service(self._folders[index], self._settings, port))

    def stop(self, index: int) -> float:
        """Stop the replica and return how long that took."""
        process = self.services[index].process
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        return time.monotonic() - started

    def restart(self, index: int) -> None:
        self.services[index] = self._start(index, self.services[index].port)

    def revive(self) -> None:
        """Restart the replicas that a test has left stopped."""
        for index, service in enumerate(self.services):
            if service.process.poll() is not None:
                self.restart(index)

    def close(self) -> None:
        for stack in self._stacks:
            stack.close()


@pytest.fixture(scope="module")
def replicas(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    both = Replicas(tmp_path_factory.mktemp("replicas"), make_database(postgres))
    yield both
    both.close()


class Owner:
    """A user with a key and a server, created through the first replica."""

    def __init__(self, replicas: Replicas) -> None:
        user_id = uuid.uuid4().hex
        first, second = replicas.services
        self._admin = first.admin()
        self._admin.post("/users", json={"id": user_id})
        made = self._admin.post("/keys", json={"kind": "user", "user_id": user_id}).json()
        self.key_id, self.bearer = made["id"], {"Authorization": f"Bearer {made['key']}"}
        self.first = httpx.Client(base_url=first.url, headers=self.bearer, timeout=30)
        self.second = httpx.Client(base_url=second.url, headers=self.bearer, timeout=30)
        server = self.first.post("/servers", json={"name": "files", "transport": "push"}).json()
        self.tools_url = f"/servers/{server['id']}/tools"
        self.push(TOOLS)

    def push(self, tools: list[dict[str, Any]]) -> None:
        run = self.first.put(self.tools_url, json={"tools": tools}, params={"wait": True}).json()
        assert run["state"] == "succeeded", run

    def close(self) -> None:
        for client in (self._admin, self.first, self.second):
            client.close()

    def revoke(self) -> None:
        assert self._admin.delete(f"/keys/{self.key_id}").status_code == 204


@pytest.fixture
def owner(replicas: Replicas) -> Iterator[Owner]:
    replicas.revive()
    made = Owner(replicas)
    yield made
    made.close()


def found_names(client: httpx.Client) -> set[str]:
    return {found["tool"]["name"] for found in client.post("/discover", json=QUESTION).json()["tools"]}


def becomes_true_within_a_second(look: Callable[[], bool]) -> bool:
    """Check repeatedly, and once more after the second, however long a check takes."""
    deadline, is_last = time.monotonic() + 1, False
    while not is_last:
        is_last = time.monotonic() >= deadline
        if look():
            return True
    return False


def test_a_change_through_one_replica_is_visible_on_the_other_within_a_second(owner: Owner) -> None:
    assert "list_files" in found_names(owner.second)
    owner.push([*TOOLS, tool("list_the_files_of_all", "Lists the files of all folders.")])
    assert becomes_true_within_a_second(lambda: "list_the_files_of_all" in found_names(owner.second))
    owner.first.put("/rules", json={"rules": [{"pattern": ["list_files"], "enabled": False}]})
    assert becomes_true_within_a_second(lambda: "list_files" not in found_names(owner.second))
    owner.first.put("/rules", json={"rules": []})
    assert becomes_true_within_a_second(lambda: "list_files" in found_names(owner.second))


def test_a_key_revoked_through_one_replica_is_rejected_by_the_other_within_a_second(owner: Owner) -> None:
    assert owner.second.get("/tools").status_code == 200
    owner.revoke()
    assert becomes_true_within_a_second(lambda: owner.second.get("/tools").status_code == 401)


@pytest.mark.parametrize("shape", ["mcp", "openai", "openai_responses", "anthropic"])
def test_both_replicas_return_the_same_bytes_for_the_same_request(owner: Owner, shape: str) -> None:
    question = QUESTION | {"format": shape, "explain": True}
    answers = [client.post("/discover", json=question).content for client in (owner.first, owner.second)]
    first, second = (VOLATILE_FIELDS.sub(b"", answer) for answer in answers)
    assert b"list_files" in first
    assert first == second
    assert answers[0] != answers[1]


class Load:
    """Sends requests at a fixed rate, up to a limit of unanswered ones."""

    def __init__(self, send: Callable[[], Awaitable[httpx.Response]]) -> None:
        self._send = send
        self._unanswered = 0
        self.outcomes: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stopped = asyncio.Event()
        sending = asyncio.create_task(self._send_all(stopped))
        yield
        stopped.set()
        await sending

    async def _send_all(self, stopped: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as requests:
            while not stopped.is_set():
                if self._unanswered < MAX_CONCURRENT:
                    requests.create_task(self._send_one())
                await asyncio.sleep(1 / REQUESTS_PER_SECOND)

    async def _send_one(self) -> None:
        self._unanswered += 1
        try:
            self.outcomes.append(str((await self._send()).status_code))
        except httpx.TransportError as error:
            self.outcomes.append(repr(error))
        finally:
            self._unanswered -= 1

    async def has_started(self) -> bool:
        return len(self.outcomes) >= REQUESTS_PER_SECOND

    @property
    def failures(self) -> list[str]:
        return [outcome for outcome in self.outcomes if outcome != "200"]


@pytest.mark.no_retry
@pytest.mark.needs_nginx
async def test_a_rolling_restart_behind_a_proxy_fails_no_request(
    replicas: Replicas, owner: Owner, tmp_path: Path
) -> None:
    ports = [service.port for service in replicas.services]
    with running_nginx(tmp_path, ports) as url:
        async with httpx.AsyncClient(base_url=url, headers=owner.bearer, timeout=30) as http:
            load = Load(lambda: http.post("/discover", json=QUESTION))
            async with load.running():
                for index in (0, 1):
                    assert await asyncio.to_thread(replicas.stop, index) < STOP_LIMIT_S
                    await asyncio.to_thread(replicas.restart, index)
    assert len(load.outcomes) > REQUESTS_PER_SECOND
    assert load.failures == []


@pytest.mark.no_retry
async def test_a_stop_under_load_fails_no_accepted_request(replicas: Replicas, owner: Owner) -> None:
    """Without a proxy, on persistent connections. A refused connection is retried on the other replica."""
    first, second = (service.url for service in replicas.services)
    async with httpx.AsyncClient(headers=owner.bearer, timeout=30) as http:

        async def send() -> httpx.Response:
            try:
                return await http.post(f"{first}/discover", json=QUESTION)
            except httpx.ConnectError:
                return await http.post(f"{second}/discover", json=QUESTION)

        load = Load(send)
        async with load.running():
            await until(load.has_started)
            assert await asyncio.to_thread(replicas.stop, 0) < STOP_LIMIT_S
    assert load.failures == []
    with pytest.raises(httpx.ConnectError):
        owner.first.get("/healthz")
    assert owner.second.get("/healthz").status_code == 200
