"""What every embedder offers, and the check that every answer passes before anyone uses it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from app.errors import EmbeddingFailed

Vector = npt.NDArray[np.float32]
"""One unit-length vector, shape (dimension,)."""

Vectors = npt.NDArray[np.float32]
"""One row a text, shape (texts, dimension), each row of unit length."""


class Embedder(Protocol):
    """Turns texts into unit vectors. Raises `EmbeddingFailed`, and nothing else, when it cannot."""

    @property
    def model(self) -> str:
        """The model's identity: whatever changes the vectors changes this string."""

    @property
    def batch_size(self) -> int:
        """How many documents are best given at once: small enough to show progress between batches."""

    @property
    def is_local(self) -> bool:
        """It takes the processor from all else that this process does."""

    def expect_dimension(self, dimension: int) -> None:
        """From now on an answer of another size is a failure: vectors of two models are never compared."""

    async def embed_documents(self, texts: Sequence[str]) -> Vectors: ...

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The texts of one question: quick or not at all."""

    async def aclose(self) -> None: ...


def check_vectors(vectors: Vectors, *, count: int, dimension: int | None) -> Vectors:
    """The vectors at unit length, or `EmbeddingFailed`.

    A zero vector gives a NaN distance, and Postgres sorts NaN as the greatest value yet calls `NaN > 0.3` true:
    whatever is not finite or has no direction must never be stored nor searched with.
    """
    if vectors.ndim != 2 or vectors.shape[0] != count:
        raise EmbeddingFailed("wrong_count", f"the embedder answered {vectors.shape} for {count} texts")
    if dimension is not None and vectors.shape[1] != dimension:
        raise EmbeddingFailed(
            "wrong_dimension", f"the embedder answered {vectors.shape[1]} dimensions, not {dimension}"
        )
    if not np.isfinite(vectors).all():
        raise EmbeddingFailed("not_finite", "the embedder answered NaN or infinity")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or (norms < 1e-6).any():
        raise EmbeddingFailed("no_direction", "the embedder answered a zero vector")
    unit: Vectors = (vectors / norms).astype(np.float32)
    return unit
