"""Split texts into terms: stems of words, and identifiers both whole and in parts. Pure."""

import re
import threading
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from snowballstemmer import stemmer

# Applied after normalization, which can turn one character into many.
_MAX_CHARS = 20_000

# No pattern has alternatives or nested repeats that match in two ways, so that matching takes linear time.
_COMPOUND = re.compile(r"\w+(?:[-._:/]\w+)*")
# Vowel signs belong to the word in Indic scripts, Thai, Hebrew and Arabic, but `\w` does not match them.
_WORD = re.compile(r"(?:[^\W_]|[\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff\u0e31-\u0e4e])+")
_QUOTED = re.compile(r"[`\"']([^`\"'\s]{1,128})[`\"']")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LETTERS_AND_NUMBER = re.compile(r"([^\W\d_]{2,})(\d+)")
_LATIN_ACCENTS = re.compile(r"(?<=[A-Za-z])[\u0300-\u036f]+")
# Chinese, Japanese and Thai are written without spaces between words.
_UNSPACED_SCRIPT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e01-\u0e5b]+")

STOP_WORDS = frozenset(
    """
    a about all also am an and any are as at be because been being both but by can could d did do does doing each few
    for from had has have he her here him his how i if in into is it its just like ll m may me might more most much
    must my need no not now of off on only or other our out over own please re s same she should so some such t than
    that the their them then there these they this to too under until up us ve very want was we were what when where
    which while who whom why will wish with would yet you your
    """.split()
)


class _ThreadState(threading.local):
    """A stemmer keeps the word that it works on, and index runs and requests stem words at the same time."""

    def __init__(self) -> None:
        self.stemmer = stemmer("english")


_STATE = _ThreadState()
_STEM_CACHE_SIZE = 50_000
_MAX_CACHED_WORD = 40
"""Longer words are not cached, so that the cache takes 20 MB at most, whatever users send."""


def tokenize(text: str) -> list[str]:
    """Return the terms of a text: stems of its words, and identifiers both whole and in parts.

    `searchIssues` yields `search` and `issu` as well. In scripts without spaces, each pair of neighbouring characters
    is a term.
    """
    return [term for _, term in tokenize_with_words(text)]


def split_words(text: str) -> list[str]:
    """Return the words that `tokenize` finds terms for, unstemmed and in lower case."""
    return [word for word, _ in tokenize_with_words(text)]


def tokenize_with_words(text: str) -> list[tuple[str, str]]:
    """Return each term of a text after the word that it stands for."""
    normalized = _normalize(text)
    words = [part.lower() for word in _WORD.findall(normalized) for part in _split_identifier(word)]
    stemmed = [(word, term) for word in words if word not in STOP_WORDS for term in _make_terms(word)]
    return [(identifier, identifier) for identifier in _find_identifiers(normalized)] + stemmed


def extract_possible_names(text: str) -> list[str]:
    """Return what may be a tool's name in a message, in lower case: identifiers, quoted words, or a single word."""
    normalized = _normalize(text)
    quoted = [word.lower() for word in _QUOTED.findall(normalized)]
    only_word = [normalized.strip().lower()] if len(normalized.split()) == 1 else []
    names = (*_find_identifiers(normalized), *quoted, *_find_camel_case(normalized), *only_word)
    return list(dict.fromkeys(names))


def stem(word: str) -> str:
    """Return the English stem of a word.

    Tools are described in English. Words of other languages lose an ending at most, in queries and documents alike.
    """
    return _stem(word) if len(word) <= _MAX_CACHED_WORD else _stem.__wrapped__(word)


@lru_cache(_STEM_CACHE_SIZE)
def _stem(word: str) -> str:
    stem: str = _STATE.stemmer.stemWord(word)
    return stem


def _make_terms(word: str) -> Iterable[str]:
    if word.isascii() or (run := _UNSPACED_SCRIPT.search(word)) is None:
        return (stem(word),)
    return (word,) if len(run[0]) < 2 else ("".join(pair) for pair in pairwise(word))


def _normalize(text: str) -> str:
    """Cut the text and remove accents from Latin letters, since people leave them out."""
    if text.isascii():
        return text[:_MAX_CHARS]
    unaccented = _LATIN_ACCENTS.sub("", unicodedata.normalize("NFKD", text[:_MAX_CHARS])[:_MAX_CHARS])
    return unicodedata.normalize("NFKC", unaccented)


def _find_identifiers(normalized: str) -> list[str]:
    compounds = _COMPOUND.findall(normalized)
    return [compound.lower() for compound in compounds if not compound.isalnum() and compound.strip("_")]


def _find_camel_case(normalized: str) -> list[str]:
    mixed = (word for word in _WORD.findall(normalized) if not (word.isalpha() and word.islower()))
    return [word.lower() for word in mixed if not word.isalpha() or _CAMEL_CASE_BOUNDARY.search(word)]


def _split_identifier(word: str) -> list[str]:
    """Return the parts of a camel-case or numbered word and the word itself."""
    if word.isalpha() and word.islower():
        return [word]
    numbered = _LETTERS_AND_NUMBER.fullmatch(word)
    parts = _CAMEL_CASE_BOUNDARY.split(word) if numbered is None else list(numbered.groups())
    return parts if len(parts) == 1 else [*parts, word]
