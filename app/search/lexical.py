"""BM25, split between here and Postgres.

A tool's terms are hashed into one `sparsevec`: place is the term, value its saturated frequency. A query asks with the
inverse document frequencies of its own terms, counted over the very tools that the caller may see, and the inner
product of the two is BM25. One row a tool, no posting lists, nothing to warm up after a restart, and the same scan as
the vectors. Lengths are compared with a fixed pivot instead of the average, so that changing one tool leaves the
others' rows alone.
"""

import math
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgvector import SparseVector

from app.models import TERM_SPACE

K1 = 1.2
B = 0.75
PIVOT_LENGTH = 40.0

MOST_PER_TERM = K1 + 1
"""What a term's saturated frequency comes near to, however often the term is repeated."""

MAX_QUERY_TERMS = 64
# a row must fit a page: 8 bytes a term
_MAX_DOCUMENT_TERMS = 500

_IDENTIFIER = re.compile(r"\w+(?:[-._:/]\w+)+|\w*_\w+")
_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

STOP_WORDS = frozenset(
    """
    a an and are as at be but by can could do does for from had has have how i if in into is it its me
    my no not of on or our out please so some than that the their them then there these they this to up
    us was we were what when where which who will with would you your
    """.split()
)


@dataclass(frozen=True)
class Field:
    text: str
    weight: float


def terms(text: str) -> list[str]:
    """Words in lower case, identifiers both whole and in their parts: `searchIssues` is also `search` and `issues`."""
    normal = unicodedata.normalize("NFKC", text)
    whole = [match.lower() for match in _IDENTIFIER.findall(normal)]
    parts = [part.lower() for word in _WORD.findall(normal) for part in _parts(word)]
    return [term for term in (*whole, *parts) if term not in STOP_WORDS]


def _parts(word: str) -> list[str]:
    split = _CAMEL.split(word)
    return split if len(split) == 1 else [*split, word]


def query_places(text: str) -> list[int]:
    """Where the query's terms stand, each once, in order of appearance, and not endlessly many."""
    return list(dict.fromkeys(_place(term) for term in terms(text)))[:MAX_QUERY_TERMS]


def inverse_document_frequency(tools_with_it: int, tools: int) -> float:
    return math.log(1 + (tools - tools_with_it + 0.5) / (tools_with_it + 0.5))


def document_vector(fields: Iterable[Field]) -> SparseVector:
    frequencies: defaultdict[str, float] = defaultdict(float)
    for field in fields:
        for term in terms(field.text):
            frequencies[term] += field.weight
    return SparseVector(_saturated(frequencies), TERM_SPACE)


def _saturated(frequencies: Mapping[str, float]) -> dict[int, float]:
    length = sum(frequencies.values())
    damping = K1 * (1 - B + B * length / PIVOT_LENGTH)
    heaviest = sorted(frequencies.items(), key=lambda entry: (-entry[1], entry[0]))[:_MAX_DOCUMENT_TERMS]
    return {_place(term): tf * (K1 + 1) / (tf + damping) for term, tf in heaviest}


def _place(term: str) -> int:
    return zlib.crc32(term.encode()) % TERM_SPACE
