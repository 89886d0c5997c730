"""Name groups of tools by the words that are typical of them. Pure functions.

A word is typical if many tools of the group have it and few others do. A word in the name of a tool counts more than
one in its description. A word that only one tool of the group has names nothing, so that no
single tool can put words of its own into a list that models read.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from app.search.intents import is_action_word
from app.search.tokenizer import STOP_WORDS, stem

MAX_WORDS = 8
MAX_NAME = 60
_MAX_DESCRIPTION = 500
"""Characters: what a tool does stands at the beginning."""
_MAX_WORD = 24
_MIN_WORD = 3
_WORDS_IN_NAME = 2
_ENOUGH_WEIGHT = 0.2
"""A further word is part of the name if it is at least this share as typical as the first one."""
_ENOUGH_COVERAGE = 0.15
"""A word must be in at least this share of the tools."""
_PHRASE_SHARE = 0.6
"""A phrase stands for its words if at least this share of the tools with one of them has the phrase."""
_DESCRIPTION_WEIGHT = 0.5

_NUMBER = re.compile(r" \d+$")
# the parts of an identifier, without numbers
_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])")
_UNTELLING = STOP_WORDS | frozenset(
    """
    able access according across additional after allow allows also any api apis apply arg args array associated
    available based before bool boolean box call called close com complete comprehensive contain contains
    continue correct current currently custom data default defined detail detailed details dict different
    directly either element enabled endpoint ensure entire entry error etc every everything exact exactly
    example examples exception exceptions execute exist existing false field fields find first following format
    found full function general given global help helpful http https identifier ids include included includes
    including individual info information input instance int integer item items json key keys kind kwargs last
    latest level limit live main manage many match matching max maximum mcp method min multiple name named names
    needs new next null number object objects one open operation operations optional options otherwise output
    parameter parameters part particular per perform possible previous provide provided provides put raises real
    receive related requested require required requires resource resources response result results returned
    returning run second select selected send server several simple single source specific specified standard
    start starts state status stop str string support supported supports three tool tools top total true two
    type types unique unless uri url use used useful uses using utility valid value valueerror values various
    via whether within without work works www
    """.split()
)


@dataclass(frozen=True)
class ToolText:
    """What a tool says of itself."""

    name: str
    title: str | None
    description: str
    tags: Sequence[str] = ()

    @cached_property
    def terms(self) -> Mapping[str, float]:
        """The weight of each word, by its stem, and of each phrase of two words."""
        found: dict[str, float] = {}
        for term in _list_stems(self.description[:_MAX_DESCRIPTION]):
            found[term] = _DESCRIPTION_WEIGHT
        for text in (self.name, self.title or "", *self.tags):
            stems = list(_list_stems(text))
            for term in (*stems, *(f"{first} {second}" for first, second in pairwise(stems) if first != second)):
                found[term] = 1.0
        return found

    @cached_property
    def surfaces(self) -> Mapping[str, str]:
        """How the words are written, by their stems."""
        texts = (*self.tags, self.description[:_MAX_DESCRIPTION], self.title or "", self.name)
        return {stem(word): word for text in texts for word in _list_words(text)}


@dataclass(frozen=True)
class GroupName:
    name: str
    words: Sequence[str]


OTHER = GroupName("other", ())


def _list_words(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text):
        word = match[0].lower()
        if _MIN_WORD <= len(word) <= _MAX_WORD and word not in _UNTELLING and not is_action_word(word):
            yield word


def _list_stems(text: str) -> Iterator[str]:
    return map(stem, _list_words(text))


class Vocabulary:
    """How typical each word is of each group of a user's tools."""

    def __init__(self, groups: Mapping[str, Sequence[ToolText]]) -> None:
        """`groups` are the tools of each group, by its id."""
        self._sizes = {group: len(texts) for group, texts in groups.items()}
        self._tools = sum(self._sizes.values())
        self._weights = {group: _sum_weights(texts) for group, texts in groups.items()}
        self._counts = {
            group: Counter(term for text in texts for term in text.terms) for group, texts in groups.items()
        }
        self._totals = _sum_weights(text for texts in groups.values() for text in texts)
        self._surfaces = _count_surfaces(text for texts in groups.values() for text in texts)

    def get_size(self, group: str) -> int:
        """Return how many tools of the group have been read."""
        return self._sizes.get(group, 0)

    def has_term(self, group: str, term: str) -> bool:
        return term in self._counts.get(group, ())

    def find_group(self, text: ToolText) -> str | None:
        """Return the group whose typical words the text has; None if it has none of any group's."""
        scores = {group: sum(self._compute_weight(group, term) for term in text.terms) for group in self._sizes}
        best = max(scores, key=lambda group: (scores[group], group), default=None)
        return best if best is not None and scores[best] > 0 else None

    def rank_terms(self, group: str) -> list[tuple[str, float]]:
        """Return the typical terms of a group and their weights, the most typical first."""
        size = self.get_size(group)
        if size == 0:
            return []
        least = 1 if size == 1 else max(2, math.ceil(_ENOUGH_COVERAGE * size))
        shared = [term for term, count in self._counts[group].items() if count >= least]
        weighted = [(term, self._compute_weight(group, term)) for term in shared]
        return sorted(((term, weight) for term, weight in weighted if weight > 0), key=lambda each: (-each[1], each[0]))

    def _compute_weight(self, group: str, term: str) -> float:
        """The share of the group's tools that have the term, times how much more often they have it than others."""
        inside = self._weights[group].get(term, 0.0)
        if not inside:
            return 0.0
        size, others = self._sizes[group], self._tools - self._sizes[group]
        share, share_outside = inside / size, (self._totals[term] - inside + 0.5) / (others + 1)
        return share * max(0.0, math.log((share + 0.01) / (share_outside + 0.01))) if others else share

    def spell(self, term: str) -> str:
        """Return how tools most often write a term."""
        return " ".join(self._spell_word(part) for part in term.split())

    def _spell_word(self, word_stem: str) -> str:
        spellings = self._surfaces.get(word_stem)
        if not spellings:
            return word_stem
        return min(spellings, key=lambda word: (-spellings[word], len(word), word))


