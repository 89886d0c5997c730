"""A service with a registry on loopback, whose allow-list names two namespaces and one server."""

from collections.abc import AsyncIterator, Iterator

import pytest

from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, new_user
from tests.support.factories import make_database, make_settings, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer, running_mcp_server
from tests.support.registry_server import FakeRegistry, running_registry


@pytest.fixture(scope="module")
def shared_registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeMcpServer]:
    with running_mcp_server() as running:
        running.tools = [tool("get_forecast", "Weather forecast")]
        yield running


@pytest.fixture
def registry(shared_registry: FakeRegistry) -> Iterator[FakeRegistry]:
    shared_registry.reset()
    yield shared_registry
    shared_registry.mode = "ok"
    shared_registry.release()


@pytest.fixture(scope="module")
async def service(
    postgres: EmbeddedPostgres,
    shared_registry: FakeRegistry,
    upstream: FakeMcpServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Container]:
    settings = make_settings(
        tmp_path_factory.mktemp("registry"),
        registry_url=shared_registry.url,
        registry_allow="com.acme/*, io.github.acme*/tools-*, org.exact/one",
        outbound_allow=outbound_allow(upstream),
        breaker_failures=1_000,
    )
    async with open_container(settings, make_database(postgres)) as opened:
        yield opened


@pytest.fixture
async def searcher(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as made:
        yield made
