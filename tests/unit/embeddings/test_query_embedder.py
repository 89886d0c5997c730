import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from app.embeddings.base import Embedder, QueryTicket, Vectors
from app.embeddings.factory import make_configured_embedder
from app.embeddings.local import LocalEmbedder
from app.embeddings.query_embedder import QUERY_CACHE_S, QueryEmbedder
from app.errors import EmbeddingFailed
from app.limits.circuit_breaker import CircuitBreaker
from app.observability.metrics import Metrics
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import make_settings
from tests.support.local_model import make_local_embedder
from tests.support.worker_steps import asked


class FakeEmbedder:
    """Answers once `may_answer` is set; fails while `failure` is set."""

    model = "fake:v1"
    batch_size = 8
    is_local = False

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.failure: EmbeddingFailed | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def embed_queries(self, texts: Sequence[str], _ticket: QueryTicket | None = None) -> Vectors:
        self.texts += texts
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return np.array([[len(self.texts), 0] for _ in texts], np.float32)

    def load(self) -> None: ...

    def expect_dimension(self, dimension: int) -> None: ...

    async def embed_documents(self, texts: Sequence[str], _user_id: str = "") -> Vectors:
        raise NotImplementedError

    async def aclose(self) -> None: ...


class QueueingEmbedder(FakeEmbedder):
    """Like the local embedder: takes 10 ms for each query, one after another."""

    is_local = True

    def __init__(self) -> None:
        super().__init__()
        self._turn = asyncio.Lock()

    async def embed_queries(self, texts: Sequence[str], _ticket: QueryTicket | None = None) -> Vectors:
        async with self._turn:
            await asyncio.sleep(0.01)
            return await super().embed_queries(texts)


