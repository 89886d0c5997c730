"""The embedder that runs inside this process and needs neither a network nor a key."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

import numpy as np

from app.embeddings.base import QueryTicket, Vector, Vectors, check_vectors
from app.embeddings.granite import MAX_TOKENS, Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local_models import LocalModel
from app.errors import ConfigurationError, EmbeddingFailed
from app.limits.fair_thread import FairThread

BATCH_TOKENS = 64
"""About how many tokens a batch has: 7 ms of one core. With 128, five messages take 10 % less time for each, and a
message of another user waits twice as long."""

LONG_QUERY_NICENESS = 5
INDEX_NICENESS = 10
"""The priorities of the threads for long texts of queries and for documents, if all cores are busy: a third and a tenth
of the time of the thread for short texts."""

_CHARACTERS_PER_TOKEN = 4

_Kind = Literal["document", "query"]


class LocalEmbedder:
    """Runs Granite on its own threads: it releases the GIL while it computes, so the event loop keeps running.

    One thread is for documents and two are for queries, so that no query waits for an index run, and no short one for
    long ones. What waits for a thread is embedded in small batches, in which all users have their turns.
    """

    batch_size = 32
    is_local = True

    def __init__(self, model: LocalModel, cache: GraphCache) -> None:
        """Load nothing yet: `load` or the first text does."""
        self._model = model
        self._cache = cache
        self._granite: Granite | None = None
        self._loading = threading.Lock()
        self._queries = self._make_thread("query")
        self._long_queries = self._make_thread("query", niceness=LONG_QUERY_NICENESS)
        self._documents = self._make_thread("document", niceness=INDEX_NICENESS)

    @property
    def model(self) -> str:
        return self._model.id

    def load(self) -> None:
        self._load()

    def expect_dimension(self, dimension: int) -> None:
        """Nothing to do: a pack has one dimension, which is part of its identity."""

    async def embed_documents(self, texts: Sequence[str], user_id: str = "") -> Vectors:
        return await self._collect(self._documents.submit(user_id, texts))

    async def embed_queries(self, texts: Sequence[str], ticket: QueryTicket | None = None) -> Vectors:
        """Embed the texts together with those of other queries. A query that is cancelled while it waits is not
        computed."""
        user_id = "" if ticket is None else ticket.user_id
        short = iter(self._queries.submit(user_id, [text for text in texts if not _is_long(text)]))
        long = iter(self._long_queries.submit(user_id, [text for text in texts if _is_long(text)]))
        futures = [next(long if _is_long(text) else short) for text in texts]
        if ticket is not None:
            ticket.is_waiting = lambda: not any(future.running() or future.done() for future in futures)
        return await self._collect(futures)

    async def aclose(self) -> None:
        threads = self._queries, self._long_queries, self._documents
        for thread in threads:
            thread.close(EmbeddingFailed("closed", "the local embedder is closed"))
        for thread in threads:
            await asyncio.to_thread(thread.join)

    def _make_thread(self, kind: _Kind, niceness: int = 0) -> FairThread[str, Vector]:
        compute = partial(self._compute, kind=kind)
        return FairThread(f"embed-{kind}", compute, capacity=BATCH_TOKENS, measure=estimate_tokens, niceness=niceness)

    async def _collect(self, futures: "Sequence[Future[Vector]]") -> Vectors:
        if not futures:
            return np.empty((0, (await asyncio.to_thread(self._load)).dimension), np.float32)
        return np.stack(await asyncio.gather(*map(asyncio.wrap_future, futures)))

    def _compute(self, texts: Sequence[str], kind: _Kind) -> Sequence[Vector]:
        try:
            granite = self._load()
        except ConfigurationError as error:
            raise EmbeddingFailed("not_configured", error.message) from error
        return list(check_vectors(granite.embed(texts, kind), count=len(texts), dimension=granite.dimension))

    def _load(self) -> Granite:
        with self._loading:
            if self._granite is None:
                self._granite = Granite.load(self._model, self._cache)
            return self._granite


def _is_long(text: str) -> bool:
    return estimate_tokens(text) > BATCH_TOKENS


def estimate_tokens(text: str) -> int:
    return min(len(text) // _CHARACTERS_PER_TOKEN + 2, MAX_TOKENS)
