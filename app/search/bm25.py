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
from functools import lru_cache
from itertools import pairwise

from pgvector import SparseVector
from snowballstemmer import stemmer

from app.db.tables import TERM_SPACE

K1 = 1.2
B = 0.75
PIVOT_LENGTH = 50.0

MOST_PER_TERM = K1 + 1
"""What a term's saturated frequency comes near to, however often the term is repeated."""

MAX_QUERY_TERMS = 64
MAX_DOCUMENT_TERMS = 500
# A narrow row must fit a page of 8 KiB: 2 bytes a dimension, 8 bytes a term, and room for names, ids and tags.
_ROOM_IN_A_ROW = 7_100

# After normalisation, which can make one character many.
_MAX_CHARACTERS = 20_000

# No alternative and no nested repeat that could match in two ways: a text of any length is read once.
_COMPOUND = re.compile(r"\w+(?:[-._:/]\w+)*")
# Signs of vowels belong to the word in the scripts of India, in Thai, Hebrew and Arabic, but not to Python's \w.
_WORD = re.compile(r"(?:[^\W_]|[\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff\u0e31-\u0e4e])+")
_QUOTED = re.compile(r"[`\"']([^`\"'\s]{1,128})[`\"']")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NUMBERED = re.compile(r"([^\W\d_]{2,})(\d+)")
_ACCENTS = re.compile(r"(?<=[A-Za-z])[\u0300-\u036f]+")
# Written without spaces between words: Chinese, Japanese, Thai.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e01-\u0e5b]+")

STOP_WORDS = frozenset(
    """
    a about all also am an and any are as at be because been being both but by can could d did do does doing each few
    for from had has have he her here him his how i if in into is it its just like ll m may me might more most much
    must my need no not now of off on only or other our out over own please re s same she should so some such t than
    that the their them then there these they this to too under until up us ve very want was we were what when where
    which while who whom why will wish with would yet you your
    """.split()
)

_STEMMER = stemmer("english")
_REMEMBERED_STEMS = 50_000


@dataclass(frozen=True)
class Field:
    text: str
    weight: float


def terms(text: str) -> list[str]:
    """Words by their stems, and identifiers both whole and in their parts: `searchIssues` is also `search` and `issue`.

    A script without spaces has no words that we could see: there, each two neighbouring characters are a term.
    """
    return [term for _, term in _spelled(text)]


def words(text: str) -> list[str]:
    """As they are spelled, in lower case."""
    return [word for word, _ in _spelled(text)]


def _spelled(text: str) -> list[tuple[str, str]]:
    """Each term behind the word that it stands for."""
    normal = _normal(text)
    parts = [part.lower() for word in _WORD.findall(normal) for part in _parts(word)]
    known = [(word, term) for word in parts if word not in STOP_WORDS for term in _terms_of(word)]
    return [(identifier, identifier) for identifier in _identifiers(normal)] + known


def _terms_of(word: str) -> Iterable[str]:
    if word.isascii() or (run := _UNSPACED.search(word)) is None:
        return (stem(word),)
    return (word,) if len(run[0]) < 2 else ("".join(pair) for pair in pairwise(word))


@lru_cache(_REMEMBERED_STEMS)
def stem(word: str) -> str:
    """English, which tools are described in; words of other languages lose an ending at most, on both sides alike."""
    stem: str = _STEMMER.stemWord(word)
    return stem


def _normal(text: str) -> str:
    """Without accents on Latin letters, since people leave them out."""
    if text.isascii():
        return text[:_MAX_CHARACTERS]
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", text[:_MAX_CHARACTERS])[:_MAX_CHARACTERS])
    return unicodedata.normalize("NFKC", bare)


def _identifiers(normal: str) -> list[str]:
    return [each.lower() for each in _COMPOUND.findall(normal) if not each.isalnum() and each.strip("_")]


def _parts(word: str) -> list[str]:
    if word.isalpha() and word.islower():
        return [word]
    numbered = _NUMBERED.fullmatch(word)
    split = _CAMEL.split(word) if numbered is None else list(numbered.groups())
    return split if len(split) == 1 else [*split, word]


def query_term_ids(text: str) -> list[int]:
    """Where the query's terms stand, each once; of endlessly many the first and the last, as of a long message."""
    places = list(dict.fromkeys(_place(term) for term in terms(text)))
    if len(places) <= MAX_QUERY_TERMS:
        return places
    half = MAX_QUERY_TERMS // 2
    return places[:half] + places[-half:]


def matching_words(text: str, document: SparseVector) -> list[str]:
    """Those of the query's words whose terms the document holds, each once, in the query's order."""
    held = set(document.indices())
    return list(dict.fromkeys(word for word, term in _spelled(text) if _place(term) in held))


def possible_names(text: str) -> list[str]:
    """What in a message may be the name of a tool: identifiers, words in quotes, or a single word. In lower case."""
    normal = _normal(text)
    quoted = [each.lower() for each in _QUOTED.findall(normal)]
    alone = [normal.strip().lower()] if len(normal.split()) == 1 else []
    return list(dict.fromkeys((*_identifiers(normal), *quoted, *_camel_words(normal), *alone)))


def _camel_words(normal: str) -> list[str]:
    marked = (word for word in _WORD.findall(normal) if not (word.isalpha() and word.islower()))
    return [word.lower() for word in marked if not word.isalpha() or _CAMEL.search(word)]


def most_terms(dimension: int) -> int:
    """How many terms fit a row beside a vector."""
    return min(MAX_DOCUMENT_TERMS, (_ROOM_IN_A_ROW - 2 * dimension) // 8)


def inverse_document_frequency(tools_with_it: int, tools: int) -> float:
    return math.log(1 + (tools - tools_with_it + 0.5) / (tools_with_it + 0.5))


def document_vector(fields: Iterable[Field], most: int = MAX_DOCUMENT_TERMS) -> SparseVector:
    frequencies: defaultdict[str, float] = defaultdict(float)
    for field in fields:
        for term in terms(field.text):
            frequencies[term] += field.weight
    return SparseVector(_saturated(frequencies, most), TERM_SPACE)


def _saturated(frequencies: Mapping[str, float], most: int) -> dict[int, float]:
    length = sum(frequencies.values())
    damping = K1 * (1 - B + B * length / PIVOT_LENGTH)
    heaviest = sorted(frequencies.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    return {_place(term): tf * (K1 + 1) / (tf + damping) for term, tf in heaviest}


def _place(term: str) -> int:
    return zlib.crc32(term.encode()) % TERM_SPACE
