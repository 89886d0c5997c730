"""How tools are described: which of them read alike, and which say too little to be found. Pure."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from app.embeddings.base import Vector
from app.search.tokenizer import tokenize

ALIKE_COSINE = 0.95
"""Siblings of one server often reach .9, and are told apart; beyond .95 they are mostly the same thing twice."""
ALIKE_WORDS = 0.8
"""Of all the words of two tools, the share that both have."""

_FEWEST_WORDS = 4
_LONGEST_SENTENCE = 300
_PAIRS_OF_A_TOOL = 5
_BLOCK = 512

_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|$)", re.MULTILINE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

Likeness = Literal["meaning", "words"]
Problem = Literal[
    "no_description",
    "short_description",
    "parameters_not_described",
    "not_found_by_description",
    "not_found_by_name",
]


@dataclass(frozen=True)
class Described:
    """A tool, as far as its description is concerned. Without a vector while the embedder is down."""

    tool_key: str
    server_name: str
    name: str
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    vector: Vector | None

    @property
    def called(self) -> str:
        return f"{self.server_name}.{self.name}"

    @property
    def spoken_name(self) -> str:
        return " ".join(_CAMEL.sub(" ", self.name).replace("_", " ").replace("-", " ").split()).lower()

    @property
    def first_sentence(self) -> str:
        found = _SENTENCE.search(self.description.strip())
        return found[0].strip()[:_LONGEST_SENTENCE] if found else ""

    @property
    def words(self) -> frozenset[str]:
        """Its own: without its server's name, which another server's same tool would not share."""
        return frozenset(tokenize(f"{self.name} {self.title or ''} {self.description}"))


@dataclass(frozen=True)
class Alike:
    first: Described
    second: Described
    by: Sequence[Likeness]
    cosine: float | None
    shared_words: float


def problems_of(tool: Described) -> list[Problem]:
    """That can be seen by looking at it."""
    return [*_of_the_description(tool), *_of_the_parameters(tool)]


def alike(tools: Sequence[Described], most: int) -> list[Alike]:
    """The most alike first."""
    words = [tool.words for tool in tools]
    places = {*_alike_by_meaning(tools), *_alike_by_words(words)}
    pairs = [_pair(tools, words, first, second) for first, second in sorted(places)]
    return sorted(pairs, key=lambda pair: (-len(pair.by), -(pair.cosine or 0.0), -pair.shared_words))[:most]


def _of_the_description(tool: Described) -> Iterator[Problem]:
    if not tool.description.strip():
        yield "no_description"
    elif len(tool.description.split()) < _FEWEST_WORDS or _says_its_name_alone(tool):
        yield "short_description"


def _says_its_name_alone(tool: Described) -> bool:
    return set(tokenize(tool.description)) <= set(tokenize(f"{tool.name} {tool.title or ''}"))


def _of_the_parameters(tool: Described) -> Iterator[Problem]:
    properties = tool.input_schema.get("properties")
    parameters = list(properties.values()) if isinstance(properties, dict) else []
    if parameters and not any(isinstance(each, dict) and each.get("description") for each in parameters):
        yield "parameters_not_described"


def _pair(tools: Sequence[Described], words: Sequence[frozenset[str]], first: int, second: int) -> Alike:
    one, other = tools[first].vector, tools[second].vector
    cosine = None if one is None or other is None else float(one @ other)
    shared = _shared(words[first], words[second])
    by: list[Likeness] = ["meaning"] if cosine is not None and cosine >= ALIKE_COSINE else []
    return Alike(tools[first], tools[second], [*by, "words"] if shared >= ALIKE_WORDS else by, cosine, shared)


def _alike_by_meaning(tools: Sequence[Described]) -> Iterator[tuple[int, int]]:
    """Block by block: all cosines of twenty thousand tools at once would take gigabytes."""
    known = [place for place, tool in enumerate(tools) if tool.vector is not None]
    if not known:
        return
    vectors = np.stack([tool.vector for tool in tools if tool.vector is not None]).astype(np.float32)
    for start in range(0, len(known), _BLOCK):
        for row, cosines in enumerate(vectors[start : start + _BLOCK] @ vectors.T, start=start):
            near = [int(place) for place in np.flatnonzero(cosines >= ALIKE_COSINE) if place > row]
            for place in sorted(near, key=lambda place: -cosines[place])[:_PAIRS_OF_A_TOOL]:
                yield known[row], known[place]


def _alike_by_words(words: Sequence[frozenset[str]]) -> Iterator[tuple[int, int]]:
    """Two sets that share most of their words share one of the rarest few of each, so only those are looked up."""
    tools_with = Counter(word for own in words for word in own)
    having: defaultdict[str, list[int]] = defaultdict(list)
    for place, own in enumerate(words):
        rarest = sorted(own, key=lambda word: (tools_with[word], word))
        rarest = rarest[: len(own) - math.ceil(ALIKE_WORDS * len(own)) + 1]
        before = sorted({other for word in rarest for other in having[word]})
        near = (other for other in before if _shared(own, words[other]) >= ALIKE_WORDS)
        yield from [(other, place) for other in near][:_PAIRS_OF_A_TOOL]
        for word in rarest:
            having[word].append(place)


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
