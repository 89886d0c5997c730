"""Load the embeddings of inline tools.

They come from the user's part of the cache. The embedder makes the missing ones within a time budget, and each batch
goes into the cache, so that the next request continues where this one stopped.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.db.engine import Database
from app.embeddings.base import Vector
from app.embeddings.loaded_models import LoadedModel
from app.errors import EmbeddingFailed
from app.indexing import store
from app.indexing.tool_vectors import ToolTexts
from app.observability.metrics import Metrics, observe_duration

logger = logging.getLogger("toolscout.inline_search")

OUT_OF_TIME = "embedding_budget"
_MAX_FAILURES = 2


@dataclass(frozen=True)
class EmbeddedTools:
    """The tools' embeddings by `ToolTexts.vector_hash`, and the reason if some are missing or incomplete."""

    vectors: Mapping[bytes, Vector]
    reason: str | None = None


@dataclass(frozen=True)
class VectorSource:
    database: Database
    loaded: LoadedModel
    metrics: Metrics
    user_id: str
    """The user who waits for the embeddings."""

    async def read_cached(self, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        return await store.read_vector_cache(self.database, self.loaded.model.id, hashes)

    async def embed(self, tools: Sequence[ToolTexts], budget_s: float | None) -> EmbeddedTools:
        """Embed as many texts as the budget allows; None is no limit.

        All documents come before all examples: a tool whose examples are still missing is found by its document.
        """
        parts = {key: text for tool in tools if tool.examples for key, text in tool.by_hash.items()}
        texts = {tool.document_hash: tool.document for tool in tools} | parts
        # the vectors of these tools are not cached, but those of some of their parts may be
        vectors = await self.read_cached(list(parts)) if parts else {}
        missing = [(key, text) for key, text in texts.items() if key not in vectors]
        reason = None
        try:
            async with asyncio.timeout(budget_s):
                if (failure := await self._embed_into(vectors, missing)) is not None:
                    reason = f"embedder_{failure.reason}"
        except TimeoutError:
            reason = OUT_OF_TIME
        return EmbeddedTools(await self._blend(tools, vectors), reason)

    async def _blend(self, tools: Sequence[ToolTexts], vectors: Mapping[bytes, Vector]) -> dict[bytes, Vector]:
        """Make the vectors of the tools, and cache those that have examples."""
        unrelated = self.loaded.model.calibration.unrelated
        whole = {tool.vector_hash: tool.make_vector(vectors, unrelated) for tool in tools}
        complete = {key: vector for key, vector in whole.items() if vector is not None}
        if blended := {key: vector for key, vector in complete.items() if key not in vectors}:
            await store.write_vector_cache(self.database, self.loaded.model.id, blended)
        documents = {tool.vector_hash: vectors[tool.document_hash] for tool in tools if tool.document_hash in vectors}
        return documents | complete

    async def _embed_into(
        self, vectors: dict[bytes, Vector], texts: Sequence[tuple[bytes, str]]
    ) -> EmbeddingFailed | None:
        """Add the embeddings to `vectors` and return the last failure.

        A text that the embedder rejects costs its own batch. An embedder that is down is not called again.
        """
        size, failures = self.loaded.embedder.batch_size, 0
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
            vectors = await self.loaded.embedder.embed_documents(list(batch.values()), self.user_id)
        embedded = dict(zip(batch, vectors, strict=True))
        await store.write_vector_cache(self.database, self.loaded.model.id, embedded)
        return embedded
