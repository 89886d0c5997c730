"""Two services on one fake embedder: one with a worker, and one whose runs the tests execute step by step."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import openai._base_client
import pytest
from openai import AsyncOpenAI

from app.container import Container
from app.embeddings.loaded_models import LoadedModel
from app.embeddings.openai import OpenAIEmbedder
from app.indexing.reindex import Indexer
from tests.support.clients import TestUser, get_app
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer, running_embedding_server
from tests.support.factories import ADMIN_KEY, OpenService, outbound_allow
from tests.support.mcp_server import FakeMcpServer
from tests.support.worker_steps import Hand, rows

UNUSED_ADDRESS = "127.0.0.1:9"
"""An allowed address on which nothing listens."""


@pytest.fixture(autouse=True)
def short_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between the retries of the OpenAI client."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture(scope="session")
def shared_fake() -> Iterator[FakeEmbeddingServer]:
    with running_embedding_server() as server:
        yield server


@pytest.fixture
def fake(shared_fake: FakeEmbeddingServer) -> Iterator[FakeEmbeddingServer]:
    """The fake embedder, working and with an empty log; it works again after the test."""
    shared_fake.mode, shared_fake.status, shared_fake.requests = "ok", 500, []
    yield shared_fake
    shared_fake.mode = "ok"
    shared_fake.release()


@pytest.fixture(scope="session")
async def service(open_shared_service: OpenService, shared_fake: FakeEmbeddingServer) -> AsyncIterator[Container]:
    async with open_shared_service(**shared_fake.settings()) as opened:
        yield opened


@pytest.fixture(scope="session")
async def idle_service(
    open_shared_service: OpenService, shared_fake: FakeEmbeddingServer, mcp_servers: dict[str, FakeMcpServer]
) -> AsyncIterator[Container]:
    allowed = f"{outbound_allow(*mcp_servers.values())},{UNUSED_ADDRESS}"
    async with open_shared_service(outbound_allow=allowed, **shared_fake.settings(index_concurrency=0)) as opened:
        yield opened


@pytest.fixture(scope="session")
async def embedder(shared_fake: FakeEmbeddingServer) -> AsyncIterator[OpenAIEmbedder]:
    client = AsyncOpenAI(api_key="none", base_url=shared_fake.base_url)
    embedder = OpenAIEmbedder(client, "fake-words", query_timeout_s=20, index_timeout_s=20)
    embedder.expect_dimension(DIMENSION)
    yield embedder
    await embedder.aclose()


@pytest.fixture
async def hand(idle_service: Container, embedder: OpenAIEmbedder, fake: FakeEmbeddingServer) -> Hand:
    """The service without a worker, and without users: all users share the queue."""
    await rows(idle_service, "DELETE FROM users")

    async def models() -> list[LoadedModel]:
        return [replace(loaded, embedder=embedder) for loaded in await idle_service.models.refresh()]

    indexer = Indexer(
        database=idle_service.database,
        nodes=idle_service.nodes,
        models=models,
        count_tokens=idle_service.count_tokens,
        metrics=idle_service.metrics,
        max_tools=1_000,
        ann_above=20_000,
        mcp_pool=idle_service.mcp_pool,
        connector=idle_service.connector,
        computing=asyncio.Semaphore(2),
    )
    return Hand(idle_service, indexer)


@pytest.fixture(scope="session")
def idle_transport(idle_service: Container) -> httpx.ASGITransport:
    """One application for all tests: creating its routes takes longer than most tests."""
    return httpx.ASGITransport(get_app(idle_service), raise_app_exceptions=False)


@pytest.fixture(scope="session")
def transport(service: Container) -> httpx.ASGITransport:
    return httpx.ASGITransport(get_app(service), raise_app_exceptions=False)


@asynccontextmanager
async def open_user(transport: httpx.ASGITransport, container: Container) -> AsyncIterator[TestUser]:
    def client(key: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=transport, base_url="http://toolscout", headers=headers, timeout=60)

    user_id = f"user-{uuid.uuid4().hex[:12]}"
    async with client(ADMIN_KEY) as admin:
        await admin.post("/users", json={"id": user_id})
        made = await admin.post("/keys", json={"kind": "user", "user_id": user_id})
        key = made.json()["key"]
        async with client(key) as http:
            user = TestUser(user_id, key, http)
            yield user
            await user.leave(container)
        # pending tools would make the worker call the embedder during later tests
        await admin.delete(f"/users/{user_id}")


@pytest.fixture
async def alice(hand: Hand, idle_transport: httpx.ASGITransport) -> AsyncIterator[TestUser]:
    """A user of the service without a worker."""
    async with open_user(idle_transport, hand.container) as user:
        yield user


@pytest.fixture
async def bob(hand: Hand, idle_transport: httpx.ASGITransport) -> AsyncIterator[TestUser]:
    async with open_user(idle_transport, hand.container) as user:
        yield user


@pytest.fixture
async def carol(
    service: Container, transport: httpx.ASGITransport, fake: FakeEmbeddingServer
) -> AsyncIterator[TestUser]:
    """A user of the service with a worker."""
    async with open_user(transport, service) as user:
        yield user


@pytest.fixture
async def dave(
    service: Container, transport: httpx.ASGITransport, fake: FakeEmbeddingServer
) -> AsyncIterator[TestUser]:
    async with open_user(transport, service) as user:
        yield user
