"""Add plain English words to what is searched: for colloquial English, for abbreviations and for other languages.

Tools are described in plain technical English. People write "bin it", "PR" or "wie wird das Wetter", which shares
neither words nor, for an English model, enough meaning with "delete", "pull request" or "weather forecast". The word
lists in `app/search/words` connect them: `phrase, phrase = plain words`, one file a language. An operator can add a
file of their own (`TOOLSCOUT_GLOSSARY_FILE`).

For an English message the words are matched by BM25 alone: the model understands most of the message by itself. For
another language they are also part of the text that is embedded, since the model understands little else of it.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Self

from snowballstemmer import stemmer

from app.errors import ConfigurationError
from app.search.language import ENGLISH, detect_language
from app.search.query import Query

_WORDS = files("app.search") / "words"
_STEMMERS = {"de": "german", "fr": "french", "es": "spanish", "pt": "portuguese", "it": "italian"}
_UNSPACED_LANGUAGES = ("zh", "ja")
_SHIPPED_LANGUAGES = {ENGLISH, *_STEMMERS, *_UNSPACED_LANGUAGES}
_MIN_PLURAL_LENGTH = 4
_MAX_ENTRIES = 12
"""Entries used for one text. A long text has many words that say nothing about the request."""

_WORD = re.compile(r"[^\W_]+")
_APOSTROPHES = str.maketrans("", "", "'\u2019")
_ACCENTS = re.compile(r"[\u0300-\u036f]")


@dataclass(frozen=True)
class _WordList:
    """Phrases as tuples of units: the stems of words, or single characters where words are not separated by spaces."""

    entries: dict[tuple[str, ...], str]
    split: Callable[[str], list[str]]
    max_units: int

    @classmethod
    def build(cls, lines: Iterable[tuple[str, str]], split: Callable[[str], list[str]]) -> Self:
        entries: dict[tuple[str, ...], str] = {}
        for phrase, words in lines:
            if key := tuple(split(phrase)):
                entries[key] = _join_distinct([*entries.get(key, "").split(), *words.split()])
        return cls(entries, split, max(map(len, entries), default=0))

    def find(self, text: str) -> Iterator[str]:
        """Yield the plain words of each phrase in the text, the longest phrase at each position."""
        units = self.split(text)
        position = 0
        while position < len(units):
            longest = min(self.max_units, len(units) - position)
            lengths = (
                length for length in range(longest, 0, -1) if tuple(units[position : position + length]) in self.entries
            )
            length = next(lengths, 0)
            if length:
                yield self.entries[tuple(units[position : position + length])]
            position += length or 1


class Glossary:
    def __init__(self, own_file: Path | None = None) -> None:
        """Read the operator's own file, which counts in every language.

        The lists that ship with Toolscout are read when a message in their language comes.

        Raises `ConfigurationError` if the own file cannot be read or a line of it is invalid.
        """
        self.own_entries = [] if own_file is None else _read_own(own_file)
        self._own = _WordList.build(self.own_entries, _make_split(_remove_plural))
        self._own_unspaced = _WordList.build(self.own_entries, _split_characters)

    def expand(self, query: Query) -> Query:
        """Return the query with its language and with the plain words for what it says."""
        language = detect_language(query.user_text)
        words = self._find_words(query.search_text, language)
        if language == ENGLISH:
            return replace(query, language=language, expansion=words)
        return replace(
            query,
            language=language,
            search_text=f"{query.search_text} {words}".strip(),
            subqueries=(),
            context=f"{query.context} {self._find_words(query.context, language)}".strip(),
        )

    def _find_words(self, text: str, language: str) -> str:
        found: list[str] = []
        if language in _SHIPPED_LANGUAGES:
            found += _load_shipped(language).find(text)
        found += (self._own_unspaced if language in _UNSPACED_LANGUAGES else self._own).find(text)
        return _join_distinct(word for words in dict.fromkeys(found[:_MAX_ENTRIES]) for word in words.split())


def _join_distinct(words: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(words))


def _remove_plural(word: str) -> str:
    """Return an English word without its plural ending.

    A full stemmer would confuse too many of the short words: "API" and "APY", "at" and "ATS", "mind" and "mindful".
    """
    if len(word) < _MIN_PLURAL_LENGTH or word.endswith(("ss", "us", "is")):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word.removesuffix("s")


def _make_split(stem_word: Callable[[str], str]) -> Callable[[str], list[str]]:
    """Return a function that splits a text into the stems of its words."""
    return lambda text: [stem_word(word) for word in _WORD.findall(text.lower().translate(_APOSTROPHES))]


def _split_characters(text: str) -> list[str]:
    return list(unicodedata.normalize("NFKC", text).lower())


def _make_stem(language: str) -> Callable[[str], str]:
    """Return a function that stems a word and removes its accents, which people often leave out."""
    stem_word: Callable[[str], str] = stemmer(language).stemWord
    return lambda word: _ACCENTS.sub("", unicodedata.normalize("NFKD", stem_word(word)))


@cache
def _load_shipped(language: str) -> _WordList:
    """Return the list of a language. The stems of all of them take a quarter of a second, which few commands need."""
    entries = _parse((_WORDS / f"{language}.txt").read_text(encoding="utf-8"))
    if language in _UNSPACED_LANGUAGES:
        return _WordList.build(entries, _split_characters)
    stem_word = _make_stem(_STEMMERS[language]) if language in _STEMMERS else _remove_plural
    return _WordList.build(entries, _make_split(stem_word))


def _read_own(path: Path) -> list[tuple[str, str]]:
    try:
        return _parse(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the glossary {path}: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"glossary {path}: {error}") from error


def _parse(content: str) -> list[tuple[str, str]]:
    """Return each phrase with its plain words. Empty lines and lines that begin with `#` are skipped."""
    entries = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        phrases, separator, words = line.partition(" = ")
        if not separator or not phrases.strip() or not words.strip():
            raise ValueError(f"line {number} must be `phrase, phrase = plain words`")
        entries += [(phrase.strip(), words.strip()) for phrase in phrases.split(",") if phrase.strip()]
    return entries
