"""Computes a tool's vector from its document and its known examples. Pure functions.

The stored index, the backfill of another model and inline search all use `ToolTexts`, so that the same tool has the
same vector everywhere.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.embeddings.base import Vector
from app.indexing.cache_scope import EVERYONE, CacheScope
from app.indexing.documents import EXAMPLES_VERSION
from app.text.strict_json import canonical_json

EXAMPLE_WEIGHT = 0.5
"""The weight of the examples' mean beside the document. It bounds what examples can do: the vector stays within 30
degrees of the document's, whatever they are."""


def blend_examples(document: Vector, examples: Sequence[Vector], unrelated: float) -> Vector:
    """Move a document's vector towards the mean of its examples.

    An example counts only if its cosine with the document is above `unrelated`, the cosine of texts that have nothing
    in common. All parts are rounded as the cache rounds them: it does not matter which of them were cached.
    """
    own = _round_to_half(document)
    related = [example for example in map(_round_to_half, examples) if float(example @ own) > unrelated]
    if not related:
        return document
    blended = own + EXAMPLE_WEIGHT * np.mean(related, axis=0)
    unit: Vector = (blended / np.linalg.norm(blended)).astype(np.float32)
    return unit


@dataclass(frozen=True)
class ToolTexts:
    """The texts that a tool's vector is computed from."""

    document: str
    examples: tuple[str, ...] = ()
    """Texts that ship with Toolscout, which all users share."""
    scope: CacheScope = EVERYONE
    """Who shares the vectors of the document and of the tool."""

    @cached_property
    def by_hash(self) -> Mapping[bytes, str]:
        """All texts by their cache keys, the document first."""
        return {self.document_hash: self.document} | {EVERYONE.hash_text(text.encode()): text for text in self.examples}

    @cached_property
    def document_hash(self) -> bytes:
        return self.scope.hash_text(self.document.encode())

    @cached_property
    def vector_hash(self) -> bytes:
        """The cache key of the tool's vector. Without examples it is the key of the document."""
        if not self.examples:
            return self.document_hash
        return self.scope.hash_text(canonical_json([EXAMPLES_VERSION, self.document, *self.examples]))

    def make_vector(
        self, vectors: Mapping[bytes, Vector], unrelated: float, refused: Collection[bytes] = ()
    ) -> Vector | None:
        """Return the tool's vector from those of its texts by hash, or None if some are missing.

        `refused` are texts that the embedder does not accept. The tool's vector does without refused examples.
        """
        if (whole := vectors.get(self.vector_hash)) is not None:
            return whole
        needed = [key for key in self.by_hash if key == self.document_hash or key not in refused]
        if any(key not in vectors for key in needed):
            return None
        document, *examples = (vectors[key] for key in needed)
        return blend_examples(document, examples, unrelated)


def _round_to_half(vector: Vector) -> Vector:
    return vector.astype(np.float16).astype(np.float32)
