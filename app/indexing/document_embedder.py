"""Embeds the texts of tools: from the cache, then from the embedder, in batches."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.db.engine import Database
from app.embeddings.base import Vector
from app.embeddings.loaded_models import LoadedModel
from app.embeddings.repository import EmbeddingModel
from app.errors import EmbeddingFailed
from app.indexing import store
from app.indexing.cache_scope import EVERYONE
from app.indexing.plan import MissingVector
from app.observability.metrics import Metrics, count_embedding_failures, observe_duration
from app.observability.tracing import Tracing

_MAX_FAILURES_OF_SINGLE_TEXTS = 5


async def _ignore_progress(_left: int) -> None: ...


@dataclass(frozen=True)
class _Text:
    """A text that is not cached: a tool's document or one of its examples."""

    text: str
    hash: bytes
    tool_name: str
    is_example: bool
    tools_before: int
    """How many tools have all their texts before this one."""


@dataclass
class DocumentEmbedder:
    """Collects as many vectors as possible. What the embedder cannot do now is left for a later run."""

    database: Database
    loaded: LoadedModel
    metrics: Metrics
    tracing: Tracing
    user_id: str = ""
    """The user whose tools they are; empty if they are those of many users."""
    on_progress: Callable[[int], Awaitable[None]] = _ignore_progress
    """Called after every batch with the number of tools that are left."""
    vectors: dict[str, Vector] = field(default_factory=dict)
    """By tool id."""
    new_count: int = 0
    """Vectors that the user did not have yet. Those of public texts count even if they were cached: otherwise the
    number would tell what other users have."""
    warnings: list[str] = field(default_factory=list)
    _by_hash: dict[bytes, Vector] = field(default_factory=dict)
    """The vectors of texts."""
    _refused: set[bytes] = field(default_factory=set)
    """Texts that the embedder does not accept."""

    async def embed(self, missing: Sequence[MissingVector], *, use_cache: bool = True) -> None:
        if use_cache:
            self._by_hash |= await _read_cache(self.database, self.loaded.model.id, missing)
            self.vectors |= _make_vectors(missing, self._by_hash, self.loaded.model)
            self.new_count += sum(tool.tool_id in self.vectors and not tool.texts.scope.is_private for tool in missing)
        uncached = [tool for tool in missing if tool.tool_id not in self.vectors]
        texts, size = self._list_texts(uncached), self.loaded.embedder.batch_size
        try:
            for start in range(0, len(texts), size):
                await self._embed_batch_or_each(texts[start : start + size])
                rest = texts[start + size :]
                await self.on_progress(len(uncached) - rest[0].tools_before if rest else 0)
        except EmbeddingFailed as error:
            self.warnings.append(
                f"the embedder failed ({error.reason}): tools without a vector are found by lexical search only, "
                "until it recovers"
            )
        await self._add_vectors(uncached)

    def _list_texts(self, tools: Sequence[MissingVector]) -> list[_Text]:
        """Return every text once that has no vector yet, tool by tool."""
        texts: dict[bytes, _Text] = {}
        for position, tool in enumerate(tools):
            for key, text in tool.texts.by_hash.items():
                if key not in self._by_hash:
                    is_example = key != tool.texts.document_hash
                    texts.setdefault(key, _Text(text, key, tool.tool_name, is_example, tools_before=position))
        return list(texts.values())

    async def _embed_batch_or_each(self, batch: Sequence[_Text]) -> None:
        """Embed the texts one by one if the batch fails: one text that is refused must not stop the others."""
        try:
            await self._embed_batch(batch)
        except EmbeddingFailed as error:
            if error.retryable or (len(batch) == 1 and not batch[0].is_example):
                raise
            await self._embed_each(batch)

    async def _embed_each(self, batch: Sequence[_Text]) -> None:
        refused: list[_Text] = []
        for text in batch:
            try:
                await self._embed_batch([text])
            except EmbeddingFailed as error:
                refused.append(text)
                # after so many failures the cause is not a single text
                if error.retryable or len(refused) == _MAX_FAILURES_OF_SINGLE_TEXTS:
                    raise
                what = "a known example of the tool" if text.is_example else "the tool"
                self.warnings.append(f"{what} {text.tool_name!r} could not be embedded ({error.reason})")
        self._refused |= {text.hash for text in refused}

    async def _embed_batch(self, batch: Sequence[_Text]) -> None:
        metrics, embedder = self.metrics, self.loaded.embedder
        span = self.tracing.span("embed")
        with span, observe_duration(metrics.embedding_seconds, "index"), count_embedding_failures(metrics, "index"):
            vectors = await embedder.embed_documents([text.text for text in batch], self.user_id)
        by_hash = {text.hash: vector for text, vector in zip(batch, vectors, strict=True)}
        self._by_hash |= by_hash
        await store.write_vector_cache(self.database, embedder.model, by_hash)

    async def _add_vectors(self, tools: Sequence[MissingVector]) -> None:
        """Add the vectors of the tools whose texts have been embedded, and cache those that have examples."""
        added = _make_vectors(tools, self._by_hash, self.loaded.model, self._refused)
        self.vectors |= added
        by_hash = {tool.texts.vector_hash: added[tool.tool_id] for tool in tools if tool.tool_id in added}
        self.new_count += len(by_hash)
        self.metrics.tools_embedded.inc(len(by_hash))
        if blended := {key: vector for key, vector in by_hash.items() if key not in self._by_hash}:
            await store.write_vector_cache(self.database, self.loaded.model.id, blended)


async def load_vectors_of_inactive_model(
    database: Database, model: EmbeddingModel, missing: Sequence[MissingVector]
) -> dict[str, Vector]:
    """Return the vectors that the cache has, or has all parts of, by tool id.

    They may come from the backfill, which shares them between users: nobody can observe those of an inactive model.
    """
    shared = [replace(tool, texts=replace(tool.texts, scope=EVERYONE)) for tool in missing]
    cached = await _read_cache(database, model.id, [*missing, *shared])
    return _make_vectors(shared, cached, model) | _make_vectors(missing, cached, model)


async def _read_cache(database: Database, model_id: str, missing: Sequence[MissingVector]) -> dict[bytes, Vector]:
    if not missing:
        return {}
    hashes = {key for tool in missing for key in (tool.texts.vector_hash, *tool.texts.by_hash)}
    return await store.read_vector_cache(database, model_id, list(hashes))


def _make_vectors(
    tools: Sequence[MissingVector],
    by_hash: Mapping[bytes, Vector],
    model: EmbeddingModel,
    refused: Collection[bytes] = (),
) -> dict[str, Vector]:
    """Return the vectors of the tools whose texts all have one, by tool id."""
    unrelated = model.calibration.unrelated
    vectors = {tool.tool_id: tool.texts.make_vector(by_hash, unrelated, refused) for tool in tools}
    return {tool_id: vector for tool_id, vector in vectors.items() if vector is not None}
