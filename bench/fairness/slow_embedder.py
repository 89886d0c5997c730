"""An embedder of an operator's own that takes time in proportion to the text, and no processor time."""

import hashlib
import time

import numpy as np

_DIMENSION = 64
_WORD_S = 0.001


class SlowEmbedder:
    """Vectors are sums of one random vector for each word."""

    model = "slow-1"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [_embed(text) for text in texts]

    def embed_queries(self, texts: list[str]) -> list[list[float]]:
        time.sleep(sum(len(text.split()) for text in texts) * _WORD_S)
        return self.embed_documents(texts)


def _embed(text: str) -> list[float]:
    total = np.ones(_DIMENSION)
    for word in text.lower().split():
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).normal(size=_DIMENSION)
    return [float(value) for value in total]
