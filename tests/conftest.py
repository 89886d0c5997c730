"""Fixtures for all tests: a real Postgres, a real embedder and the real application, opened once for each process.

Tests share the application and stay apart by their users: each test creates its own. A test that needs other settings
opens a service of its own with `open_service`.
"""

import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from hypothesis import HealthCheck, settings

from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from app.mcp_client.resolver import Resolve
from tests.support.clients import TestUser, new_user, open_client, serve_application
from tests.support.embedding_server import FakeEmbeddingServer, running_embedding_server
from tests.support.factories import (
    ADMIN_KEY,
    OpenService,
    make_database,
    make_empty_database,
    make_settings,
    outbound_allow,
    resolve_nothing,
)
from tests.support.local_model import share_packaged_model
from tests.support.mcp_server import FakeMcpServer, running_mcp_servers
from tests.support.streaming_replica import StreamingReplica, running_primary, running_replica

pytest_plugins = ["pytester", "tests.support.program_markers", "tests.support.retry"]

LEVELS = ("e2e", "integration", "unit")
"""The folders of `tests`, in the order in which they run."""

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for other processes a quarter of the time."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its level. Run the long ones first: at the end one core would wait for the other."""
    tests = Path(__file__).parent
    levels = {item: item.path.relative_to(tests).parts[0] for item in items}
    for item, level in levels.items():
        item.add_marker(level)
    items.sort(key=lambda item: LEVELS.index(levels[item]))


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Refuse every connection that leaves this machine."""
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to connect to {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_locally)
        yield


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Undo what a command that runs in this process sets up: a later test would log to a closed stream, or nothing."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    loggers = [root, *map(logging.getLogger, ("toolscout", "uvicorn"))]
    levels = [logger.level for logger in loggers]
    yield
    root.handlers = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def _patient_service() -> Iterator[None]:
    """Let a slow machine take its time, and keep the service from deleting or re-indexing what tests have prepared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.db.retention._FIRST_RUN_S", 86_400)
        patch.setattr("app.indexing.worker._MAINTENANCE_INTERVAL_S", 86_400)
        patch.setattr("app.db.engine._POOL_WAIT_S", 60)
        patch.setattr("app.db.engine._CONNECT_S", 60)
        yield


@pytest.fixture(scope="session", autouse=True)
def _shared_model() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_packaged_model(patch)
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Tests of the level `unit` cannot use it: `tests/unit/conftest.py` replaces it by an error."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):  # its data need not survive the machine
            connection.execute(f"ALTER SYSTEM SET {setting} = off".encode())
        connection.execute("SELECT pg_reload_conf()")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _running_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamingReplica]:
    folder = tmp_path_factory.mktemp("streaming")
    with running_primary(folder / "primary") as primary, running_replica(primary, folder / "replica") as replica:
        yield replica


@pytest.fixture
def streaming_replica(_running_replica: StreamingReplica) -> Iterator[StreamingReplica]:
    """A replica that streams from a primary of its own, whatever a test does to it."""
    yield _running_replica
    _running_replica.restore()


@pytest.fixture
def fresh_database(postgres: EmbeddedPostgres) -> str:
    """The URL of a database with the newest schema and no rows, as its owner."""
    return make_database(postgres)


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> str:
    """The URL of a database without a schema, as its owner."""
    return make_empty_database(postgres)


@pytest.fixture(scope="session")
def mcp_servers() -> Iterator[dict[str, FakeMcpServer]]:
    """One server of each kind for all tests, which use them through `mcp`, `legacy_mcp` and `sse_mcp`."""
    with running_mcp_servers() as servers:
        yield servers


@pytest.fixture(scope="session")
def open_shared_service(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, mcp_servers: dict[str, FakeMcpServer]
) -> OpenService:
    """As `open_service`, for a fixture that several tests share. The service may connect to the fake MCP servers."""
    allowed = outbound_allow(*mcp_servers.values())

    def open_with(**changes: Any) -> AbstractAsyncContextManager[Container]:
        settings = make_settings(tmp_path_factory.mktemp("data"), **{"outbound_allow": allowed, **changes})
        return open_container(settings, make_database(postgres), resolve_nothing)

    return open_with


@pytest.fixture(scope="session")
async def container(open_shared_service: OpenService) -> AsyncIterator[Container]:
    async with open_shared_service() as opened:
        yield opened


@pytest.fixture
def mcp(mcp_servers: dict[str, FakeMcpServer]) -> FakeMcpServer:
    """A server of the newest protocol, well-behaved and without tools until the test gives it some."""
    return _reset(mcp_servers["modern"])


@pytest.fixture
def legacy_mcp(mcp_servers: dict[str, FakeMcpServer]) -> FakeMcpServer:
    return _reset(mcp_servers["legacy"])


@pytest.fixture
def sse_mcp(mcp_servers: dict[str, FakeMcpServer]) -> FakeMcpServer:
    return _reset(mcp_servers["sse"])


def _reset(server: FakeMcpServer) -> FakeMcpServer:
    defaults = FakeMcpServer(server.transport, server.era, server.port)
    for field in fields(FakeMcpServer):
        if field.name != "streams":
            setattr(server, field.name, getattr(defaults, field.name))
    return server


@pytest.fixture(scope="session")
async def client(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key."""
    async with open_client(container) as opened:
        yield opened


@pytest.fixture(scope="session")
async def admin(container: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(container, Authorization=f"Bearer {ADMIN_KEY}") as opened:
        yield opened


@pytest.fixture(scope="session")
async def address(container: Container) -> AsyncIterator[str]:
    """The address of the application behind a socket, for clients that bring their own transport."""
    async with serve_application(container) as served:
        yield served


@pytest.fixture
async def user(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as created:
        yield created


@pytest.fixture
async def other_user(container: Container) -> AsyncIterator[TestUser]:
    async with new_user(container) as created:
        yield created


@pytest.fixture
def embedding_server() -> Iterator[FakeEmbeddingServer]:
    with running_embedding_server() as server:
        yield server


@pytest.fixture
def open_service(postgres: EmbeddedPostgres, tmp_path: Path) -> OpenService:
    """Open a service with other settings on a fresh database: `async with open_service(max_tools=3) as service`."""

    def open_with(resolve: Resolve = resolve_nothing, **changes: Any) -> AbstractAsyncContextManager[Container]:
        return open_container(make_settings(tmp_path, **changes), make_database(postgres), resolve)

    return open_with
