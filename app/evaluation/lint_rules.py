"""Find tools with similar descriptions, and descriptions that say too little to be found. Pure functions."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from app.embeddings.base import Vector
from app.search.tokenizer import tokenize

SIMILAR_COSINE = 0.95
"""Distinct tools of one server often reach 0.9; above 0.95 two tools mostly do the same."""
SIMILAR_WORDS = 0.8
"""The share of the words of two tools that both have (Jaccard index)."""

_MIN_WORDS = 4
_MAX_SENTENCE = 300
_MAX_PAIRS_PER_TOOL = 5
_BLOCK_ROWS = 512

_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|$)", re.MULTILINE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

SimilarityKind = Literal["meaning", "words"]
Problem = Literal[
    "no_description",
    "short_description",
    "parameters_not_described",
    "not_found_by_description",
    "not_found_by_name",
]


@dataclass(frozen=True)
class DescribedTool:
    """A tool with its description. It has no vector while the embedder is down."""

    tool_key: str
    server_name: str
    name: str
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    vector: Vector | None

    @property
    def qualified_name(self) -> str:
        return f"{self.server_name}.{self.name}"

    @property
    def spoken_name(self) -> str:
        return " ".join(_CAMEL.sub(" ", self.name).replace("_", " ").replace("-", " ").split()).lower()

    @property
    def first_sentence(self) -> str:
        match = _SENTENCE.search(self.description.strip())
        return match[0].strip()[:_MAX_SENTENCE] if match else ""

    @property
    def words(self) -> frozenset[str]:
        """The words of the tool without its server's name, which the same tool of another server does not share."""
        return frozenset(tokenize(f"{self.name} {self.title or ''} {self.description}"))


@dataclass(frozen=True)
class SimilarPair:
    first: DescribedTool
    second: DescribedTool
    by: Sequence[SimilarityKind]
    cosine: float | None
    shared_words: float


def find_problems(tool: DescribedTool) -> list[Problem]:
    """Return the problems that are visible without a search."""
    return [*_check_description(tool), *_check_parameters(tool)]


def find_similar_pairs(tools: Sequence[DescribedTool], limit: int) -> list[SimilarPair]:
    """Return at most `limit` pairs, the most similar first."""
    words = [tool.words for tool in tools]
    positions = {*_pairs_by_meaning(tools), *_pairs_by_words(words)}
    pairs = [_make_pair(tools, words, first, second) for first, second in sorted(positions)]
    return sorted(pairs, key=lambda pair: (-len(pair.by), -(pair.cosine or 0.0), -pair.shared_words))[:limit]


def _check_description(tool: DescribedTool) -> Iterator[Problem]:
    if not tool.description.strip():
        yield "no_description"
    elif len(tool.description.split()) < _MIN_WORDS or _repeats_name(tool):
        yield "short_description"


def _repeats_name(tool: DescribedTool) -> bool:
    """Whether the description says no more than the name."""
    return set(tokenize(tool.description)) <= set(tokenize(f"{tool.name} {tool.title or ''}"))


def _check_parameters(tool: DescribedTool) -> Iterator[Problem]:
    properties = tool.input_schema.get("properties")
    parameters = list(properties.values()) if isinstance(properties, dict) else []
    if parameters and not any(isinstance(each, dict) and each.get("description") for each in parameters):
        yield "parameters_not_described"


def _make_pair(tools: Sequence[DescribedTool], words: Sequence[frozenset[str]], first: int, second: int) -> SimilarPair:
    one, other = tools[first].vector, tools[second].vector
    cosine = None if one is None or other is None else float(one @ other)
    shared = _shared_words(words[first], words[second])
    by: list[SimilarityKind] = ["meaning"] if cosine is not None and cosine >= SIMILAR_COSINE else []
    return SimilarPair(tools[first], tools[second], [*by, "words"] if shared >= SIMILAR_WORDS else by, cosine, shared)


def _pairs_by_meaning(tools: Sequence[DescribedTool]) -> Iterator[tuple[int, int]]:
    """Compute the cosines in blocks: those of twenty thousand tools would take gigabytes at once."""
    known = [position for position, tool in enumerate(tools) if tool.vector is not None]
    if not known:
        return
    vectors = np.stack([tool.vector for tool in tools if tool.vector is not None]).astype(np.float32)
    for start in range(0, len(known), _BLOCK_ROWS):
        for row, cosines in enumerate(vectors[start : start + _BLOCK_ROWS] @ vectors.T, start=start):
            near = [int(column) for column in np.flatnonzero(cosines >= SIMILAR_COSINE) if column > row]
            for column in sorted(near, key=lambda column: -cosines[column])[:_MAX_PAIRS_PER_TOOL]:
                yield known[row], known[column]


def _pairs_by_words(words: Sequence[frozenset[str]]) -> Iterator[tuple[int, int]]:
    """Look up pairs by rare words only (prefix filtering): two sets that share most of their words share one of the
    rarest few words of each."""
    frequencies = Counter(word for own in words for word in own)
    tools_by_word: defaultdict[str, list[int]] = defaultdict(list)
    for position, own in enumerate(words):
        rarest = sorted(own, key=lambda word: (frequencies[word], word))
        rarest = rarest[: len(own) - math.ceil(SIMILAR_WORDS * len(own)) + 1]
        candidates = sorted({other for word in rarest for other in tools_by_word[word]})
        near = (other for other in candidates if _shared_words(own, words[other]) >= SIMILAR_WORDS)
        yield from [(other, position) for other in near][:_MAX_PAIRS_PER_TOOL]
        for word in rarest:
            tools_by_word[word].append(position)


def _shared_words(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
