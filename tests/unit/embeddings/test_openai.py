"""The adapter to OpenAI-compatible endpoints, against a fake endpoint that misbehaves."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import httpx2
import numpy as np
import openai._base_client
import pytest
from openai import AsyncOpenAI

from app.embeddings.openai import OpenAIEmbedder
from app.errors import EmbeddingFailed
from tests.support.embedding_server import DIMENSION, FakeEmbeddingServer, Mode, embed
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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own pauses between tries, cut short."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


@asynccontextmanager
async def embedder_at(base_url: str, timeout_s: float = 20, **options: Any) -> AsyncIterator[OpenAIEmbedder]:
    client = AsyncOpenAI(api_key="none", base_url=base_url, **options)
    embedder = OpenAIEmbedder(client, "fake-words", query_timeout_s=timeout_s, index_timeout_s=timeout_s)
    embedder.expect_dimension(DIMENSION)
    try:
        yield embedder
    finally:
        await embedder.aclose()


@pytest.fixture
async def embedder(embedding_server: FakeEmbeddingServer) -> AsyncIterator[OpenAIEmbedder]:
    async with embedder_at(embedding_server.base_url) as opened:
        yield opened


def patience(mode: Mode) -> float:
    """Little with a server that hangs; any other has the time that a slow machine takes."""
    return 0.1 if mode == "hang" else 20


async def check_asked(server: FakeEmbeddingServer, times: int) -> None:
    """Whoever gives up soon may do so before the server has read what it is asked."""
    await asked(server, times)
    assert len(server.requests) == times


def unit(text: str) -> Any:
    vector = np.array(embed(text), np.float32)
    return vector / np.linalg.norm(vector)


def test_every_way_to_misbehave_is_covered() -> None:
    later = {"hang_later"}  # the same as `hang`, for those who ask more than once
    assert {*REASONS, *HARMLESS} == set(get_args(Mode)) - later


def test_its_identity_is_the_endpoints_name_for_the_model() -> None:
    embedder = OpenAIEmbedder(AsyncOpenAI(api_key="none"), "some-model", query_timeout_s=1, index_timeout_s=1)
    assert embedder.model == "openai:some-model"
    assert embedder.batch_size == 128


@pytest.mark.parametrize("mode", HARMLESS)
async def test_vectors_come_in_the_order_of_the_texts(
    embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer, mode: Mode
) -> None:
    embedding_server.mode = mode
    vectors = await embedder.embed_documents(TEXTS)
    np.testing.assert_allclose(vectors, [unit(text) for text in TEXTS], atol=1e-6)
    assert embedding_server.requests == [TEXTS]


async def test_a_query_gives_one_vector(embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer) -> None:
    np.testing.assert_allclose((await embedder.embed_queries(["read a file"]))[0], unit("read a file"), atol=1e-6)
    assert embedding_server.requests == [["read a file"]]


@pytest.mark.parametrize("mode", [mode for mode in REASONS if mode != "doubled_index"])
async def test_a_query_has_one_attempt_and_names_its_failure(embedding_server: FakeEmbeddingServer, mode: Mode) -> None:
    embedding_server.mode = mode
    async with embedder_at(embedding_server.base_url, patience(mode)) as embedder:
        with pytest.raises(EmbeddingFailed) as failure:
            await embedder.embed_queries(["read a file"])
    assert failure.value.reason == REASONS[mode]
    await check_asked(embedding_server, 1)


@pytest.mark.parametrize("mode", REASONS)
async def test_documents_are_tried_again_only_where_that_may_help(
    embedding_server: FakeEmbeddingServer, mode: Mode
) -> None:
    embedding_server.mode = mode
    async with embedder_at(embedding_server.base_url, patience(mode)) as embedder:
        with pytest.raises(EmbeddingFailed) as failure:
            await embedder.embed_documents(TEXTS)
    assert failure.value.reason == REASONS[mode]
    await check_asked(embedding_server, 5 if mode in ("hang", "status") else 1)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_documents_outlast_a_passing_trouble(
    embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer, status: int
) -> None:
    embedding_server.mode, embedding_server.status = "status", status
    embedding_server.requests = ChangesAfter(embedding_server, 3, "ok")
    assert (await embedder.embed_documents(TEXTS)).shape == (3, DIMENSION)
    assert len(embedding_server.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_that_is_ours_to_mend_is_not_repeated(
    embedder: OpenAIEmbedder, embedding_server: FakeEmbeddingServer, status: int
) -> None:
    embedding_server.mode, embedding_server.status = "status", status
    with pytest.raises(EmbeddingFailed) as failure:
        await embedder.embed_documents(TEXTS)
    assert failure.value.reason == f"status_{status}"
    assert len(embedding_server.requests) == 1


async def test_a_closed_port_is_unreachable() -> None:
    async with embedder_at("http://127.0.0.1:1/v1") as embedder:
        for attempt in (embedder.embed_queries(["x"]), embedder.embed_documents(["x"])):
            with pytest.raises(EmbeddingFailed) as failure:
                await attempt
            assert failure.value.reason == "unreachable"


def answer_with(number: str, index: str = "0") -> str:
    numbers = ", ".join([number] * DIMENSION)
    return f'{{"data": [{{"object": "embedding", "index": {index}, "embedding": [{numbers}]}}]}}'


def answers() -> Iterator[tuple[str, str]]:
    """Bodies that are JSON, answered with 200, and of no use for one text."""
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
        "vectors nested beyond all measure": "[" * 100_000 + "]" * 100_000,
    }
    for name, vector in odd.items():
        yield name, f'{{"data": [{{"object": "embedding", "index": 0, "embedding": {vector}}}]}}'
    yield "nulls in the vector", answer_with("null")
    yield "numbers beyond every float", answer_with("1" + "0" * 400)
    for index in ("null", "1", '"0"', "-1", "[]"):
        yield f"index {index}", answer_with("1.0", index)


async def embedded_through(body: str) -> Any:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text=body, headers={"Content-Type": "application/json"})

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with embedder_at("http://embedder/v1", http_client=client) as embedder:
        return (await embedder.embed_queries(["x"]))[0]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in answers()])
async def test_an_answer_of_no_use_is_a_failure_of_the_embedder_and_nothing_else(body: str) -> None:
    with pytest.raises(EmbeddingFailed):
        await embedded_through(body)


@pytest.mark.filterwarnings("ignore:overflow")
async def test_numbers_too_large_for_our_vectors_are_not_finite() -> None:
    with pytest.raises(EmbeddingFailed) as failure:
        await embedded_through(answer_with("1e39"))
    assert failure.value.reason == "not_finite"


async def test_the_same_answer_with_a_proper_vector_is_taken() -> None:
    assert (await embedded_through(answer_with("1.0"))).shape == (DIMENSION,)
