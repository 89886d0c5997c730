"""A real Postgres, a real embedder and the real application, opened once; each test works for users of its own."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from pydantic import SecretStr

from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from app.main import create_app
from app.mcp_client.url_guard import Resolve
from app.settings import Settings
from tests.support.embedding_server import FakeEmbeddingServer, running_embedding_server
from tests.support.mcp_server import FakeMcpServer, running_mcp_servers

ADMIN_KEY = "an-admin-key-for-tests"
PATIENT = {"TOOLSCOUT_QUERY_EMBED_BUDGET_MS": "60000", "TOOLSCOUT_CONNECT_TIMEOUT_S": "120"}
"""For services in processes of their own: on a busy machine all may take longer than a user would wait."""
SECRET_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


settings.register_profile("on any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("on any machine")

UNMEASURED = {
    "test_asked.py",
    "test_audit.py",
    "test_bad_input.py",
    "test_calls.py",
    "test_browser.py",
    "test_changes.py",
    "test_connection.py",
    "test_embedder_failures.py",
    "test_hybrid.py",
    "test_isolation.py",
    "test_mcp_server.py",
    "test_outbound.py",
    "test_projects.py",
    "test_push.py",
    "test_reindex.py",
    "test_visibility_proof.py",
}
"""Measuring makes Python half as fast. These run, many times over, what others run too: the figure without them is what
the suite covers at least."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Journeys first, since they are long: at the end one core would wait for the other. Else the order is random."""
    items.sort(key=lambda item: "journeys" not in item.path.parts)
    for item in items:
        if item.path.name in UNMEASURED:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Whatever a test opens, it stays on this machine."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to connect to {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        yield


@pytest.fixture(scope="session", autouse=True)
def _time_for_everything() -> Iterator[None]:
    """However slowly this machine answers, nobody is told to come again who would have had a connection, and what tests
    have made older than it is, or of tools that there are not, is not tidied up under their hands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.db.retention._FIRST_S", 86_400)
        patch.setattr("app.indexing.worker._LOOK_ROUND_S", 86_400)
        patch.setattr("app.db.engine._POOL_WAIT_S", 60)
        patch.setattr("app.db.engine._CONNECT_S", 60)
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # what it holds need not outlive the machine
        connection.execute("SELECT pg_reload_conf()")
    yield server
    server.stop()


@pytest.fixture
def fresh_database(postgres: EmbeddedPostgres) -> str:
    """The URL of a database of its own, as its owner, on the same Postgres."""
    return make_database(postgres)


def make_database(postgres: EmbeddedPostgres) -> str:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres.url.replace("/toolscout?", f"/{name}?")


def make_settings(tmp_path: Path, **changes: Any) -> Settings:
    values = {
        "data_dir": tmp_path,
        "secret_key": SecretStr(SECRET_KEY),
        "admin_api_key": SecretStr(ADMIN_KEY),
        "demo": False,
        "database_pool_size": 5,
        "reindex_every_s": 0,  # servers of tests that are long over would be asked again
        "query_embed_budget_ms": 60_000,  # as `PATIENT` says
        "catalog_embed_budget_s": 60.0,
        **changes,
    }
    return Settings(_env_file=None, **values)


@pytest.fixture(scope="session")
def mcp_servers() -> Iterator[dict[str, FakeMcpServer]]:
    """One of each kind for all tests, which take them through `mcp`, `legacy_mcp` and `sse_mcp`."""
    with running_mcp_servers() as servers:
        yield servers


def allowing(*servers: FakeMcpServer) -> str:
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


async def no_names(host: str, _port: int) -> Sequence[str]:
    """A resolver that knows nobody: also asking for names stays on this machine."""
    raise OSError(f"{host} is not known here")


@pytest.fixture(scope="session")
async def container(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    mcp_servers: dict[str, FakeMcpServer],
) -> AsyncIterator[Container]:
    settings = make_settings(tmp_path_factory.mktemp("data"), outbound_allow=allowing(*mcp_servers.values()))
    async with open_container(settings, make_database(postgres), no_names) as opened:
        yield opened


@pytest.fixture
def mcp(mcp_servers: dict[str, FakeMcpServer]) -> FakeMcpServer:
    """A server that speaks the newest protocol, well-behaved and with no tools until told otherwise."""
    return fresh(mcp_servers["modern"])


@pytest.fixture
def legacy_mcp(mcp_servers: dict[str, FakeMcpServer]) -> FakeMcpServer:
    return fresh(mcp_servers["legacy"])


@pytest.fixture
def sse_mcp(mcp_servers: dict[str, FakeMcpServer]) -> FakeMcpServer:
    return fresh(mcp_servers["sse"])


def fresh(server: FakeMcpServer) -> FakeMcpServer:
    unspoiled = FakeMcpServer(server.transport, server.era, server.port)
    for field in fields(FakeMcpServer):
        if field.name != "streams":
            setattr(server, field.name, getattr(unspoiled, field.name))
    return server


@pytest.fixture(scope="session")
async def client(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    """Speaks to the application with no key at all."""
    async with client_of(container) as opened:
        yield opened


@asynccontextmanager
async def client_of(container: Container, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app_of(container), raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://toolscout", headers=headers, timeout=60
    ) as opened:
        yield opened


def app_of(container: Container) -> FastAPI:
    """One for each container: a new one reads all its routes anew, which takes longer than most tests. It is kept with
    the container, and goes with it and its model's weights."""
    app: FastAPI = container.__dict__.get("app") or create_app(container)
    container.__dict__["app"] = app
    return app


