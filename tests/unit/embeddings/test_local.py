import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.embeddings.base import Embedder, QueryTicket, Vectors
from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local import INDEX_NICENESS, LocalEmbedder
from app.embeddings.local_models import LocalModel
from app.errors import ConfigurationError, EmbeddingFailed
from tests.support.local_model import make_base_model, make_local_embedder

TEXTS = [
    "Create a new issue in a GitHub repository.",
    "Send a message to a Slack channel.",
    "Get the current weather and a five-day forecast for a city. Temperatures come in Celsius or Fahrenheit, with "
    "wind, humidity and the chance of rain for each hour of the day.",
    "Run a read-only SQL query against the warehouse.",
]


@pytest.fixture(scope="session")
async def embedder() -> AsyncIterator[LocalEmbedder]:
    embedder = make_local_embedder(make_base_model())
    yield embedder
    await embedder.aclose()


@pytest.fixture
async def disposable_embedder() -> AsyncIterator[LocalEmbedder]:
    embedder = make_local_embedder(make_base_model())
    yield embedder
    await embedder.aclose()


def norms(vectors: Vectors) -> Vectors:
    return np.asarray(np.linalg.norm(vectors, axis=1))


async def test_the_model_id_names_the_model_and_its_file(embedder: LocalEmbedder) -> None:
    interface: Embedder = embedder
    assert interface.model == "local:granite-embedding-30m-english:6a1cc247"
    assert interface.batch_size == 32