class CrowdedEmbedder(FakeEmbedder):
    """Has a queue in which queries wait until the test lets them through."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start = asyncio.Event()

    async def embed_queries(self, texts: Sequence[str], ticket: QueryTicket | None = None) -> Vectors:
        assert ticket is not None
        ticket.is_waiting = lambda: not self.may_start.is_set()
        await self.may_start.wait()
        return await super().embed_queries(texts)


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
def queueing_embedder() -> QueueingEmbedder:
    return QueueingEmbedder()


@pytest.fixture
async def local_embedder() -> AsyncIterator[LocalEmbedder]:
    embedder = make_local_embedder()
    yield embedder
    await embedder.aclose()


def make_query_embedder(
    embedder: Embedder,
    *,
    failures: int = 5,
    budget_s: float = 5.0,
    cache_bytes: int = 100_000,
    max_wait_s: float = 10.0,
) -> QueryEmbedder:
    return QueryEmbedder(embedder, CircuitBreaker(failures, retry_s=60), Metrics(), budget_s, cache_bytes, max_wait_s)


async def embed_and_fail(queries: QueryEmbedder, text: str, user_id: str = "alice") -> str:
    with pytest.raises(EmbeddingFailed) as failure:
        await queries.embed(user_id, (text,))
    return failure.value.reason


async def embed_concurrently(queries: QueryEmbedder, count: int) -> list[bool]:
    """Embed different queries at the same time, and return which of them were embedded."""
    answers = await asyncio.gather(*(queries.embed("alice", (f"rain in city {number}?",)) for number in range(count)))
    return [answer.generated for answer in answers]


def stall_event_loop(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_query_is_embedded_once_and_then_cached(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder)
    first = await queries.embed("alice", ("rain?",))
    second = await queries.embed("alice", ("rain?",))
    assert embedder.texts == ["rain?"]
    assert (first.generated, second.generated) == (True, False)
    np.testing.assert_array_equal(first.vectors, second.vectors)


async def test_the_texts_of_a_query_are_embedded_together(embedder: FakeEmbedder) -> None:
    found = await make_query_embedder(embedder).embed("alice", ("rain and wind?", "rain", "wind?"))
    assert embedder.texts == ["rain and wind?", "rain", "wind?"]
    assert len(found.vectors) == 3


async def test_a_different_query_is_embedded_separately(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder)
    await queries.embed("alice", ("rain?",))
    assert (await queries.embed("alice", ("rain",))).generated
    assert embedder.texts == ["rain?", "rain"]


async def test_users_share_neither_cached_nor_pending_embeddings(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder)
    embedder.may_answer.clear()
    both = [asyncio.create_task(queries.embed(user, ("rain?",))) for user in ("alice", "bob")]
    await asyncio.sleep(0)
    embedder.may_answer.set()
    await asyncio.gather(*both)
    assert (await queries.embed("carol", ("rain?",))).generated
    assert embedder.texts == ["rain?"] * 3


async def test_without_a_cache_every_query_is_embedded(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, cache_bytes=0)
    for _ in range(2):
        assert (await queries.embed("alice", ("rain?",))).generated
    assert len(embedder.texts) == 2


async def test_concurrent_identical_queries_are_embedded_once(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder)
    embedder.may_answer.clear()
    callers = [asyncio.create_task(queries.embed("alice", ("rain?",))) for _ in range(10)]
    await asyncio.sleep(0)
    embedder.may_answer.set()
    answers = await asyncio.gather(*callers)
    assert embedder.texts == ["rain?"]
    assert all(answer.vectors is answers[0].vectors for answer in answers)


async def test_a_caller_that_disconnects_does_not_cancel_the_others(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder)
    embedder.may_answer.clear()
    leaving, staying = [asyncio.create_task(queries.embed("alice", ("rain?",))) for _ in range(2)]
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    embedder.may_answer.set()
    assert (await staying).generated
    assert leaving.cancelled()
    assert embedder.texts == ["rain?"]


async def test_a_failure_reaches_every_waiting_caller_and_is_not_cached(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder)
    embedder.failure = EmbeddingFailed("status_500", "the endpoint answered 500")
    assert await asyncio.gather(*(embed_and_fail(queries, "rain?") for _ in range(3))) == ["status_500"] * 3
    assert embedder.texts == ["rain?"]
    embedder.failure = None
    assert (await queries.embed("alice", ("rain?",))).generated


async def test_exceeding_the_budget_is_a_failure(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, budget_s=0.02)
    embedder.may_answer.clear()
    assert await embed_and_fail(queries, "rain?") == "timeout"
    embedder.may_answer.set()
    assert (await queries.embed("alice", ("rain?",))).generated


async def test_a_hanging_remote_embedder_fails_at_its_budget_and_opens_the_breaker(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, failures=2, budget_s=0.1)
    embedder.may_answer.clear()
    started = time.perf_counter()
    assert [await embed_and_fail(queries, text) for text in ("rain?", "snow?")] == ["timeout"] * 2
    assert 0.2 <= time.perf_counter() - started < 2
    assert await embed_and_fail(queries, "wind?") == "breaker_open"


async def test_a_hanging_remote_embedder_fails_even_if_the_event_loop_stalls(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, budget_s=0.05)
    embedder.may_answer.clear()
    failure = asyncio.create_task(embed_and_fail(queries, "rain?"))
    await asyncio.sleep(0.01)
    stall_event_loop(0.1)
    assert await failure == "timeout"


async def test_an_answer_that_arrives_while_the_event_loop_is_stalled_is_used(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, failures=1, budget_s=0.05)
    embedder.may_answer.clear()
    answer = asyncio.create_task(queries.embed("alice", ("rain?",)))
    await asyncio.sleep(0.01)
    assert embedder.texts == ["rain?"]
    Timer(0.01, asyncio.get_running_loop().call_soon_threadsafe, [embedder.may_answer.set]).start()
    stall_event_loop(0.1)
    assert (await answer).generated
    assert (await queries.embed("alice", ("snow?",))).generated


async def test_the_http_client_uses_an_answer_that_arrives_while_the_event_loop_is_stalled(
    embedding_server: FakeEmbeddingServer, tmp_path: Path
) -> None:
    embedder = make_configured_embedder(make_settings(tmp_path, **embedding_server.settings(query_embed_budget_ms=300)))
    queries = make_query_embedder(embedder, failures=1, budget_s=0.3)
    embedding_server.mode = "hang"
    answer = asyncio.create_task(queries.embed("alice", ("rain?",)))
    await asked(embedding_server)
    embedding_server.release()
    stall_event_loop(0.4)
    assert (await answer).generated
    await embedder.aclose()


async def test_local_queries_that_wait_for_each_other_beyond_the_budget_succeed(
    queueing_embedder: QueueingEmbedder,
) -> None:
    queries = make_query_embedder(queueing_embedder, failures=1, budget_s=0.02)
    assert await embed_concurrently(queries, 10) == [True] * 10
    assert (await queries.embed("alice", ("snow?",))).generated


async def test_ten_new_queries_at_once_do_not_exceed_the_budget_of_the_local_embedder(
    local_embedder: LocalEmbedder,
) -> None:
    queries = make_query_embedder(local_embedder, failures=1, budget_s=0.01)
    assert await embed_concurrently(queries, 10) == [True] * 10


async def test_time_in_a_queue_of_this_process_uses_up_no_budget() -> None:
    crowded = CrowdedEmbedder()
    queries = make_query_embedder(crowded, failures=1, budget_s=0.02)
    answer = asyncio.create_task(queries.embed("alice", ("rain?",)))
    await asyncio.sleep(0.1)
    crowded.may_start.set()
    assert (await answer).generated


async def test_a_query_that_waits_too_long_fails_and_is_no_failure_of_the_embedder() -> None:
    crowded = CrowdedEmbedder()
    queries = make_query_embedder(crowded, failures=1, max_wait_s=0.02)
    for text in ("rain?", "snow?"):
        assert await embed_and_fail(queries, text) == "busy"
    assert queries.warning is None
    crowded.may_start.set()
    assert (await queries.embed("alice", ("rain?",))).generated


async def test_the_budget_begins_when_the_query_leaves_the_queue() -> None:
    crowded = CrowdedEmbedder()
    queries = make_query_embedder(crowded, failures=1, budget_s=0.02)
    crowded.may_answer.clear()
    crowded.may_start.set()
    assert await embed_and_fail(queries, "rain?") == "timeout"
    assert await embed_and_fail(queries, "rain?") == "breaker_open"


async def test_one_users_failures_do_not_keep_others_from_the_embedder(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, failures=2)
    embedder.failure = EmbeddingFailed("status_400", "this text is refused")
    reasons = [await embed_and_fail(queries, f"query {number}") for number in range(3)]
    assert reasons == ["status_400", "status_400", "breaker_open"]
    embedder.failure = None
    assert (await queries.embed("bob", ("rain?",))).generated
    assert (await queries.embed("alice", ("rain?",))).generated
    embedder.failure = EmbeddingFailed("unreachable", "nobody there")
    assert [await embed_and_fail(queries, "snow?", user_id) for user_id in ("alice", "bob", "carol")] == [
        "unreachable",
        "unreachable",
        "breaker_open",
    ]


async def test_a_local_query_without_callers_is_cancelled_and_is_no_failure(
    queueing_embedder: QueueingEmbedder,
) -> None:
    queries = make_query_embedder(queueing_embedder, failures=1)
    staying, *leaving = [asyncio.create_task(queries.embed("alice", (text,))) for text in ("rain?", "snow?", "snow?")]
    await asyncio.sleep(0)
    for caller in leaving:
        caller.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    assert (await staying).generated
    assert (await queries.embed("alice", ("wind?",))).generated
    assert queueing_embedder.texts == ["rain?", "wind?"]


async def test_a_new_caller_does_not_join_a_cancelled_query(
    queueing_embedder: QueueingEmbedder,
) -> None:
    queries = make_query_embedder(queueing_embedder)
    leaving = asyncio.create_task(queries.embed("alice", ("rain?",)))
    await asyncio.sleep(0)
    leaving.cancel()
    arriving = asyncio.create_task(queries.embed("alice", ("rain?",)))
    await asyncio.gather(leaving, return_exceptions=True)
    assert (await arriving).generated
    assert queueing_embedder.texts == ["rain?"]


async def test_a_remote_query_goes_on_without_callers(embedder: FakeEmbedder) -> None:
    """Its outcome counts for the circuit breaker."""
    queries = make_query_embedder(embedder, failures=1)
    embedder.may_answer.clear()
    embedder.failure = EmbeddingFailed("unreachable", "nobody there")
    leaving = asyncio.create_task(queries.embed("alice", ("rain?",)))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    embedder.may_answer.set()
    assert await embed_and_fail(queries, "rain?") == "unreachable"
    assert await embed_and_fail(queries, "snow?") == "breaker_open"
    assert embedder.texts == ["rain?"]


async def test_after_enough_failures_the_embedder_is_not_called(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, failures=3)
    embedder.failure = EmbeddingFailed("unreachable", "nobody there")
    reasons = [await embed_and_fail(queries, f"query {number}") for number in range(5)]
    assert reasons == ["unreachable"] * 3 + ["breaker_open"] * 2
    assert len(embedder.texts) == 3


async def test_cached_queries_are_answered_while_the_breaker_is_open(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, failures=1)
    await queries.embed("alice", ("rain?",))
    embedder.failure = EmbeddingFailed("unreachable", "nobody there")
    await embed_and_fail(queries, "snow?")
    assert not (await queries.embed("alice", ("rain?",))).generated
    assert await embed_and_fail(queries, "wind?") == "breaker_open"


@pytest.mark.parametrize(
    ("first", "second"), [(("a", "b"), ("ab",)), (("a", "b"), ("b", "a")), (("", "a"), ("a", "")), (("a",), ("a", ""))]
)
async def test_only_the_same_texts_in_the_same_order_are_the_same_query(
    embedder: FakeEmbedder, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    queries = make_query_embedder(embedder)
    await queries.embed("alice", first)
    assert (await queries.embed("alice", second)).generated
    assert not (await queries.embed("alice", first)).generated


async def test_the_cache_is_bounded_by_its_bytes(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, cache_bytes=8_000)
    for number in range(100):
        await queries.embed(f"user-{number}", (f"query {number}",))
    assert 4_000 < queries._cache.bytes <= 8_000
    assert not (await queries.embed("user-99", ("query 99",))).generated
    assert (await queries.embed("user-0", ("query 0",))).generated


async def test_queries_of_one_user_do_not_evict_those_of_others(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, cache_bytes=8_000)
    await queries.embed("bob", ("rain?",))
    for number in range(100):
        await queries.embed("alice", (f"query {number}",))
    assert not (await queries.embed("bob", ("rain?",))).generated


async def test_a_query_larger_than_the_cache_is_answered_and_not_cached(embedder: FakeEmbedder) -> None:
    queries = make_query_embedder(embedder, cache_bytes=2_000)
    for _ in range(2):
        answer = await queries.embed("alice", tuple(map(str, range(10))))
        assert answer.generated
        assert len(answer.vectors) == 10


async def test_cached_vectors_expire(embedder: FakeEmbedder) -> None:
    now = [0.0]
    queries = QueryEmbedder(
        embedder, CircuitBreaker(5, retry_s=60), Metrics(), 5.0, cache_bytes=100_000, clock=lambda: now[0]
    )
    await queries.embed("alice", ("rain?",))
    now[0] = QUERY_CACHE_S - 1
    assert not (await queries.embed("alice", ("rain?",))).generated
    now[0] = QUERY_CACHE_S
    assert (await queries.embed("alice", ("rain?",))).generated
