"""Embeds the texts of tools: from the cache that all users share, then from the embedder, in batches."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from app.db.engine import Database
from app.embeddings.base import Embedder, Vector
from app.errors import EmbeddingFailed
from app.indexing import store
from app.indexing.documents import text_hash
from app.indexing.plan import MissingVector
from app.observability.metrics import Metrics, count_embedding_failures, observe_duration
from app.observability.tracing import Tracing

_MAX_FAILURES_OF_SINGLE_TEXTS = 5


async def _ignore_progress(_left: int) -> None: ...


@dataclass
class DocumentEmbedder:
    """Collects as many vectors as possible. What the embedder cannot do now is left for a later run."""

    database: Database
    embedder: Embedder
    metrics: Metrics
    tracing: Tracing
    on_progress: Callable[[int], Awaitable[None]] = _ignore_progress
    """Called after every batch with the number of texts that are left."""
    vectors: dict[str, Vector] = field(default_factory=dict)
    """By tool id."""
    computed: int = 0
    warnings: list[str] = field(default_factory=list)

    async def embed(self, missing: Sequence[MissingVector], *, use_cache: bool = True) -> None:
        if use_cache:
            self.vectors |= await load_cached_vectors(self.database, self.embedder.model, missing)
        uncached = [tool for tool in missing if tool.tool_id not in self.vectors]
        size = self.embedder.batch_size
        try:
            for start in range(0, len(uncached), size):
                await self._embed_batch_or_each(uncached[start : start + size])
                await self.on_progress(len(uncached) - start - size)
        except EmbeddingFailed as error:
            self.warnings.append(
                f"the embedder failed ({error.reason}): tools without a vector are found by lexical search only, "
                "until it recovers"
            )

    async def _embed_batch_or_each(self, batch: Sequence[MissingVector]) -> None:
        """Embed the texts one by one if the batch fails: one text that is refused must not stop the others."""
        try:
            await self._embed_batch(batch)
        except EmbeddingFailed as error:
            if error.retryable or len(batch) == 1:
                raise
            await self._embed_each(batch)

    async def _embed_each(self, batch: Sequence[MissingVector]) -> None:
        failures = 0
        for tool in batch:
            try:
                await self._embed_batch([tool])
            except EmbeddingFailed as error:
                failures += 1
                # after so many failures the cause is not a single text
                if error.retryable or failures == _MAX_FAILURES_OF_SINGLE_TEXTS:
                    raise
                self.warnings.append(f"the tool {tool.tool_name!r} could not be embedded ({error.reason})")

    async def _embed_batch(self, batch: Sequence[MissingVector]) -> None:
        metrics = self.metrics
        span = self.tracing.span("embed")
        with span, observe_duration(metrics.embedding_seconds, "index"), count_embedding_failures(metrics, "index"):
            vectors = await self.embedder.embed_documents([tool.text for tool in batch])
        self.vectors |= {tool.tool_id: vector for tool, vector in zip(batch, vectors, strict=True)}
        self.computed += len(batch)
        metrics.tools_embedded.inc(len(batch))
        by_text = {text_hash(tool.text): vector for tool, vector in zip(batch, vectors, strict=True)}
        async with self.database.system_transaction() as session:
            await store.write_vector_cache(session, self.embedder.model, by_text)


async def load_cached_vectors(database: Database, model: str, missing: Sequence[MissingVector]) -> dict[str, Vector]:
    """Return the vectors that the shared cache has, by tool id."""
    if not missing:
        return {}
    hashes = {tool.tool_id: text_hash(tool.text) for tool in missing}
    async with database.system_transaction() as session:
        cached = await store.read_vector_cache(session, model, list(hashes.values()))
    return {tool_id: cached[key] for tool_id, key in hashes.items() if key in cached}
