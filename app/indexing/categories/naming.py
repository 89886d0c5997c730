"""Name groups of tools by the words that are typical of them. Pure functions.

A word is typical if many tools of the group have it and few others do. A word in the name of a tool counts more than
one in its description. A word that only one tool of the group has names nothing, so that no single tool can put words
of its own into a list that models read: a group that shares no words has the name of its server. Neither does a name
that reads as an instruction, whose words may come from several harmless tools.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

from app.catalog.categories import WORDS_IN_NAME, split_name
from app.indexing.categories.pacing import Checkpoint, never_pause
from app.indexing.prompt_injection import find_instructions
from app.search.bm25 import term_ids_of
from app.search.intents import is_action_word
from app.search.tokenizer import STOP_WORDS, stem

MAX_WORDS = 8
MAX_NAME = 60
_MAX_TEXT = 500
"""Characters: what a tool does stands at the beginning."""
_MAX_WORDS_READ = 30
"""Of each text of a tool."""
MAX_TOOLS_READ = 50
"""Of each group: enough to know its words. Reading all of a large catalogue would slow down other requests."""
_MAX_WORD = 24
_MIN_WORD = 3
_ENOUGH_WEIGHT = 0.2
"""A further word is part of the name if it is at least this share as typical as the first one."""
_ENOUGH_COVERAGE = 0.15
"""A word must be in at least this share of the tools."""
_PHRASE_SHARE = 0.6
"""A phrase stands for its words if at least this share of the tools with one of them has the phrase."""
_DESCRIPTION_WEIGHT = 0.5

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
    server: str = ""
    """The name of its server."""

    @cached_property
    def terms(self) -> Mapping[str, float]:
        """The weight of each word, by its stem, and of each phrase of two words."""
        found = dict.fromkeys((word_stem for word_stem, _ in self._described), _DESCRIPTION_WEIGHT)
        for words in self._named:
            stems = [word_stem for word_stem, _ in words]
            for term in (*stems, *(f"{first} {second}" for first, second in pairwise(stems) if first != second)):
                found[term] = 1.0
        return found

    @cached_property
    def surfaces(self) -> Mapping[str, str]:
        """How the words are written, by their stems."""
        tags_first = [*self._named[2:], self._described, self._named[1], self._named[0]]
        return {word_stem: word for words in tags_first for word_stem, word in words}

    @cached_property
    def _named(self) -> Sequence[Sequence[tuple[str, str]]]:
        """The words of the name, the title and each tag, after their stems."""
        return [_list_words(text) for text in (self.name, self.title or "", *self.tags)]

    @cached_property
    def _described(self) -> Sequence[tuple[str, str]]:
        return _list_words(self.description)


@dataclass(frozen=True)
class GroupName:
    name: str
    words: Sequence[str]


OTHER = GroupName("other", ())


def _list_words(text: str) -> list[tuple[str, str]]:
    """Return the words that may name something, after their stems."""
    words = (match[0].lower() for match in _WORD.finditer(text[:_MAX_TEXT]))
    return [(stem(word), word) for word in islice(filter(_is_telling, words), _MAX_WORDS_READ)]


def _is_telling(word: str) -> bool:
    return _MIN_WORD <= len(word) <= _MAX_WORD and word not in _UNTELLING and not is_action_word(word)


class Vocabulary:
    """How typical each word is of each group of a user's tools."""

    def __init__(self, groups: Mapping[str, Sequence[ToolText]], checkpoint: Checkpoint = never_pause) -> None:
        """`groups` are the tools of each group, by its id."""
        self._sizes = {group: len(texts) for group, texts in groups.items()}
        read = {group: texts[:MAX_TOOLS_READ] for group, texts in groups.items()}
        self._read = {group: len(texts) for group, texts in read.items()}
        self._tools = sum(self._read.values())
        self._servers = {group: Counter(text.server for text in texts) for group, texts in groups.items()}
        self._weights: dict[str, defaultdict[str, float]] = {group: defaultdict(float) for group in read}
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._counts: dict[str, Counter[str]] = {group: Counter() for group in read}
        self._surfaces: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for group, texts in read.items():
            for text in texts:
                checkpoint()
                self._read_text(group, text)

    def _read_text(self, group: str, text: ToolText) -> None:
        self._counts[group].update(list(text.terms))
        for term, weight in text.terms.items():
            self._weights[group][term] += weight
            self._totals[term] += weight
        for word_stem, word in text.surfaces.items():
            self._surfaces[word_stem][word] += 1

    def get_size(self, group: str) -> int:
        """Return how many tools the group has."""
        return self._sizes.get(group, 0)

    def get_server(self, group: str) -> str:
        """Return the server that most tools of the group are from."""
        servers = self._servers.get(group, Counter())
        return min(servers, key=lambda name: (-servers[name], name), default="")

    def has_term(self, group: str, term: str) -> bool:
        return term in self._counts.get(group, ())

    def find_group(self, text: ToolText) -> str | None:
        """Return the group whose typical words the text has; None if it has none of any group's."""
        scores: defaultdict[str, float] = defaultdict(float)
        for term in text.terms:
            for group, weight in self._typical.get(term, ()):
                scores[group] += weight
        return max(scores, key=lambda group: (scores[group], group), default=None)

    @cached_property
    def _typical(self) -> Mapping[str, Sequence[tuple[str, float]]]:
        """The groups that each term is typical of, and how much."""
        found: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
        for group, counts in self._counts.items():
            for term in counts:
                weight = self._compute_weight(group, term)
                if weight > 0:
                    found[term].append((group, weight))
        return found

    def rank_terms(self, group: str) -> list[tuple[str, float]]:
        """Return the typical terms of a group and their weights, the most typical first."""
        least = max(2, math.ceil(_ENOUGH_COVERAGE * self._read.get(group, 0)))
        shared = [term for term, count in self._counts.get(group, {}).items() if count >= least]
        weighted = [(term, self._compute_weight(group, term)) for term in shared]
        return sorted(((term, weight) for term, weight in weighted if weight > 0), key=lambda each: (-each[1], each[0]))

    def _compute_weight(self, group: str, term: str) -> float:
        """The share of the group's tools that have the term, times how much more often they have it than others."""
        inside = self._weights[group].get(term, 0.0)
        if not inside:
            return 0.0
        size, others = self._read[group], self._tools - self._read[group]
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