async def test_every_vector_has_unit_length_and_the_dimension(embedder: LocalEmbedder) -> None:
    vectors = await embedder.embed_documents(TEXTS)
    assert vectors.shape == (len(TEXTS), 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(norms(vectors), 1, atol=1e-6)


async def test_the_same_text_always_gets_the_same_vector(embedder: LocalEmbedder) -> None:
    first, second = await embedder.embed_documents(TEXTS), await embedder.embed_documents(TEXTS)
    np.testing.assert_array_equal(first, second)


async def test_a_known_text_keeps_its_vector(embedder: LocalEmbedder) -> None:
    vector = (await embedder.embed_queries(["Create a new issue in a GitHub repository."]))[0]
    np.testing.assert_allclose(vector[:4], [-0.01215, 0.03108, -0.00139, -0.04304], atol=1e-4)


async def test_a_text_has_the_same_vector_alone_and_among_longer_texts(embedder: LocalEmbedder) -> None:
    among = await embedder.embed_documents([TEXTS[2] * 3, TEXTS[0], TEXTS[2], TEXTS[1] * 5])
    alone = await embedder.embed_documents([TEXTS[0]])
    np.testing.assert_allclose(among[1], alone[0], atol=1e-5)


async def test_a_query_and_a_document_with_the_same_text_have_the_same_vector(embedder: LocalEmbedder) -> None:
    documents = await embedder.embed_documents(TEXTS)
    np.testing.assert_allclose((await embedder.embed_queries([TEXTS[0]]))[0], documents[0], atol=1e-5)


@pytest.mark.parametrize(
    ("message", "best"),
    [
        ("please open a bug report about the broken login", 0),
        ("tell the team in #general that we are live", 1),
        ("will I need an umbrella in Lisbon tomorrow?", 2),
        ("count the rows in the orders table", 3),
    ],
)
async def test_the_relevant_description_scores_above_the_others(
    embedder: LocalEmbedder, message: str, best: int
) -> None:
    scores = await embedder.embed_documents(TEXTS) @ (await embedder.embed_queries([message]))[0]
    assert int(scores.argmax()) == best


async def test_vectors_keep_the_order_of_the_texts_across_batches(embedder: LocalEmbedder) -> None:
    texts = [f"tool {i}" for i in range(embedder.batch_size + 8)]
    forwards, backwards = await embedder.embed_documents(texts), await embedder.embed_documents(texts[::-1])
    np.testing.assert_allclose(forwards, backwards[::-1], atol=1e-5)
    assert len(np.unique(forwards.round(4), axis=0)) == len(texts)


async def test_a_text_of_ten_thousand_characters_is_truncated_not_rejected(embedder: LocalEmbedder) -> None:
    long = "List the pull requests of a repository. " * 250
    assert len(long) == 10_000
    whole, changed_at_the_end, changed_at_the_start = await embedder.embed_documents(
        [long, long + "And brew coffee.", "And brew coffee. " + long]
    )
    np.testing.assert_allclose(whole, changed_at_the_end, atol=1e-6)
    assert not np.allclose(whole, changed_at_the_start, atol=1e-3)


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\0", "🎉🚀", "日本の天気", "Ünïcödé", "\ud83d", "<s></s>"])
async def test_an_unusual_text_gets_a_vector(embedder: LocalEmbedder, text: str) -> None:
    vectors = await embedder.embed_documents([text, TEXTS[0]])
    np.testing.assert_allclose(norms(vectors), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[0], (await embedder.embed_queries([text]))[0], atol=1e-5)


async def test_an_empty_list_gives_no_vectors(embedder: LocalEmbedder) -> None:
    assert (await embedder.embed_documents([])).shape == (0, 384)


async def test_the_event_loop_keeps_running_while_documents_are_embedded(embedder: LocalEmbedder) -> None:
    one_batch = asyncio.create_task(embedder.embed_documents([TEXTS[2]] * embedder.batch_size))
    ticks = 0
    while not one_batch.done():
        await asyncio.sleep(0)
        ticks += 1
    assert len(await one_batch) == embedder.batch_size
    assert ticks > 10


async def test_a_query_does_not_wait_for_a_long_list_of_documents(embedder: LocalEmbedder) -> None:
    long_list = asyncio.create_task(embedder.embed_documents([TEXTS[0]] * 1000))
    await asyncio.sleep(0)
    (await embedder.embed_queries([TEXTS[1]]))[0]
    assert not long_list.done()
    long_list.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long_list


class StepwiseModel:
    """Computes a batch, of queries or documents, each time the test allows it."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.started = threading.Semaphore(0)
        self.may_go_on = {"query": threading.Semaphore(0), "document": threading.Semaphore(0)}

    def embed(self, texts: Sequence[str], kind: str) -> Vectors:
        self.batches.append((kind, list(texts)))
        self.started.release()
        self.may_go_on[kind].acquire()
        return np.ones((len(texts), 384), np.float32)

    async def wait_for_batch(self) -> None:
        await asyncio.to_thread(self.started.acquire)

    def get_batches(self, kind: str) -> list[list[str]]:
        return [texts for each, texts in self.batches if each == kind]


@pytest.fixture
def stepwise(disposable_embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepwiseModel]:
    model = StepwiseModel()
    disposable_embedder.load()
    monkeypatch.setattr(disposable_embedder._granite, "embed", model.embed)
    yield model
    for semaphore in model.may_go_on.values():
        semaphore.release(1000)


def query(embedder: LocalEmbedder, *texts: str, user: str = "alice") -> asyncio.Task[Vectors]:
    return asyncio.create_task(embedder.embed_queries(texts, QueryTicket(user)))


async def test_a_query_that_is_cancelled_in_the_queue_is_not_computed(
    disposable_embedder: LocalEmbedder, stepwise: StepwiseModel
) -> None:
    first = query(disposable_embedder, "first")
    await stepwise.wait_for_batch()
    second, third = query(disposable_embedder, "second"), query(disposable_embedder, "third")
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    stepwise.may_go_on["query"].release(2)
    await asyncio.gather(first, third)
    assert stepwise.get_batches("query") == [["first"], ["third"]]


async def test_queries_that_arrive_together_are_one_batch(
    disposable_embedder: LocalEmbedder, stepwise: StepwiseModel
) -> None:
    lone = query(disposable_embedder, "a lone query does not wait for others")
    await stepwise.wait_for_batch()
    together = [query(disposable_embedder, f"query {number}", user=f"user-{number}") for number in range(8)]
    await asyncio.sleep(0)
    stepwise.may_go_on["query"].release(2)
    await asyncio.gather(lone, *together)
    assert [len(batch) for batch in stepwise.get_batches("query")] == [1, 8]


async def test_long_queries_of_one_user_delay_another_by_no_more_than_one_batch(
    disposable_embedder: LocalEmbedder, stepwise: StepwiseModel
) -> None:
    flood = [query(disposable_embedder, f"{number} long" * 200, f"{number} longer" * 200) for number in range(20)]
    await stepwise.wait_for_batch()
    other = query(disposable_embedder, long := "a long one of another user" * 20, user="bob")
    await asyncio.sleep(0)
    stepwise.may_go_on["query"].release(2)
    await other
    assert stepwise.get_batches("query")[1] == [long]
    assert not any(each.done() for each in flood)
    stepwise.may_go_on["query"].release(100)
    await asyncio.gather(*flood)


async def test_a_short_query_does_not_wait_for_long_ones(
    disposable_embedder: LocalEmbedder, stepwise: StepwiseModel
) -> None:
    long = query(disposable_embedder, "long" * 200)
    await stepwise.wait_for_batch()
    mixed = query(disposable_embedder, "long" * 300, "quick", "longer" * 200)
    await stepwise.wait_for_batch()
    assert stepwise.batches[1:] == [("query", ["quick"])]
    assert not long.done()
    stepwise.may_go_on["query"].release(10)
    assert (await mixed).shape == (3, 384)
    await long


async def test_the_vectors_of_short_and_long_texts_keep_their_order(embedder: LocalEmbedder) -> None:
    texts = [TEXTS[2] * 3, TEXTS[0], TEXTS[1] * 10, TEXTS[3]]
    np.testing.assert_allclose(await embedder.embed_queries(texts), await embedder.embed_documents(texts), atol=1e-5)


async def test_documents_of_users_take_turns_in_small_batches(
    disposable_embedder: LocalEmbedder, stepwise: StepwiseModel
) -> None:
    long = "a description of a tool " * 20
    many = asyncio.create_task(disposable_embedder.embed_documents([f"{n} {long}" for n in range(600)], "alice"))
    await stepwise.wait_for_batch()
    few = asyncio.create_task(disposable_embedder.embed_documents([f"bob {n} {long}" for n in range(3)], "bob"))
    await asyncio.sleep(0)
    stepwise.may_go_on["document"].release(6)
    await few
    firsts = [batch[0].split()[0] for batch in stepwise.get_batches("document")]
    assert firsts[:6] == ["0", "bob", "1", "bob", "2", "bob"]
    stepwise.may_go_on["document"].release(1000)
    assert len(await many) == 600


async def test_a_query_is_computed_while_a_batch_of_documents_is(
    disposable_embedder: LocalEmbedder, stepwise: StepwiseModel
) -> None:
    documents = asyncio.create_task(disposable_embedder.embed_documents(TEXTS))
    await stepwise.wait_for_batch()
    stepwise.may_go_on["query"].release()
    await query(disposable_embedder, "quick")
    assert not documents.done()
    stepwise.may_go_on["document"].release(100)
    await documents


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priorities of threads")
async def test_documents_are_embedded_at_a_lower_priority_than_queries(
    disposable_embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities = {}

    def embed(texts: Sequence[str], kind: str) -> Vectors:
        priorities[kind] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return np.ones((len(texts), 384), np.float32)

    disposable_embedder.load()
    monkeypatch.setattr(disposable_embedder._granite, "embed", embed)
    await disposable_embedder.embed_documents(["a tool"])
    await disposable_embedder.embed_queries(["a message"])
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities == {"query": own, "document": max(own, INDEX_NICENESS)}
    assert INDEX_NICENESS > 0


async def test_a_closed_embedder_fails(disposable_embedder: LocalEmbedder) -> None:
    (await disposable_embedder.embed_queries(["still open"]))[0]
    await disposable_embedder.aclose()
    with pytest.raises(EmbeddingFailed) as query:
        (await disposable_embedder.embed_queries(["too late"]))[0]
    with pytest.raises(EmbeddingFailed) as documents:
        await disposable_embedder.embed_documents(["too late"])
    assert query.value.reason == documents.value.reason == "closed"


async def test_closing_stops_a_long_list_after_the_current_batch(disposable_embedder: LocalEmbedder) -> None:
    long_list = asyncio.create_task(disposable_embedder.embed_documents([TEXTS[0]] * 1000))
    await asyncio.sleep(0)
    await disposable_embedder.aclose()
    with pytest.raises(EmbeddingFailed) as failure:
        await long_list
    assert failure.value.reason == "closed"


async def test_a_model_is_loaded_once_by_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = [], Granite.load

    def load_and_record(model: LocalModel, cache: GraphCache) -> Granite:
        loaded.append(model.id)
        return load(model, cache)

    monkeypatch.setattr(Granite, "load", load_and_record)
    embedder = make_local_embedder(make_base_model())
    assert embedder.model == "local:granite-embedding-30m-english:6a1cc247"
    assert loaded == []
    await asyncio.gather(embedder.embed_queries(["one"]), embedder.embed_documents(["two"]))
    embedder.load()
    assert loaded == [embedder.model]
    await embedder.aclose()


async def test_a_model_that_cannot_be_loaded_fails_with_the_reason(tmp_path: Path) -> None:
    embedder = make_local_embedder(replace(make_base_model(), path=tmp_path / "nowhere.hmsemb"))
    with pytest.raises(ConfigurationError, match=r"nowhere\.hmsemb cannot be read: No such file"):
        embedder.load()
    with pytest.raises(EmbeddingFailed, match="cannot be read") as failure:
        await embedder.embed_queries(["a text"])
    assert failure.value.reason == "not_configured"
    await embedder.aclose()
