"""The query's way to its vector: remembered, asked once however many ask it, one attempt inside a budget."""

import asyncio
import time
from dataclasses import dataclass

from app.cache import TtlCache
from app.embeddings.base import Embedder, Vector
from app.embeddings.breaker import Breaker
from app.errors import EmbeddingFailed
from app.telemetry import Metrics, failures_counted

QUERY_CACHE_S = 300.0

# The user is part of the key: a shared entry would tell one user, by its speed, what another has asked.
_Key = tuple[str, str, str]


@dataclass(frozen=True)
class QueryVector:
    vector: Vector
    generated: bool


class QueryEmbedder:
    def __init__(
        self, embedder: Embedder, breaker: Breaker, metrics: Metrics, budget_s: float, cache_size: int
    ) -> None:
        self._embedder = embedder
        self._breaker = breaker
        self._metrics = metrics
        self._budget_s = budget_s
        self._cache: TtlCache[_Key, Vector] = TtlCache(cache_size, QUERY_CACHE_S)
        self._in_flight: dict[_Key, asyncio.Task[Vector]] = {}

    async def embed(self, user_id: str, text: str) -> QueryVector:
        key = (user_id, self._embedder.model, text)
        cached = self._cache.get(key)
        self._metrics.query_cache.labels("miss" if cached is None else "hit").inc()
        if cached is not None:
            return QueryVector(cached, generated=False)
        # shielded: one caller who hangs up must not take the answer from the others
        return QueryVector(await asyncio.shield(self._flight(key, text)), generated=True)

    def _flight(self, key: _Key, text: str) -> asyncio.Task[Vector]:
        flight = self._in_flight.get(key)
        if flight is None:
            if not self._breaker.allows_a_try():
                raise EmbeddingFailed("breaker_open", "the embedder failed repeatedly and is given time to recover")
            flight = self._in_flight[key] = asyncio.create_task(self._attempt(key, text))
            flight.add_done_callback(lambda ended: self._landed(key, ended))
        return flight

    def _landed(self, key: _Key, flight: asyncio.Task[Vector]) -> None:
        self._in_flight.pop(key, None)
        if not flight.cancelled():
            flight.exception()  # whoever still waits sees it; when nobody does, asyncio must not complain

    async def _attempt(self, key: _Key, text: str) -> Vector:
        started = time.perf_counter()
        outcome = "failed"
        try:
            with failures_counted(self._metrics, "query"):
                vector = await self._within_budget(text)
            outcome = "succeeded"
        finally:
            self._note(outcome, time.perf_counter() - started)
        self._cache.put(key, vector)
        return vector

    async def _within_budget(self, text: str) -> Vector:
        try:
            async with asyncio.timeout(self._budget_s):
                return await self._embedder.embed_query(text)
        except TimeoutError as error:
            raise EmbeddingFailed("timeout", "the embedder took longer than its budget") from error

    def _note(self, outcome: str, seconds: float) -> None:
        if outcome == "succeeded":
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        self._metrics.embedding_seconds.labels("query", outcome).observe(seconds)
        self._metrics.breaker_open.set(self._breaker.is_open)