def _sum_weights(texts: Iterable[ToolText]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for text in texts:
        for term, weight in text.terms.items():
            sums[term] += weight
    return sums


def _count_surfaces(texts: Iterable[ToolText]) -> Mapping[str, Counter[str]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for word_stem, word in text.surfaces.items():
            counts[word_stem][word] += 1
    return counts


def name_group(vocabulary: Vocabulary, group: str, taken: Collection[str] = ()) -> GroupName:
    """Return a name that is not `taken`, and the words that are typical of the group."""
    ranked = _drop_parts(vocabulary.rank_terms(group))
    if not ranked:
        return GroupName(_make_unique(OTHER.name, taken), ())
    words = [vocabulary.spell(term) for term, _ in ranked]
    strong = sum(weight >= _ENOUGH_WEIGHT * ranked[0][1] for _, weight in ranked)
    first = min(_WORDS_IN_NAME, strong)
    names = [", ".join(words[:count]) for count in range(first, len(words) + 1)]
    free = [name for name in names if name not in taken and len(name) <= MAX_NAME]
    return GroupName(free[0] if free else _make_unique(names[0], taken), words[:MAX_WORDS])


def has_name(vocabulary: Vocabulary, group: str, name: str) -> bool:
    """Whether tools of the group still have the words of an automatic name."""
    words = [_NUMBER.sub("", part).split() for part in name.split(",")]
    return all(part and vocabulary.has_term(group, " ".join(map(stem, part))) for part in words)


def _drop_parts(ranked: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Leave out words that are part of a phrase which is about as typical, and phrases of words that are more so."""
    weights, chosen = dict(ranked), list[tuple[str, float]]()
    seen: set[str] = set()
    for term, weight in ranked:
        phrases = [each for each in weights if " " in each and term in each.split() and each != term]
        if any(weights[phrase] >= _PHRASE_SHARE * weight for phrase in phrases):
            continue
        if not seen & set(term.split()):
            chosen.append((term, weight))
            seen |= set(term.split())
        if len(chosen) > MAX_WORDS:
            break
    return chosen


def _make_unique(name: str, taken: Collection[str]) -> str:
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name} {number}", number + 1
    return unique
