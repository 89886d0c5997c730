"""Two services on one fake embedder: one whose worker works, and one whose runs are driven by hand."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import openai._base_client
import pytest
from openai import AsyncOpenAI

from app.container import Container, open_container
from app.embeddings.models import LoadedModel
from app.embeddings.openai import OpenAIEmbedder
from app.indexing.reindex import Indexer
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, get_app
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer, running_embedding_server
from tests.support.factories import ADMIN_KEY, make_database, make_settings, outbound_allow, resolve_nothing
from tests.support.mcp_server import FakeMcpServer
from tests.support.worker_steps import Hand, rows

NOBODY = "127.0.0.1:9"
"""Where we may connect and nobody listens."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The OpenAI client's own pauses between tries, cut short."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture(scope="session")
def shared_fake() -> Iterator[FakeEmbeddingServer]:
    with running_embedding_server() as server:
        yield server


@pytest.fixture
def fake(shared_fake: FakeEmbeddingServer) -> Iterator[FakeEmbeddingServer]:
    """Well and with an empty log, and left well for whoever comes next."""
    shared_fake.mode, shared_fake.status, shared_fake.requests = "ok", 500, []
    yield shared_fake
    shared_fake.mode = "ok"
    shared_fake.release()


@pytest.fixture(scope="session")
async def service(
    postgres: EmbeddedPostgres,
    shared_fake: FakeEmbeddingServer,
    tmp_path_factory: pytest.TempPathFactory,
    mcp_servers: dict[str, FakeMcpServer],
) -> AsyncIterator[Container]:
    settings = make_settings(
        tmp_path_factory.mktemp("indexing"),
        outbound_allow=outbound_allow(*mcp_servers.values()),
        **shared_fake.settings(),
    )
    async with open_container(settings, make_database(postgres), resolve_nothing) as opened:
        yield opened


@pytest.fixture(scope="session")
async def idle_service(
    postgres: EmbeddedPostgres,
    shared_fake: FakeEmbeddingServer,
    tmp_path_factory: pytest.TempPathFactory,
    mcp_servers: dict[str, FakeMcpServer],
) -> AsyncIterator[Container]:
    settings = make_settings(
        tmp_path_factory.mktemp("idle"),
        outbound_allow=f"{outbound_allow(*mcp_servers.values())},{NOBODY}",
        **shared_fake.settings(index_concurrency=0),
    )
    async with open_container(settings, make_database(postgres), resolve_nothing) as opened:
        yield opened


@pytest.fixture(scope="session")
async def embedder(shared_fake: FakeEmbeddingServer) -> AsyncIterator[OpenAIEmbedder]:
    client = AsyncOpenAI(api_key="none", base_url=shared_fake.base_url)
    made = OpenAIEmbedder(client, "fake-words", query_timeout_s=20, index_timeout_s=20)
    made.expect_dimension(DIMENSION)
    yield made
    await made.aclose()


@pytest.fixture
async def hand(idle_service: Container, embedder: OpenAIEmbedder, fake: FakeEmbeddingServer) -> Hand:
    """With nobody in it yet: the queue is one for all users."""
    await rows(idle_service, "DELETE FROM users")

    async def models() -> list[LoadedModel]:
        return [replace(kept, embedder=embedder) for kept in await idle_service.models.refresh()]

    indexer = Indexer(
        database=idle_service.database,
        models=models,
        count_tokens=idle_service.count_tokens,
        metrics=idle_service.metrics,
        max_tools=1_000,
        ann_above=20_000,
        mcp_pool=idle_service.mcp_pool,
        sealer=idle_service.sealer,
        computing=asyncio.Semaphore(2),
    )
    return Hand(idle_service, indexer)


@pytest.fixture(scope="session")
def idle_door(idle_service: Container) -> httpx.ASGITransport:
    """One application for all tests: a new one reads its routes anew, which takes longer than most of them."""
    return httpx.ASGITransport(get_app(idle_service), raise_app_exceptions=False)


@pytest.fixture(scope="session")
def door(service: Container) -> httpx.ASGITransport:
    return httpx.ASGITransport(get_app(service), raise_app_exceptions=False)


@asynccontextmanager
async def user_through(door: httpx.ASGITransport, container: Container) -> AsyncIterator[TestUser]:
    def client(key: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=door, base_url="http://toolscout", headers=headers, timeout=60)

    user_id = f"user-{uuid.uuid4().hex[:12]}"
    async with client(ADMIN_KEY) as administrator:
        await administrator.post("/users", json={"id": user_id})
        made = await administrator.post("/keys", json={"kind": "user", "user_id": user_id})
        key = made.json()["key"]
        async with client(key) as http:
            user = TestUser(user_id, key, http)
            yield user
            await user.leave(container)
        # what is left pending would have the embedder asked, for all time, among the requests of later tests
        await administrator.delete(f"/users/{user_id}")


@pytest.fixture
async def alice(hand: Hand, idle_door: httpx.ASGITransport) -> AsyncIterator[TestUser]:
    """A user of the service that is driven by hand."""
    async with user_through(idle_door, hand.container) as made:
        yield made


@pytest.fixture
async def bob(hand: Hand, idle_door: httpx.ASGITransport) -> AsyncIterator[TestUser]:
    async with user_through(idle_door, hand.container) as made:
        yield made


@pytest.fixture
async def carol(service: Container, door: httpx.ASGITransport, fake: FakeEmbeddingServer) -> AsyncIterator[TestUser]:
    """A user of the service whose worker works."""
    async with user_through(door, service) as made:
        yield made


@pytest.fixture
async def dave(service: Container, door: httpx.ASGITransport, fake: FakeEmbeddingServer) -> AsyncIterator[TestUser]:
    async with user_through(door, service) as made:
        yield made
