"""The interface of embedders, and the check that every vector passes before it is used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from app.errors import EmbeddingFailed

Vector = npt.NDArray[np.float32]
"""One unit-length vector, shape (dimension,)."""

Vectors = npt.NDArray[np.float32]
"""One row per text, shape (texts, dimension), each row of unit length."""


@dataclass
class QueryTicket:
    """A query's place in the queue of an embedder that has one."""

    user_id: str
    is_waiting: Callable[[], bool] = lambda: False
    """Set by the embedder: whether the query still waits in this process, which is no time of the embedder."""


class Embedder(Protocol):
    """Turns texts into unit vectors. Every failure is an `EmbeddingFailed`."""

    @property
    def model(self) -> str:
        """The identity of the model: it changes with everything that changes the vectors."""

    @property
    def batch_size(self) -> int:
        """The best number of documents per call: small enough to report progress between batches."""

    @property
    def is_local(self) -> bool:
        """Whether embedding takes CPU time of this process. The work on a query is bounded then, and has no budget."""

    def load(self) -> None:
        """Load what embedding needs, or raise `ConfigurationError`. It may take a second, so call it from a thread.

        The first text would do the same, but its sender would have to wait.
        """

    def expect_dimension(self, dimension: int) -> None:
        """Reject vectors of any other dimension from now on: vectors of two models are never compared."""

    async def embed_documents(self, texts: Sequence[str], user_id: str = "", /) -> Vectors:
        """Embed tools. The user is the one for whom it is done: where texts wait, all users have their turns."""

    async def embed_queries(self, texts: Sequence[str], ticket: QueryTicket | None = None, /) -> Vectors:
        """Embed the texts of one query with a single attempt: a late answer is of no use."""

    async def aclose(self) -> None: ...


class EmbedderPlugin(Protocol):
    """What an operator's own embedder must have (`TOOLSCOUT_EMBEDDING_PROVIDER=python:package.module:factory`).

    Both methods may be async. One that is not runs on a thread, and is never called again before it returns; but one
    may be called while the other runs. Return one vector per text, in their order: a list of lists, an array, or what
    numpy can turn into one. All vectors have one dimension; their length does not matter.

    Raise `ConnectionError` or `TimeoutError` if the model as a whole does not work for now, anything else if a text
    cannot be embedded.

    Optional: `batch_size`, the largest number of documents in a call (32 if there is none), and `aclose()`, which may
    be async, too.
    """

    @property
    def model(self) -> str:
        """The name of the model. Change it with everything that changes the vectors."""

    def embed_documents(self, texts: list[str], /) -> Any: ...

    def embed_queries(self, texts: list[str], /) -> Any:
        """Embed messages. A call that exceeds the time budget of a query is given up."""


def check_vectors(vectors: Vectors, *, count: int, dimension: int | None) -> Vectors:
    """Return the vectors at unit length, or raise `EmbeddingFailed`.

    A zero vector has a NaN distance to everything, and to Postgres `NaN > 0.3` is true. So no vector that is not finite
    or has no direction may be stored or searched with.
    """
    if vectors.ndim != 2 or vectors.shape[0] != count:
        raise EmbeddingFailed("wrong_count", f"the embedder returned shape {vectors.shape} for {count} texts")
    if dimension is not None and vectors.shape[1] != dimension:
        raise EmbeddingFailed(
            "wrong_dimension", f"the embedder returned {vectors.shape[1]} dimensions instead of {dimension}"
        )
    if not np.isfinite(vectors).all():
        raise EmbeddingFailed("not_finite", "the embedder returned NaN or infinity")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or (norms < 1e-6).any():
        raise EmbeddingFailed("no_direction", "the embedder returned a zero vector")
    unit: Vectors = (vectors / norms).astype(np.float32)
    return unit
