"""An embedder of your own, complete: it compares texts by the groups of three letters that they have in common.

    PYTHONPATH=. TOOLSCOUT_EMBEDDING_PROVIDER=python:examples.own_embedder:make_embedder .venv/bin/toolscout serve

It forgives typing errors and knows every language that is written in letters, but no meaning: a "flat" is no
"apartment". Call your model in its place. See docs/guides/operations.md, "An embedder of your own".
"""

import zlib

import numpy as np
import numpy.typing as npt

DIMENSION = 512


class TrigramEmbedder:
    model = f"trigrams-{DIMENSION}-v1"
    """Toolscout keeps the vectors of each name apart. Change it with everything that changes the vectors."""
    batch_size = 256

    def embed_documents(self, texts: list[str]) -> npt.NDArray[np.float32]:
        vectors = np.zeros((len(texts), DIMENSION), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            padded = f"  {text.lower()} "
            for start in range(len(padded) - 2):
                # A hash that is the same in every process, which Python's own is not.
                vector[zlib.crc32(padded[start : start + 3].encode()) % DIMENSION] += 1
        return np.sqrt(vectors)

    embed_queries = embed_documents


def make_embedder() -> TrigramEmbedder:
    return TrigramEmbedder()
