"""Recognizes known tools by their name and the beginning of their description. Pure.

The name alone says little: many servers have a `search`. So the descriptions must agree as well: the one begins with
the other, or they have at least half of their words in common, which small edits between versions do not change. A tool
without a description is never recognized.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from app.search.tokenizer import tokenize

MAX_EXAMPLES = 8
BEGINNING_CHARS = 200

_MIN_COMMON_WORDS = 0.5
_MIN_BEGINNING_WORDS = 4
"""A shorter description begins too many others."""


@dataclass(frozen=True)
class KnownTool:
    name: str
    description: str
    """Its beginning, see `take_beginning`."""
    examples: tuple[str, ...]


@dataclass(frozen=True)
class _Match:
    examples: tuple[str, ...]
    terms: frozenset[str]
    rank: tuple[bool, float]
    """Whether the descriptions are equal, and the share of common words."""


class KnownTools:
    def __init__(self, tools: Iterable[KnownTool] = ()) -> None:
        self._by_name: defaultdict[str, list[KnownTool]] = defaultdict(list)
        for tool in tools:
            self._by_name[_normalize_name(tool.name)].append(tool)

    def find_examples(self, name: str, *descriptions: str) -> tuple[str, ...]:
        """Return the examples of the known tool that this is; none if it is unknown or if several match equally well.

        With several descriptions, the first by which it is recognized counts.
        """
        found = (self._find_examples(name, description) for description in dict.fromkeys(descriptions))
        return next(filter(None, found), ())

    def _find_examples(self, name: str, description: str) -> tuple[str, ...]:
        """Equally good matches whose descriptions have the same words are copies of one tool: their examples are
        joined."""
        candidates = self._by_name.get(_normalize_name(name), ())
        beginning = take_beginning(description)
        matches = [match for known in candidates if (match := _match(known, beginning)) is not None]
        best_rank = max((match.rank for match in matches), default=None)
        best = [match for match in matches if match.rank == best_rank]
        return _join_examples(best) if len({match.terms for match in best}) == 1 else ()


def take_beginning(description: str) -> str:
    """Return the part of a description that is compared, with single spaces and without a final full stop."""
    return " ".join(description.split())[:BEGINNING_CHARS].rstrip(". ")


def _normalize_name(name: str) -> str:
    return name.lower().replace("-", "_")


def _match(known: KnownTool, beginning: str) -> _Match | None:
    shorter, longer = sorted((known.description.lower(), beginning.lower()), key=len)
    terms, other_terms = frozenset(tokenize(known.description)), frozenset(tokenize(beginning))
    if not terms or not other_terms:
        return None
    common = len(terms & other_terms) / len(terms | other_terms)
    begins = longer.startswith(shorter) and len(shorter.split()) >= _MIN_BEGINNING_WORDS
    return _Match(known.examples, terms, (shorter == longer, common)) if begins or common >= _MIN_COMMON_WORDS else None


def _join_examples(matches: Sequence[_Match]) -> tuple[str, ...]:
    """Take the examples of all matches in turn, up to the maximum."""
    in_turn = chain.from_iterable(zip_longest(*(match.examples for match in matches)))
    return tuple(dict.fromkeys(example for example in in_turn if example is not None))[:MAX_EXAMPLES]
