"""BM25, computed partly here and partly in Postgres.

A tool's terms are hashed into one `sparsevec`: the index is the term's id, the value its saturated frequency. A query
is the vector of the inverse document frequencies of its terms, counted over exactly the tools that the caller may see.
The inner product of the two is BM25. There is one row for each tool and no posting list, nothing has to be warmed up
after a restart, and the same scan reads the embeddings. Document lengths are compared with a fixed pivot instead of the
average length, so that a changed tool leaves the other tools' rows as they are.
"""

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgvector import SparseVector

from app.db.tables import TERM_SPACE
from app.search.tokenizer import tokenize, tokenize_with_words

K1 = 1.2
B = 0.75
PIVOT_LENGTH = 50.0

MAX_TERM_WEIGHT = K1 + 1
"""The limit of a term's saturated frequency, however often the term is repeated."""

MAX_QUERY_TERMS = 64
MAX_DOCUMENT_TERMS = 500
# A row must fit a page of 8 KiB: 2 bytes for each dimension, 8 bytes for each term, the rest for names, ids and tags.
_MAX_VECTOR_BYTES = 7_100
MAX_DIMENSION = 3_200


@dataclass(frozen=True)
class Field:
    text: str
    weight: float


def query_term_ids(text: str) -> list[int]:
    """Return the distinct term ids of a query; for a long query those of its beginning and its end."""
    term_ids = term_ids_of(tokenize(text))
    if len(term_ids) <= MAX_QUERY_TERMS:
        return term_ids
    half = MAX_QUERY_TERMS // 2
    return term_ids[:half] + term_ids[-half:]


def term_ids_of(terms: Iterable[str]) -> list[int]:
    """Return the distinct ids of terms."""
    return list(dict.fromkeys(map(term_id_of, terms)))


def find_matching_words(text: str, document: SparseVector) -> list[str]:
    """Return the query's distinct words whose terms the document contains, in the query's order."""
    document_ids = set(document.indices())
    return list(dict.fromkeys(word for word, term in tokenize_with_words(text) if term_id_of(term) in document_ids))


def max_document_terms(dimension: int) -> int:
    """Return how many terms fit into a row beside an embedding of this dimension."""
    return min(MAX_DOCUMENT_TERMS, (_MAX_VECTOR_BYTES - 2 * dimension) // 8)


def inverse_document_frequency(matching_tools: int, tools: int) -> float:
    return math.log(1 + (tools - matching_tools + 0.5) / (matching_tools + 0.5))


def build_document_vector(fields: Iterable[Field], max_terms: int = MAX_DOCUMENT_TERMS) -> SparseVector:
    """Return the saturated frequencies of a document's heaviest terms."""
    frequencies: defaultdict[str, float] = defaultdict(float)
    for field in fields:
        for term in tokenize(field.text):
            frequencies[term] += field.weight
    return SparseVector(_saturate(frequencies, max_terms), TERM_SPACE)


def _saturate(frequencies: Mapping[str, float], max_terms: int) -> dict[int, float]:
    length = sum(frequencies.values())
    damping = K1 * (1 - B + B * length / PIVOT_LENGTH)
    heaviest = sorted(frequencies.items(), key=lambda entry: (-entry[1], entry[0]))[:max_terms]
    return {term_id_of(term): frequency * (K1 + 1) / (frequency + damping) for term, frequency in heaviest}


def term_id_of(term: str) -> int:
    return zlib.crc32(term.encode()) % TERM_SPACE
