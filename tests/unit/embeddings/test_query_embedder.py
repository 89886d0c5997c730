import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from app.embeddings.base import Vectors
from app.embeddings.circuit_breaker import CircuitBreaker
from app.embeddings.query_embedder import QueryEmbedder
from app.errors import EmbeddingFailed
from app.observability.metrics import Metrics


class FakeEmbedder:
    """Answers when `may_answer` is set, and fails while `failure` is."""

    model = "fake:v1"
    batch_size = 8
    is_local = False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure: EmbeddingFailed | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        self.asked += texts
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return np.array([[len(self.asked), 0] for _ in texts], np.float32)

    def expect_dimension(self, dimension: int) -> None: ...

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        raise NotImplementedError

    async def aclose(self) -> None: ...


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


def queries_of(
    embedder: FakeEmbedder, *, failures: int = 5, budget_s: float = 5.0, cache_size: int = 100
) -> QueryEmbedder:
    return QueryEmbedder(embedder, CircuitBreaker(failures, retry_s=60), Metrics(), budget_s, cache_size)


async def failure_of(queries: QueryEmbedder, text: str) -> str:
    with pytest.raises(EmbeddingFailed) as failure:
        await queries.embed("alice", (text,))
    return failure.value.reason


async def test_a_question_is_embedded_once_and_then_remembered(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder)
    first = await queries.embed("alice", ("rain?",))
    second = await queries.embed("alice", ("rain?",))
    assert embedder.asked == ["rain?"]
    assert (first.generated, second.generated) == (True, False)
    np.testing.assert_array_equal(first.vectors, second.vectors)


async def test_the_texts_of_a_question_are_embedded_together(embedder: FakeEmbedder) -> None:
    found = await queries_of(embedder).embed("alice", ("rain and wind?", "rain", "wind?"))
    assert embedder.asked == ["rain and wind?", "rain", "wind?"]
    assert len(found.vectors) == 3


async def test_another_question_is_embedded_for_itself(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder)
    await queries.embed("alice", ("rain?",))
    assert (await queries.embed("alice", ("rain",))).generated
    assert embedder.asked == ["rain?", "rain"]


async def test_users_share_neither_what_is_remembered_nor_what_is_under_way(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder)
    embedder.may_answer.clear()
    both = [asyncio.create_task(queries.embed(user, ("rain?",))) for user in ("alice", "bob")]
    await asyncio.sleep(0)
    embedder.may_answer.set()
    await asyncio.gather(*both)
    assert (await queries.embed("carol", ("rain?",))).generated
    assert embedder.asked == ["rain?"] * 3


async def test_without_room_to_remember_every_question_is_embedded(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder, cache_size=0)
    for _ in range(2):
        assert (await queries.embed("alice", ("rain?",))).generated
    assert len(embedder.asked) == 2


async def test_identical_questions_in_flight_are_embedded_once(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder)
    embedder.may_answer.clear()
    callers = [asyncio.create_task(queries.embed("alice", ("rain?",))) for _ in range(10)]
    await asyncio.sleep(0)
    embedder.may_answer.set()
    answers = await asyncio.gather(*callers)
    assert embedder.asked == ["rain?"]
    assert all(answer.vectors is answers[0].vectors for answer in answers)


async def test_one_caller_who_hangs_up_does_not_take_the_answer_from_the_others(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder)
    embedder.may_answer.clear()
    shutdown, staying = [asyncio.create_task(queries.embed("alice", ("rain?",))) for _ in range(2)]
    await asyncio.sleep(0)
    shutdown.cancel()
    await asyncio.gather(shutdown, return_exceptions=True)
    embedder.may_answer.set()
    assert (await staying).generated
    assert shutdown.cancelled()
    assert embedder.asked == ["rain?"]


async def test_a_failure_is_everyones_who_waits_but_is_not_remembered(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder)
    embedder.failure = EmbeddingFailed("status_500", "the endpoint answered 500")
    assert await asyncio.gather(*(failure_of(queries, "rain?") for _ in range(3))) == ["status_500"] * 3
    assert embedder.asked == ["rain?"]
    embedder.failure = None
    assert (await queries.embed("alice", ("rain?",))).generated


async def test_what_takes_longer_than_the_budget_has_failed(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder, budget_s=0.02)
    embedder.may_answer.clear()
    assert await failure_of(queries, "rain?") == "timeout"
    embedder.may_answer.set()
    assert (await queries.embed("alice", ("rain?",))).generated


async def test_after_enough_failures_nobody_asks_the_embedder_any_more(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder, failures=3)
    embedder.failure = EmbeddingFailed("unreachable", "nobody there")
    reasons = [await failure_of(queries, f"question {number}") for number in range(5)]
    assert reasons == ["unreachable"] * 3 + ["breaker_open"] * 2
    assert len(embedder.asked) == 3


async def test_what_is_remembered_is_answered_while_the_breaker_is_open(embedder: FakeEmbedder) -> None:
    queries = queries_of(embedder, failures=1)
    await queries.embed("alice", ("rain?",))
    embedder.failure = EmbeddingFailed("unreachable", "nobody there")
    await failure_of(queries, "snow?")
    assert not (await queries.embed("alice", ("rain?",))).generated
    assert await failure_of(queries, "wind?") == "breaker_open"
