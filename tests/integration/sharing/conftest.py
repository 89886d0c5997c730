"""A service of its own, because a server that is shared with everyone would reach the users of other tests."""

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from app.container import Container
from tests.support.clients import TestUser, new_user, open_client
from tests.support.embedding_server import FakeEmbeddingServer, running_embedding_server
from tests.support.factories import ADMIN_KEY, OpenService
from tests.support.shared_servers import settle


@pytest.fixture(scope="package")
def embedder() -> Iterator[FakeEmbeddingServer]:
    with running_embedding_server() as server:
        yield server


@pytest.fixture(scope="package")
async def service(open_shared_service: OpenService, embedder: FakeEmbeddingServer) -> AsyncIterator[Container]:
    async with open_shared_service(**embedder.settings()) as opened:
        yield opened


@pytest.fixture
async def admin(service: Container) -> AsyncIterator[httpx.AsyncClient]:
    """An administrator, whose shared servers are gone after the test."""
    async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as client:
        yield client
        for shared in (await client.get("/shared-servers", params={"limit": 200})).json()["items"]:
            assert (await client.delete(f"/shared-servers/{shared['id']}")).status_code == 204
        await settle(service)


@pytest.fixture
async def member(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service, f"member-{uuid.uuid4().hex[:8]}") as user:
        yield user


@pytest.fixture
async def stranger(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service, f"stranger-{uuid.uuid4().hex[:8]}") as user:
        yield user
