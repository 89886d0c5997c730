"""The embedder for OpenAI-compatible endpoints."""

from collections.abc import Sequence

import httpx2
import numpy as np
from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    OpenAIError,
)
from openai.types import CreateEmbeddingResponse

from app.embeddings.base import QueryTicket, Vectors, check_vectors
from app.errors import EmbeddingFailed

DEFAULT_MODEL = "text-embedding-3-small"

# The client backs off with jitter and respects Retry-After. A query has no time for retries.
_INDEX_RETRIES = 4

# Without a limit, no query waits in this process for a connection while its budget passes. The requests in flight,
# which are limited elsewhere, bound the connections. Idle ones are limited as in the client's default.
_CONNECTION_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100)


def make_client(api_key: str, base_url: str | None) -> AsyncOpenAI:
    http_client = DefaultAsyncHttpxClient(limits=_CONNECTION_LIMITS)
    return AsyncOpenAI(api_key=api_key, base_url=base_url, http_client=http_client)


class OpenAIEmbedder:
    def __init__(self, client: AsyncOpenAI, name: str, *, query_timeout_s: float, index_timeout_s: float) -> None:
        self._query_client = client.with_options(max_retries=0, timeout=query_timeout_s)
        self._document_client = client.with_options(max_retries=_INDEX_RETRIES, timeout=index_timeout_s)
        self._client = client
        self._name = name
        self._dimension: int | None = None

    @property
    def model(self) -> str:
        return f"openai:{self._name}"

    @property
    def is_local(self) -> bool:
        return False

    @property
    def batch_size(self) -> int:
        return 128

    def load(self) -> None:
        """Nothing to load."""

    def expect_dimension(self, dimension: int) -> None:
        self._dimension = dimension

    async def embed_documents(self, texts: Sequence[str], _user_id: str = "") -> Vectors:
        return await self._embed(self._document_client, texts)

    async def embed_queries(self, texts: Sequence[str], _ticket: QueryTicket | None = None) -> Vectors:
        return await self._embed(self._query_client, texts)

    async def aclose(self) -> None:
        await self._client.close()

    async def _embed(self, client: AsyncOpenAI, texts: Sequence[str]) -> Vectors:
        try:
            response = await client.embeddings.create(model=self._name, input=list(texts), encoding_format="float")
            vectors = _parse_vectors(response, len(texts))
        except APITimeoutError as error:
            raise EmbeddingFailed("timeout", "the embedding endpoint did not answer in time") from error
        except APIConnectionError as error:
            raise EmbeddingFailed("unreachable", "the embedding endpoint cannot be reached") from error
        except APIStatusError as error:
            raise EmbeddingFailed(
                f"status_{error.status_code}", f"the embedding endpoint answered with status {error.status_code}"
            ) from error
        except (OpenAIError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            # The body is JSON but not an embedding response: the client builds its types without validating them.
            raise EmbeddingFailed("malformed", "the embedding endpoint returned a malformed response") from error
        return check_vectors(vectors, count=len(texts), dimension=self._dimension)


def _parse_vectors(response: CreateEmbeddingResponse, count: int) -> Vectors:
    """Return the vectors in the order of the texts: an endpoint may return them in any order, but must return all."""
    by_index = {item.index: item.embedding for item in response.data}
    if len(response.data) != count or by_index.keys() != set(range(count)):
        raise EmbeddingFailed("wrong_count", f"the endpoint returned {len(response.data)} vectors for {count} texts")
    lengths = {len(vector) for vector in by_index.values()}
    if len(lengths) != 1:
        raise EmbeddingFailed("wrong_dimension", "the endpoint returned vectors of different dimensions")
    return np.array([by_index[i] for i in range(count)], dtype=np.float32)
