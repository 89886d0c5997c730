"""Embed queries. Cache the vectors, and embed concurrent identical queries only once.

Time that a query spends waiting in this process is no failure of the embedder: it uses up no budget and opens no
circuit breaker. A query that waits for too long fails for its own user alone.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from app.embeddings.base import Embedder, QueryTicket, Vector, Vectors
from app.embeddings.time_budget import BUSY, embed_in_time
from app.errors import EmbeddingFailed
from app.limits.byte_cache import ByteCache
from app.limits.circuit_breaker import CircuitBreaker
from app.observability.metrics import Metrics

QUERY_CACHE_S = 300.0
VECTOR_BYTES = 2_300
"""The memory of a cached query with one text and a vector of 384 dimensions."""

MAX_WAIT_S = 2.0
"""How long a query may wait in this process before it is searched by words alone. All users have their turns, so only a
user with many or long queries at once waits that long."""
# The user is part of the key: with a shared entry, the response time would tell one user what another has asked.
_Key = tuple[str, str, bytes]


@dataclass(frozen=True)
class QueryVectors:
    vectors: Sequence[Vector]
    """One for each text of the query."""
    generated: bool
    """False if the vectors come from the cache."""


@dataclass
class _PendingQuery:
    task: asyncio.Task[Sequence[Vector]]
    callers: int = 0
    """How many requests wait for the task."""


class QueryEmbedder:
    """Only the event loop uses the cache and the pending tasks, so neither needs a lock."""

    def __init__(
        self,
        embedder: Embedder,
        breaker: CircuitBreaker,
        metrics: Metrics,
        budget_s: float,
        cache_bytes: int,
        max_wait_s: float = MAX_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`budget_s` limits the time that a remote embedder takes for a query, `max_wait_s` the time before that.

        `cache_bytes` is the memory for cached vectors.
        """
        self._embedder = embedder
        self._breaker = breaker
        self._metrics = metrics
        self._budget_s = budget_s
        self._max_wait_s = max_wait_s
        self._cache: ByteCache[_Key, Sequence[Vector]] = ByteCache(
            cache_bytes, get_owner=itemgetter(0), ttl_s=QUERY_CACHE_S, clock=clock
        )
        self._pending: dict[_Key, _PendingQuery] = {}
        self._failure: str | None = None

    @property
    def warning(self) -> str | None:
        """What `/readyz` says about the embedder, from when the circuit breaker opens until a query succeeds."""
        if self._failure is None:
            return None
        return f"the embedder of {self._embedder.model} fails ({self._failure}): messages are searched by words alone"

    async def embed(self, user_id: str, texts: tuple[str, ...]) -> QueryVectors:
        key = (user_id, self._embedder.model, _digest(texts))
        cached = self._cache.get(key)
        self._metrics.query_cache.labels("miss" if cached is None else "hit").inc()
        if cached is not None:
            return QueryVectors(cached, generated=False)
        pending = self._get_or_start_query(key, texts)
        pending.callers += 1
        try:
            # Shielded: a caller that disconnects must not cancel the embedding for the others.
            return QueryVectors(await asyncio.shield(pending.task), generated=True)
        finally:
            pending.callers -= 1
            if not pending.callers and self._embedder.is_local:
                # A queued query must not take processor time for nobody. A remote call goes on: without its outcome,
                # the breaker would never open for callers who are less patient than the budget.
                self._cancel_query(key, pending.task)

    def _get_or_start_query(self, key: _Key, texts: Sequence[str]) -> _PendingQuery:
        pending = self._pending.get(key)
        if pending is None:
            if not self._breaker.allows_attempt(key[0]):
                raise EmbeddingFailed("breaker_open", "the embedder failed repeatedly and is given time to recover")
            task = asyncio.create_task(self._attempt(key, texts))
            task.add_done_callback(lambda done: self._remove_query(key, done))
            pending = self._pending[key] = _PendingQuery(task)
        return pending

    def _cancel_query(self, key: _Key, task: asyncio.Task[Sequence[Vector]]) -> None:
        """Cancel the task unless it is done. Remove it at once, so that no new caller joins a cancelled task."""
        if task.cancel():
            self._pending.pop(key, None)

    def _remove_query(self, key: _Key, task: asyncio.Task[Sequence[Vector]]) -> None:
        pending = self._pending.get(key)
        if pending is not None and pending.task is task:  # after a cancellation, the key may belong to a new task
            del self._pending[key]
        if not task.cancelled():
            task.exception()  # every waiting caller gets it; if none is left, asyncio must not log it as unretrieved

    async def _attempt(self, key: _Key, texts: Sequence[str]) -> Sequence[Vector]:
        user_id, started = key[0], time.perf_counter()
        try:
            vectors = list(await self._embed(texts, QueryTicket(user_id)))
        except Exception as error:  # a cancellation is no `Exception`, and says nothing about the embedder
            reason = error.reason if isinstance(error, EmbeddingFailed) else "failed"
            if reason != BUSY:
                self._record_outcome(user_id, reason, time.perf_counter() - started)
            raise
        self._record_outcome(user_id, None, time.perf_counter() - started)
        self._cache[key] = vectors
        return vectors

    async def _embed(self, texts: Sequence[str], ticket: QueryTicket) -> Vectors:
        """Embed the texts; only a remote embedder has a budget.

        The work of a local embedder is bounded: a query has few texts, and the model truncates each of them. A timeout
        would save nothing, because a computation that has started cannot be interrupted.
        """
        budget_s = None if self._embedder.is_local else self._budget_s
        embedding = self._embedder.embed_queries(texts, ticket)
        return await embed_in_time(embedding, ticket, budget_s=budget_s, max_wait_s=self._max_wait_s)

    def _record_outcome(self, user_id: str, failure: str | None, seconds: float) -> None:
        if failure is None:
            self._breaker.record_success()
        else:
            self._breaker.record_failure(user_id)
            self._metrics.embedding_failures.labels("query", failure).inc()
        self._failure = failure if self._breaker.is_open else None
        self._metrics.embedding_seconds.labels("query", "succeeded" if failure is None else "failed").observe(seconds)
        self._metrics.breaker_open.set(self._breaker.is_open)


def _digest(texts: Sequence[str]) -> bytes:
    """Hash the texts, which can be long, so that all cache keys are small. Lengths keep the boundaries apart."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()
