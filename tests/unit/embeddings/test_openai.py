"""The adapter to OpenAI-compatible endpoints, against a misbehaving fake endpoint."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx2
import numpy as np
import openai._base_client
import pytest
from openai import AsyncOpenAI

from app.embeddings.factory import make_configured_embedder
from app.embeddings.openai import OpenAIEmbedder
from app.errors import EmbeddingFailed
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer, Mode, embed
from tests.support.factories import make_settings
from tests.support.flaky_embedder import ChangesAfter
from tests.support.worker_steps import asked

TEXTS = ["search the web", "send a mail", "read a file"]

REASONS: dict[Mode, str] = {
    "hang": "timeout",
    "status": "status_500",
    "wrong_dimension": "wrong_dimension",
    "nan": "not_finite",
    "zeros": "no_direction",
    "short": "wrong_count",
    "doubled_index": "wrong_count",
    "not_json": "malformed",
    "wrong_shape": "malformed",
}
HARMLESS: tuple[Mode, ...] = ("ok", "shuffled")


@pytest.fixture(autouse=True)
def _short_retry_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the client's pauses between retries."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


@asynccontextmanager
async def open_embedder(base_url: str, timeout_s: float = 20, **options: Any) -> AsyncIterator[OpenAIEmbedder]:
    client = AsyncOpenAI(api_key="none", base_url=base_url, **options)
    embedder = OpenAIEmbedder(client, "fake-words", query_timeout_s=timeout_s, index_timeout_s=timeout_s)
    embedder.expect_dimension(DIMENSION)
    try:
        yield embedder
    finally:
        await embedder.aclose()


@pytest.fixture
async def embedder(embedding_server: FakeEmbeddingServer) -> AsyncIterator[OpenAIEmbedder]:
    async with open_embedder(embedding_server.base_url) as embedder:
        yield embedder


def timeout_for(mode: Mode) -> float:
    """Return a short timeout for a server that hangs, else enough for a slow machine."""
    return 0.1 if mode == "hang" else 20


async def check_request_count(server: FakeEmbeddingServer, times: int) -> None:
    """Wait for the requests: a client with a short timeout may give up before the server has read one."""
    await asked(server, times)
    assert len(server.requests) == times


def expected_vector(text: str) -> Any:
    vector = np.array(embed(text), np.float32)
    return vector / np.linalg.norm(vector)


def test_every_mode_of_the_fake_is_covered() -> None:
    later = {"hang_later"}  # the same as `hang`, after the first request
    assert {*REASONS, *HARMLESS} == set(get_args(Mode)) - later


def test_the_model_id_is_the_endpoints_name_for_the_model() -> None:
    embedder = OpenAIEmbedder(AsyncOpenAI(api_key="none"), "some-model", query_timeout_s=1, index_timeout_s=1)
    assert embedder.model == "openai:some-model"
    assert embedder.batch_size == 128


@pytest.mark.parametrize("mode", HARMLESS)
async def test_vectors_keep_the_order_of_the_texts(
    embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer, mode: Mode
) -> None:
    embedding_server.mode = mode
    vectors = await embedder.embed_documents(TEXTS)
    np.testing.assert_allclose(vectors, [expected_vector(text) for text in TEXTS], atol=1e-6)
    assert embedding_server.requests == [TEXTS]


async def test_a_query_gives_one_vector(embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer) -> None:
    np.testing.assert_allclose(
        (await embedder.embed_queries(["read a file"]))[0], expected_vector("read a file"), atol=1e-6
    )
    assert embedding_server.requests == [["read a file"]]


@pytest.mark.parametrize("mode", [mode for mode in REASONS if mode != "doubled_index"])
async def test_a_query_is_tried_once_and_reports_the_reason_of_its_failure(
    embedding_server: FakeEmbeddingServer, mode: Mode
) -> None:
    embedding_server.mode = mode
    async with open_embedder(embedding_server.base_url, timeout_for(mode)) as embedder:
        with pytest.raises(EmbeddingFailed) as failure:
            await embedder.embed_queries(["read a file"])
    assert failure.value.reason == REASONS[mode]
    await check_request_count(embedding_server, 1)


async def test_the_http_client_does_not_give_up_at_the_budget_of_a_query(
    embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    """`QueryEmbedder` does, and does not count the time in which the event loop is stalled."""
    embedding_server.delay_s = 0.1
    embedder = make_configured_embedder(make_settings(tmp_path, **embedding_server.settings(query_embed_budget_ms=10)))
    assert (await embedder.embed_queries(["read a file"])).shape == (1, DIMENSION)
    await embedder.aclose()


@pytest.mark.parametrize("mode", REASONS)
async def test_documents_are_retried_only_if_a_retry_may_help(
    embedding_server: FakeEmbeddingServer, mode: Mode
) -> None:
    embedding_server.mode = mode
    async with open_embedder(embedding_server.base_url, timeout_for(mode)) as embedder:
        with pytest.raises(EmbeddingFailed) as failure:
            await embedder.embed_documents(TEXTS)
    assert failure.value.reason == REASONS[mode]
    await check_request_count(embedding_server, 5 if mode in ("hang", "status") else 1)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_documents_survive_a_temporary_failure(
    embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer, status: int
) -> None:
    embedding_server.mode, embedding_server.status = "status", status
    embedding_server.requests = ChangesAfter(embedding_server, 3, "ok")
    assert (await embedder.embed_documents(TEXTS)).shape == (3, DIMENSION)
    assert len(embedding_server.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_client_error_is_not_retried(
    embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer, status: int
) -> None:
    embedding_server.mode, embedding_server.status = "status", status
    with pytest.raises(EmbeddingFailed) as failure:
        await embedder.embed_documents(TEXTS)
    assert failure.value.reason == f"status_{status}"
    assert len(embedding_server.requests) == 1


async def test_a_closed_port_is_unreachable() -> None:
    async with open_embedder("http://127.0.0.1:1/v1") as embedder:
        for attempt in (embedder.embed_queries(["x"]), embedder.embed_documents(["x"])):
            with pytest.raises(EmbeddingFailed) as failure:
                await attempt
            assert failure.value.reason == "unreachable"


def body_with(number: str, index: str = "0") -> str:
    numbers = ", ".join([number] * DIMENSION)
    return f'{{"data": [{{"object": "embedding", "index": {index}, "embedding": [{numbers}]}}]}}'


def useless_bodies() -> Iterator[tuple[str, str]]:
    """Yield bodies that are JSON, sent with status 200, and useless as the vector of one text."""
    yield "null", "null"
    yield "a text", '"x"'
    yield "a list", "[]"
    yield "nothing", "{}"
    yield "no data", '{"data": null}'
    yield "data of numbers", '{"data": [1]}'
    yield "data of nulls", '{"data": [null]}'
    odd = {
        "no vector": "null",
        "a text for a vector": '"AAAA"',
        "texts in the vector": '["a", "b"]',
        "an object for a vector": "{}",
        "a vector of vectors": "[[1.0, 2.0]]",
        "an empty vector": "[]",
        "vectors nested very deeply": "[" * 100_000 + "]" * 100_000,
    }
    for name, vector in odd.items():
        yield name, f'{{"data": [{{"object": "embedding", "index": 0, "embedding": {vector}}}]}}'
    yield "nulls in the vector", body_with("null")
    yield "numbers beyond the range of floats", body_with("1" + "0" * 400)
    for index in ("null", "1", '"0"', "-1", "[]"):
        yield f"index {index}", body_with("1.0", index)


async def embed_through(body: str) -> Any:
    def respond(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text=body, headers={"Content-Type": "application/json"})

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
    async with open_embedder("http://embedder/v1", http_client=client) as embedder:
        return (await embedder.embed_queries(["x"]))[0]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in useless_bodies()])
async def test_a_useless_body_raises_embedding_failed(body: str) -> None:
    with pytest.raises(EmbeddingFailed):
        await embed_through(body)


@pytest.mark.filterwarnings("ignore:overflow")
async def test_numbers_too_large_for_float32_are_not_finite() -> None:
    with pytest.raises(EmbeddingFailed) as failure:
        await embed_through(body_with("1e39"))
    assert failure.value.reason == "not_finite"


async def test_the_same_body_with_a_valid_vector_is_accepted() -> None:
    assert (await embed_through(body_with("1.0"))).shape == (DIMENSION,)
