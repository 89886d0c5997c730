"""Two Toolscouts, one the cloud of the other: killing the cloud fails no request, and starting it again heals."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.local_postgres.postgres import EmbeddedPostgres
from bench.service import Service, free_port, running_service
from tests.support.factories import SECRET_KEY, SLOW_MACHINE_ENV, make_database, tool
from tests.support.worker_steps import until

pytestmark = pytest.mark.no_retry

Json = dict[str, Any]

CLIENTS = 4
QUESTION = "what is the weather forecast for Vienna?"
TOOLS = [
    tool("get_forecast", "The weather forecast for a city."),
    tool("refund_payment", "Give a customer their money back after a payment."),
    tool("read_file", "Read a text file from the disk."),
]


class Cloud:
    """A Toolscout without tools of its own, which searches the tools of others. It can be killed and started again."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._settings = {"DATABASE_URL": url, "TOOLSCOUT_SECRET_KEY": SECRET_KEY, **SLOW_MACHINE_ENV}
        self._stack = ExitStack()
        self.port = free_port()
        self.service = self.start()

    def start(self) -> Service:
        self.service = self._stack.enter_context(running_service(self._folder, self._settings, self.port))
        return self.service

    def kill(self) -> None:
        self.service.process.send_signal(signal.SIGKILL)
        self.service.process.wait(60)

    def create_key(self) -> str:
        with self.service.admin() as admin:
            key: str = admin.post("/keys", json={"kind": "user", "user_id": create_user(admin, "front")}).json()["key"]
        return key

    def close(self) -> None:
        self._stack.close()


def create_user(admin: httpx.Client, user_id: str) -> str:
    assert admin.post("/users", json={"id": user_id}).status_code == 201
    return user_id


@pytest.fixture(scope="module")
def cloud(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    running = Cloud(tmp_path_factory.mktemp("cloud"), make_database(postgres))
    yield running
    running.close()


@pytest.fixture(scope="module")
def front(postgres: EmbeddedPostgres, cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The Toolscout that holds the tools and asks the other one."""
    settings = {
        "DATABASE_URL": make_database(postgres),
        "TOOLSCOUT_SECRET_KEY": SECRET_KEY,
        "TOOLSCOUT_CLOUD_URL": cloud.service.url,
        "TOOLSCOUT_CLOUD_KEY": cloud.create_key(),
        "TOOLSCOUT_CLOUD_TIMEOUT_S": "60",
        "TOOLSCOUT_BREAKER_RETRY_S": "0.2",
        **SLOW_MACHINE_ENV,
    }
    with running_service(tmp_path_factory.mktemp("front"), settings) as service:
        yield service


@pytest.fixture(scope="module")
def project(front: Service) -> Json:
    """A project that is searched through the cloud, of a user with tools."""
    with front.admin() as admin:
        create_user(admin, "alice")
    with front.admin("alice") as alice:
        server = alice.post("/servers", json={"name": "tools", "transport": "push"}).json()
        run = alice.put(f"/servers/{server['id']}/tools", json={"tools": TOOLS}, params={"wait": True}).json()
        assert run["state"] == "succeeded", run
        created = alice.post("/projects", json={"name": "p", "optimization": "cloud"})
    assert created.status_code == 201, created.text
    body: Json = created.json()
    return body


class Load:
    """Some clients that send the same request again and again, and the answers in the order of their arrival."""

    def __init__(self, front: Service, project_id: str) -> None:
        self._http = httpx.AsyncClient(base_url=front.url, headers=dict(front.admin("alice").headers), timeout=120)
        self._body = {"query": QUESTION, "project_id": project_id}
        self.answers: list[Json] = []
        self.failures: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stopped = asyncio.Event()
        async with self._http, asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._send_until(stopped))
            try:
                yield
            finally:
                stopped.set()

    async def _send_until(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            try:
                answer = await self._http.post("/discover", json=self._body)
            except httpx.TransportError as error:
                self.failures.append(repr(error))
                continue
            if answer.status_code == 200:
                self.answers.append(answer.json())
            else:
                self.failures.append(answer.text)

    async def wait_for(self, strategy: str, reason: str | None) -> None:
        """Wait until answers that arrive from now on have this strategy and reason."""
        before = len(self.answers)

        async def has_arrived() -> bool:
            recent = self.answers[before:]
            return any((each["strategy"], each["degraded_reason"]) == (strategy, reason) for each in recent)

        await until(has_arrived)


async def get_warnings(front: Service) -> str:
    async with httpx.AsyncClient(base_url=front.url) as http:
        ready = await http.get("/readyz")
    assert ready.status_code == 200, "an unreachable cloud never makes a service unready"
    return str(ready.json()["warnings"])


async def test_killing_the_cloud_fails_no_request_and_starting_it_again_heals(
    front: Service, cloud: Cloud, project: Json
) -> None:
    load = Load(front, project["id"])
    async with load.running():
        await load.wait_for("cloud", None)
        assert "cloud" not in await get_warnings(front)
        await asyncio.to_thread(cloud.kill)
        await load.wait_for("bm25", "cloud_breaker_open")
        assert "the cloud (TOOLSCOUT_CLOUD_URL) cannot be used (unreachable)" in await get_warnings(front)
        await asyncio.to_thread(cloud.start)
        await load.wait_for("cloud", None)
        assert "cloud" not in await get_warnings(front)
    assert load.failures == []
    reasons = {each["degraded_reason"] for each in load.answers if each["degraded"]}
    assert reasons <= {"cloud_unreachable", "cloud_breaker_open", "cloud_status_503"}, reasons
    assert all(each["tools"][0]["tool"]["name"] == "get_forecast" for each in load.answers)
    assert {each["strategy"] for each in load.answers} == {"cloud", "bm25"}


async def test_the_cloud_ranks_as_the_service_itself_would(front: Service, project: Json) -> None:
    with front.admin("alice") as alice:
        for query in (QUESTION, "give the customer the money back", "open notes.txt", "hello, how are you?"):
            asked = alice.post("/discover", json={"query": query, "project_id": project["id"]}).json()
            own = alice.post("/discover", json={"query": query, "strategy": "hybrid"}).json()
            assert (asked["strategy"], own["strategy"]) == ("cloud", "hybrid")
            assert [each["tool"]["name"] for each in asked["tools"]] == [each["tool"]["name"] for each in own["tools"]]
            scores = [each["score"] for each in own["tools"]]
            assert [each["score"] for each in asked["tools"]] == pytest.approx(scores, abs=5e-4), query
            assert asked["no_match"] == own["no_match"]
