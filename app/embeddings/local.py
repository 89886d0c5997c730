"""The embedder that runs inside this process and needs neither a network nor a key."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from app.embeddings.base import Vectors, check_vectors
from app.embeddings.granite import Granite
from app.embeddings.pack import PACK_SHA256, find_packaged_pack
from app.errors import EmbeddingFailed


class LocalEmbedder:
    """Runs Granite on its own threads: numpy releases the GIL while it computes, so the event loop keeps running."""

    batch_size = 32
    is_local = True

    def __init__(self, path: Path | None = None) -> None:
        """Load the pack at `path`, or the pack of the pinned package, whose hash is known."""
        self._granite = Granite.load(find_packaged_pack(), sha256=PACK_SHA256) if path is None else Granite.load(path)
        # On two cores, BLAS threads that wait for each other made the small products of a query 40 times slower.
        threadpool_limits(limits=1, user_api="blas")
        # Two executors, so that a query never waits behind an index run.
        self._document_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embed-documents")
        self._query_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embed-query")
        self._closed = False

    @property
    def model(self) -> str:
        return f"local:{self._granite.name}:{self._granite.sha256[:8]}"

    @property
    def dimension(self) -> int:
        return self._granite.dimension

    def expect_dimension(self, dimension: int) -> None:
        """Nothing to do: a pack has one dimension, which is part of its identity."""

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        # In batches, so that a cancellation or a close takes effect after the current batch.
        for start in range(0, len(texts), self.batch_size):
            batch = slice(start, start + self.batch_size)
            vectors[batch] = await self._embed(self._document_executor, texts[batch])
        return vectors

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Embed after the queries that came before. A query that is cancelled while it waits is not computed."""
        return await self._embed(self._query_executor, texts)

    async def aclose(self) -> None:
        self._closed = True
        for executor in (self._document_executor, self._query_executor):
            await asyncio.to_thread(executor.shutdown)

    async def _embed(self, executor: Executor, texts: Sequence[str]) -> Vectors:
        if self._closed:
            raise EmbeddingFailed("closed", "the local embedder is closed")
        vectors = await asyncio.get_running_loop().run_in_executor(executor, self._granite.embed, texts)
        return check_vectors(vectors, count=len(texts), dimension=self.dimension)
