"""The query's way to its vector: remembered, asked once however many ask it, one attempt inside a budget."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from app.cache import TtlCache
from app.embeddings.base import Embedder, Vector
from app.embeddings.circuit_breaker import CircuitBreaker
from app.errors import EmbeddingFailed
from app.observability.metrics import Metrics, failures_counted

QUERY_CACHE_S = 300.0

# The user is part of the key: a shared entry would tell one user, by its speed, what another has asked.
_Key = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class QueryVectors:
    vectors: Sequence[Vector]
    """Of the question's texts, one each."""
    generated: bool


class QueryEmbedder:
    def __init__(
        self, embedder: Embedder, breaker: CircuitBreaker, metrics: Metrics, budget_s: float, cache_size: int
    ) -> None:
        self._embedder = embedder
        self._breaker = breaker
        self._metrics = metrics
        self._budget_s = budget_s
        self._cache: TtlCache[_Key, Sequence[Vector]] = TtlCache(cache_size, QUERY_CACHE_S)
        self._in_flight: dict[_Key, asyncio.Task[Sequence[Vector]]] = {}

    async def embed(self, user_id: str, texts: tuple[str, ...]) -> QueryVectors:
        key = (user_id, self._embedder.model, texts)
        cached = self._cache.get(key)
        self._metrics.query_cache.labels("miss" if cached is None else "hit").inc()
        if cached is not None:
            return QueryVectors(cached, generated=False)
        # shielded: one caller who hangs up must not take the answer from the others
        return QueryVectors(await asyncio.shield(self._flight(key)), generated=True)

    def _flight(self, key: _Key) -> asyncio.Task[Sequence[Vector]]:
        flight = self._in_flight.get(key)
        if flight is None:
            if not self._breaker.allows_attempt():
                raise EmbeddingFailed("breaker_open", "the embedder failed repeatedly and is given time to recover")
            flight = self._in_flight[key] = asyncio.create_task(self._attempt(key))
            flight.add_done_callback(lambda ended: self._landed(key, ended))
        return flight

    def _landed(self, key: _Key, flight: asyncio.Task[Sequence[Vector]]) -> None:
        self._in_flight.pop(key, None)
        if not flight.cancelled():
            flight.exception()  # whoever still waits sees it; when nobody does, asyncio must not complain

    async def _attempt(self, key: _Key) -> Sequence[Vector]:
        started = time.perf_counter()
        outcome = "failed"
        try:
            with failures_counted(self._metrics, "query"):
                vectors = await self._within_budget(key[2])
            outcome = "succeeded"
        finally:
            self._note(outcome, time.perf_counter() - started)
        self._cache.put(key, vectors)
        return vectors

    async def _within_budget(self, texts: Sequence[str]) -> Sequence[Vector]:
        try:
            async with asyncio.timeout(self._budget_s):
                return list(await self._embedder.embed_queries(texts))
        except TimeoutError as error:
            raise EmbeddingFailed("timeout", "the embedder took longer than its budget") from error

    def _note(self, outcome: str, seconds: float) -> None:
        if outcome == "succeeded":
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        self._metrics.embedding_seconds.labels("query", outcome).observe(seconds)
        self._metrics.breaker_open.set(self._breaker.is_open)
