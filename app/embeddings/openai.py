"""Any OpenAI-compatible embedding endpoint."""

from collections.abc import Sequence

import numpy as np
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, OpenAIError
from openai.types import CreateEmbeddingResponse

from app.embeddings.base import Vectors, check_vectors
from app.errors import EmbeddingFailed

DEFAULT_MODEL = "text-embedding-3-small"

# The client waits between tries with jitter and heeds Retry-After; a query has no time for that.
_INDEX_RETRIES = 4


class OpenAIEmbedder:
    def __init__(self, client: AsyncOpenAI, name: str, *, query_timeout_s: float, index_timeout_s: float) -> None:
        self._for_queries = client.with_options(max_retries=0, timeout=query_timeout_s)
        self._for_documents = client.with_options(max_retries=_INDEX_RETRIES, timeout=index_timeout_s)
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

    def expect_dimension(self, dimension: int) -> None:
        self._dimension = dimension

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return await self._embed(self._for_documents, texts)

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return await self._embed(self._for_queries, texts)

    async def aclose(self) -> None:
        await self._client.close()

    async def _embed(self, client: AsyncOpenAI, texts: Sequence[str]) -> Vectors:
        try:
            answer = await client.embeddings.create(model=self._name, input=list(texts), encoding_format="float")
            vectors = _in_order(answer, len(texts))
        except APITimeoutError as error:
            raise EmbeddingFailed("timeout", "the embedding endpoint did not answer in time") from error
        except APIConnectionError as error:
            raise EmbeddingFailed("unreachable", "the embedding endpoint cannot be reached") from error
        except APIStatusError as error:
            raise EmbeddingFailed(
                f"status_{error.status_code}", f"the endpoint answered {error.status_code}"
            ) from error
        except (OpenAIError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            # a body that is JSON but not an embedding answer: the client builds its types without checking them
            raise EmbeddingFailed("malformed", "the embedding endpoint answered something else") from error
        return check_vectors(vectors, count=len(texts), dimension=self._dimension)


def _in_order(answer: CreateEmbeddingResponse, count: int) -> Vectors:
    """By the index that each item carries: an endpoint may answer in any order, but must answer all."""
    by_index = {item.index: item.embedding for item in answer.data}
    if len(answer.data) != count or by_index.keys() != set(range(count)):
        raise EmbeddingFailed("wrong_count", f"the endpoint answered {len(answer.data)} of {count} texts")
    lengths = {len(vector) for vector in by_index.values()}
    if len(lengths) != 1:
        raise EmbeddingFailed("wrong_dimension", "the endpoint answered vectors of different sizes")
    return np.array([by_index[i] for i in range(count)], dtype=np.float32)
