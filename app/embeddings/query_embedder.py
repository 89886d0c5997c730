"""Embed queries within a time budget. Cache the vectors, and embed concurrent identical queries only once."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cachetools import TTLCache

from app.embeddings.base import Embedder, Vector
from app.embeddings.circuit_breaker import CircuitBreaker
from app.errors import EmbeddingFailed
from app.observability.metrics import Metrics, count_embedding_failures

QUERY_CACHE_S = 300.0

# The user is part of the key: with a shared entry, the response time would tell one user what another has asked.
_Key = tuple[str, str, bytes]


@dataclass(frozen=True)
class QueryVectors:
    vectors: Sequence[Vector]
    """One for each text of the query."""
    generated: bool
    """False if the vectors come from the cache."""


class QueryEmbedder:
    """Only the event loop uses the cache and the pending tasks, so neither needs a lock."""

    def __init__(
        self, embedder: Embedder, breaker: CircuitBreaker, metrics: Metrics, budget_s: float, cache_size: int
    ) -> None:
        """`cache_size` is the number of vectors to cache; a query has one vector for each of its texts."""
        self._embedder = embedder
        self._breaker = breaker
        self._metrics = metrics
        self._budget_s = budget_s
        self._cache: TTLCache[_Key, Sequence[Vector]] = TTLCache(cache_size, QUERY_CACHE_S, getsizeof=len)
        self._pending: dict[_Key, asyncio.Task[Sequence[Vector]]] = {}

    async def embed(self, user_id: str, texts: tuple[str, ...]) -> QueryVectors:
        key = (user_id, self._embedder.model, _digest(texts))
        cached = self._cache.get(key)
        self._metrics.query_cache.labels("miss" if cached is None else "hit").inc()
        if cached is not None:
            return QueryVectors(cached, generated=False)
        # Shielded: a caller that disconnects must not cancel the embedding for the others.
        return QueryVectors(await asyncio.shield(self._get_or_start_task(key, texts)), generated=True)

    def _get_or_start_task(self, key: _Key, texts: Sequence[str]) -> asyncio.Task[Sequence[Vector]]:
        task = self._pending.get(key)
        if task is None:
            if not self._breaker.allows_attempt():
                raise EmbeddingFailed("breaker_open", "the embedder failed repeatedly and is given time to recover")
            task = self._pending[key] = asyncio.create_task(self._attempt(key, texts))
            task.add_done_callback(lambda done: self._remove_task(key, done))
        return task

    def _remove_task(self, key: _Key, task: asyncio.Task[Sequence[Vector]]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # every waiting caller gets it; if none is left, asyncio must not log it as unretrieved

    async def _attempt(self, key: _Key, texts: Sequence[str]) -> Sequence[Vector]:
        started = time.perf_counter()
        outcome = "failed"
        try:
            with count_embedding_failures(self._metrics, "query"):
                vectors = await self._embed_within_budget(texts)
            outcome = "succeeded"
        finally:
            self._record_outcome(outcome, time.perf_counter() - started)
        with suppress(ValueError):  # more vectors than the whole cache holds
            self._cache[key] = vectors
        return vectors

    async def _embed_within_budget(self, texts: Sequence[str]) -> Sequence[Vector]:
        try:
            async with asyncio.timeout(self._budget_s):
                return list(await self._embedder.embed_queries(texts))
        except TimeoutError as error:
            raise EmbeddingFailed("timeout", "the embedder exceeded its time budget") from error

    def _record_outcome(self, outcome: str, seconds: float) -> None:
        if outcome == "succeeded":
            self._breaker.record_success()
        else:
            self._breaker.record_failure()
        self._metrics.embedding_seconds.labels("query", outcome).observe(seconds)
        self._metrics.breaker_open.set(self._breaker.is_open)


def _digest(texts: Sequence[str]) -> bytes:
    """Hash the texts, which can be long, so that all cache keys are small. Lengths keep the boundaries apart."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()