def name_group(vocabulary: Vocabulary, group: str, taken: Collection[str] = ()) -> GroupName:
    """Return a name, and the words that are typical of the group. The name is not `taken`: in lower case."""
    ranked = _drop_parts(vocabulary.rank_terms(group))
    words = [vocabulary.spell(term) for term, _ in ranked]
    strong = sum(weight >= _ENOUGH_WEIGHT * ranked[0][1] for _, weight in ranked)
    first = min(WORDS_IN_NAME, strong)
    names = [", ".join(words[:count]) for count in (*range(first, len(words) + 1), *range(1, first))]
    possible = [name for name in names if name and len(name) <= MAX_NAME and not find_instructions({"name": name})]
    free = [name for name in possible if name.casefold() not in taken]
    if free:
        return GroupName(free[0], words[:MAX_WORDS])
    name = possible[0] if possible else _name_by_server(vocabulary, group)
    return GroupName(_make_unique(name, taken), words[:MAX_WORDS])


def _name_by_server(vocabulary: Vocabulary, group: str) -> str:
    name = vocabulary.get_server(group)[:MAX_NAME].strip()
    return name if name and not find_instructions({"name": name}) else OTHER.name


def has_name(vocabulary: Vocabulary, group: str, name: str) -> bool:
    """Whether an automatic name still fits the group: tools have its words, or it is that of the server."""
    parts = split_name(name)
    if all(vocabulary.has_term(group, " ".join(map(stem, part.lower().split()))) for part in parts):
        return bool(parts)
    server_parts = split_name(_name_by_server(vocabulary, group))
    return server_parts == parts and not vocabulary.rank_terms(group)


def list_term_ids(name: str, words: Iterable[str]) -> dict[str, list[int]]:
    """Return the search terms of each word of a category, and of each word in its automatic name."""
    found = {each: term_ids_of(map(stem, each.lower().split())) for each in (*words, *split_name(name))}
    return found | {OTHER.name: []}


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
    while unique.casefold() in taken:
        unique, number = f"{name} {number}", number + 1
    return unique
