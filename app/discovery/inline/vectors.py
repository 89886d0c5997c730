"""The vectors of sent tools: from the cache that all users share, and what is missing from the embedder, within a
budget of time. Each batch goes into the cache, so that the next request begins where this one ended."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.db.engine import Database
from app.embeddings.base import Embedder, Vector
from app.errors import EmbeddingFailed
from app.indexing import store
from app.observability.metrics import Metrics, timed

logger = logging.getLogger("toolscout.stateless")

OUT_OF_TIME = "embedding_budget"
_FAILURES_ALLOWED = 2


@dataclass(frozen=True)
class Vectors:
    """By the hash of the text. `reason`: why some are missing."""

    known: Mapping[bytes, Vector]
    reason: str | None = None


@dataclass(frozen=True)
class VectorSource:
    database: Database
    embedder: Embedder
    metrics: Metrics

    async def cached(self, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        async with self.database.system_transaction() as session:
            return await store.read_vector_cache(session, self.embedder.model, hashes)

    async def embed(self, texts: Mapping[bytes, str], budget_s: float | None) -> Vectors:
        """As many as there is time for, in this order. None: all of them."""
        known: dict[bytes, Vector] = {}
        try:
            async with asyncio.timeout(budget_s):
                failure = await self._embed_into(known, list(texts.items()))
        except TimeoutError:
            return Vectors(known, OUT_OF_TIME)
        return Vectors(known, None if failure is None else f"embedder_{failure.reason}")

    async def _embed_into(
        self, known: dict[bytes, Vector], texts: Sequence[tuple[bytes, str]]
    ) -> EmbeddingFailed | None:
        """The last failure. One text that the embedder does not take costs its batch alone; an embedder that is down is
        not asked again."""
        size, failures = self.embedder.batch_size, 0
        failure = None
        for start in range(0, len(texts), size):
            try:
                known |= await self._embed_batch(dict(texts[start : start + size]))
            except EmbeddingFailed as error:
                logger.warning("sent tools could not be embedded", extra={"reason": error.reason})
                failure, failures = error, failures + 1
                if error.passing or failures == _FAILURES_ALLOWED:
                    break
        return failure

    async def _embed_batch(self, batch: Mapping[bytes, str]) -> dict[bytes, Vector]:
        """No connection is held while the embedder is at work."""
        with timed(self.metrics.embedding_seconds, "index"):
            vectors = await self.embedder.embed_documents(list(batch.values()))
        made = dict(zip(batch, vectors, strict=True))
        async with self.database.system_transaction() as session:
            await store.write_vector_cache(session, self.embedder.model, made)
        return made
