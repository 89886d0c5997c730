"""Load the embeddings of inline tools.

They come from the cache that all users share. The embedder makes the missing ones within a time budget, and each batch
goes into the cache, so that the next request continues where this one stopped.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.db.engine import Database
from app.embeddings.base import Embedder, Vector
from app.errors import EmbeddingFailed
from app.indexing import store
from app.observability.metrics import Metrics, observe_duration

logger = logging.getLogger("toolscout.inline_search")

OUT_OF_TIME = "embedding_budget"
_MAX_FAILURES = 2


@dataclass(frozen=True)
class EmbeddedTexts:
    """Embeddings by the hash of their text, and the reason if some are missing."""

    vectors: Mapping[bytes, Vector]
    reason: str | None = None


@dataclass(frozen=True)
class VectorSource:
    database: Database
    embedder: Embedder
    metrics: Metrics

    async def read_cached(self, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        async with self.database.system_transaction() as session:
            return await store.read_vector_cache(session, self.embedder.model, hashes)

    async def embed(self, texts: Mapping[bytes, str], budget_s: float | None) -> EmbeddedTexts:
        """Embed as many texts as the budget allows, in their order; None is no limit."""
        vectors: dict[bytes, Vector] = {}
        try:
            async with asyncio.timeout(budget_s):
                failure = await self._embed_into(vectors, list(texts.items()))
        except TimeoutError:
            return EmbeddedTexts(vectors, OUT_OF_TIME)
        return EmbeddedTexts(vectors, None if failure is None else f"embedder_{failure.reason}")

    async def _embed_into(
        self, vectors: dict[bytes, Vector], texts: Sequence[tuple[bytes, str]]
    ) -> EmbeddingFailed | None:
        """Add the embeddings to `vectors` and return the last failure.

        A text that the embedder rejects costs its own batch. An embedder that is down is not called again.
        """
        size, failures = self.embedder.batch_size, 0
        failure = None
        for start in range(0, len(texts), size):
            try:
                vectors |= await self._embed_batch(dict(texts[start : start + size]))
            except EmbeddingFailed as error:
                logger.warning("failed to embed inline tools", extra={"reason": error.reason})
                failure, failures = error, failures + 1
                if error.retryable or failures == _MAX_FAILURES:
                    break
        return failure

    async def _embed_batch(self, batch: Mapping[bytes, str]) -> dict[bytes, Vector]:
        """Embed a batch, then cache it; no connection is held while the embedder works."""
        with observe_duration(self.metrics.embedding_seconds, "index"):
            vectors = await self.embedder.embed_documents(list(batch.values()))
        embedded = dict(zip(batch, vectors, strict=True))
        async with self.database.system_transaction() as session:
            await store.write_vector_cache(session, self.embedder.model, embedded)
        return embedded
