"""The embedder that runs inside this process and needs neither a network nor a key."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Literal

import numpy as np

from app.embeddings.base import Vectors, check_vectors
from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local_models import LocalModel
from app.errors import ConfigurationError, EmbeddingFailed


class LocalEmbedder:
    """Runs Granite on its own threads: it releases the GIL while it computes, so the event loop keeps running."""

    batch_size = 32
    is_local = True

    def __init__(self, model: LocalModel, cache: GraphCache) -> None:
        """Load nothing yet: `load` or the first text does."""
        self._model = model
        self._cache = cache
        self._granite: Granite | None = None
        self._loading = threading.Lock()
        # Two executors, so that a query never waits behind an index run.
        self._document_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embed-documents")
        self._query_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embed-query")
        self._closed = False

    @property
    def model(self) -> str:
        return self._model.id

    def load(self) -> None:
        self._load()

    def expect_dimension(self, dimension: int) -> None:
        """Nothing to do: a pack has one dimension, which is part of its identity."""

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        # In batches, so that a cancellation or a close takes effect after the current batch.
        starts = range(0, max(len(texts), 1), self.batch_size)
        batches = [
            await self._embed(self._document_executor, texts[start : start + self.batch_size], "document")
            for start in starts
        ]
        return np.concatenate(batches)

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Embed after the queries that came before. A query that is cancelled while it waits is not computed."""
        return await self._embed(self._query_executor, texts, "query")

    async def aclose(self) -> None:
        self._closed = True
        for executor in (self._document_executor, self._query_executor):
            await asyncio.to_thread(executor.shutdown)

    async def _embed(self, executor: Executor, texts: Sequence[str], kind: Literal["document", "query"]) -> Vectors:
        if self._closed:
            raise EmbeddingFailed("closed", "the local embedder is closed")
        return await asyncio.get_running_loop().run_in_executor(executor, self._compute, texts, kind)

    def _compute(self, texts: Sequence[str], kind: Literal["document", "query"]) -> Vectors:
        try:
            granite = self._load()
        except ConfigurationError as error:
            raise EmbeddingFailed("not_configured", error.message) from error
        return check_vectors(granite.embed(texts, kind), count=len(texts), dimension=granite.dimension)

    def _load(self) -> Granite:
        with self._loading:
            if self._granite is None:
                self._granite = Granite.load(self._model, self._cache)
            return self._granite
