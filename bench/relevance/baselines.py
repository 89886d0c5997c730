"""Simple rankings that Toolscout must beat. Each ranks all tools for a message and returns the ids of the best ten."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from app.embeddings.base import Vector, Vectors
from bench.relevance.sets import BenchTool

DEPTH = 10
_FUSED_DEPTH = 100
_K1, _B, _RRF_K = 1.2, 0.75, 60
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# Its own list, so that the baseline does not change with the product.
_STOP_WORDS = frozenset(
    """
    a an and are as at be but by can could do does for from had has have how i if in into is it its me
    my no not of on or our out please so some than that the their them then there these they this to up
    us was we were what when where which who will with would you your
    """.split()
)


def split_words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in _STOP_WORDS]


def split_name(name: str) -> str:
    """Split `searchIssues` and `search_issues` into words."""
    return _CAMEL.sub(" ", name).replace("_", " ")


class PlainBm25:
    """BM25 over the split name and the description, without stop words and without stemming."""

    def __init__(self, tools: Sequence[BenchTool]) -> None:
        self._ids = [tool.id for tool in tools]
        documents = [Counter(split_words(f"{split_name(tool.name)} {tool.description}")) for tool in tools]
        self._lengths = np.array([document.total() for document in documents], np.float64)
        self._postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for position, document in enumerate(documents):
            for word, count in document.items():
                self._postings[word].append((position, count))

    def scores(self, text: str) -> npt.NDArray[np.float64]:
        total = np.zeros(len(self._ids))
        damping = _K1 * (1 - _B + _B * self._lengths / max(self._lengths.mean(), 1.0))
        for word in split_words(text):
            postings = self._postings.get(word, [])
            idf = math.log(1 + (len(self._ids) - len(postings) + 0.5) / (len(postings) + 0.5))
            for position, count in postings:
                total[position] += idf * count * (_K1 + 1) / (count + damping[position])
        return total

    def rank(self, text: str, depth: int = DEPTH) -> list[str]:
        scores = self.scores(text)
        return [self._ids[position] for position in top_positions(scores, depth) if scores[position] > 0]


class Dense:
    """Cosines of the vectors of Toolscout's index, and nothing else."""

    def __init__(self, vectors: Mapping[str, Vector]) -> None:
        self._ids = list(vectors)
        self._vectors: Vectors = np.stack(list(vectors.values())).astype(np.float32)

    def rank(self, query: Vector, depth: int = DEPTH) -> list[str]:
        cosines = (self._vectors @ query).astype(np.float64)
        return [self._ids[position] for position in top_positions(cosines, depth)]


def reciprocal_rank_fusion(rankings: Sequence[Sequence[str]], depth: int = DEPTH) -> list[str]:
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, tool in enumerate(ranking, start=1):
            scores[tool] += 1 / (_RRF_K + rank)
    return sorted(scores, key=lambda tool: -scores[tool])[:depth]


def fuse(bm25: PlainBm25, dense: Dense, text: str, query: Vector) -> list[str]:
    return reciprocal_rank_fusion([dense.rank(query, _FUSED_DEPTH), bm25.rank(text, _FUSED_DEPTH)])


def top_positions(scores: npt.NDArray[np.float64], depth: int) -> list[int]:
    """Return the positions of the highest scores. Equal scores keep the order of the tools."""
    return [int(position) for position in np.argsort(-scores, kind="stable")[:depth]]