@pytest.fixture(scope="session")
async def address(container: Container) -> AsyncIterator[str]:
    """Of the application behind a socket, for clients that bring their own way to connect."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app_of(container), log_config=None, lifespan="off", ws="none"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    async with asyncio.timeout(60):
        while not server.started:  # noqa: ASYNC110 uvicorn offers nothing to wait for
            await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest.fixture(scope="session")
async def admin(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(container, Authorization=f"Bearer {ADMIN_KEY}") as opened:
        yield opened


class TestUser:
    """A user of its own for a test, and the calls that most tests begin with."""

    __test__ = False

    def __init__(self, user_id: str, key: str, http: httpx.AsyncClient) -> None:
        self.id = user_id
        self.key = key
        self.http = http

    async def add_server(self, name: str = "files", **fields: Any) -> str:
        answer = await self.http.post("/servers", json={"name": name, "transport": "push", **fields})
        assert answer.status_code == 201, answer.text
        server_id: str = answer.json()["id"]
        return server_id

    async def leave(self, container: Container) -> None:
        """Runs and connections that stay would ask the fakes again, and fill the log, while later tests look at them.
        Not by the API: a test may have taken the user's keys."""
        async with container.database.system_transaction() as session:
            await session.rows(
                "DELETE FROM mcp_servers WHERE user_id = %(user)s AND transport <> 'push'", {"user": self.id}
            )
        container.mcp_pool.forget_user(self.id)
        if going_on := container.worker._runs | container.mcp_pool._closing:
            await asyncio.wait(going_on, timeout=5)

    async def push(self, server_id: str, tools: list[Any], **query: Any) -> dict[str, Any]:
        """The finished run."""
        answer = await self.http.put(
            f"/servers/{server_id}/tools", json={"tools": tools}, params={"wait": True, **query}
        )
        assert answer.status_code == 200, answer.text
        run: dict[str, Any] = answer.json()
        return run

    async def add_tools(self, *tools: dict[str, Any], server: str = "files", **fields: Any) -> str:
        server_id = await self.add_server(server, **fields)
        run = await self.push(server_id, list(tools))
        assert run["state"] == "succeeded", run
        return server_id

    async def connect(self, server: FakeMcpServer, name: str = "files", **fields: Any) -> str:
        """Registers the server and waits until what it offers is indexed."""
        server_id = await self.add_server(name, transport=server.transport, url=server.url, **fields)
        run = await self.reindex(server_id)
        assert run["state"] == "succeeded", run
        return server_id

    async def reindex(self, server_id: str, **query: Any) -> dict[str, Any]:
        """The finished run."""
        answer = await self.http.post(f"/servers/{server_id}/reindex", params={"wait": True, **query})
        assert answer.status_code == 200, answer.text
        run: dict[str, Any] = answer.json()
        return run

    async def execute(self, tool_name: str, arguments: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
        tool_key = (await self.tools())[tool_name]["id"]
        body = {"tool_key": tool_key, "arguments": arguments or {}, **fields}
        return await self.http.post("/execute", json=body)

    async def discover(self, query: str, **fields: Any) -> dict[str, Any]:
        answer = await self.http.post("/discover", json={"query": query, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def tools(self) -> dict[str, dict[str, Any]]:
        """By name."""
        answer = await self.http.get("/tools", params={"limit": 200})
        return {tool["name"]: tool for tool in answer.json()["items"]}


UserFactory = Callable[[], Awaitable[TestUser]]


@asynccontextmanager
async def new_user(container: Container, user_id: str | None = None) -> AsyncIterator[TestUser]:
    user_id = user_id or f"user-{uuid.uuid4().hex[:12]}"
    async with client_of(container, Authorization=f"Bearer {ADMIN_KEY}") as administrator:
        await administrator.post("/users", json={"id": user_id})
        made = await administrator.post("/keys", json={"kind": "user", "user_id": user_id})
    key = made.json()["key"]
    async with client_of(container, Authorization=f"Bearer {key}") as http:
        user = TestUser(user_id, key, http)
        yield user
        await user.leave(container)


@pytest.fixture
async def user(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as made:
        yield made


@pytest.fixture
async def other_user(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as made:
        yield made


@pytest.fixture
def embedding_server() -> Iterator[FakeEmbeddingServer]:
    with running_embedding_server() as server:
        yield server


OpenService = Callable[..., AbstractAsyncContextManager[Container]]


@pytest.fixture
def open_service(postgres: EmbeddedPostgres, tmp_path: Path) -> OpenService:
    """A service of its own on a fresh database, for tests that need other settings; use as `async with`."""

    def open_with(resolve: Resolve = no_names, **changes: Any) -> AbstractAsyncContextManager[Container]:
        return open_container(make_settings(tmp_path, **changes), make_database(postgres), resolve)

    return open_with


def tool(name: str, description: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": {}}, **fields}
