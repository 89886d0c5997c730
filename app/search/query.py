"""From what a chat backend sends to what is searched for. Pure.

Three things are read out of a message. Whether it says enough alone: "do it" or "and the second one?" is searched
together with the turn before it. Which aims it has: "find the paper and mail it to Ann" has two, and each is searched
for by itself as well, so that neither drowns in the other. And which tools were called lately, since the next message
often needs one of them again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.search.bm25 import terms

LONGEST_SEARCHED = 4_000
_LONGEST_WITH_AIMS = 1_000
_LONGEST_TURN = 600
_LONGEST_CLOSING = 80
_MOST_AIMS = 4
_RECENT_TURNS = 8

# What begins an aim of its own behind "and" or "then": a verb that asks for something, or a new clause.
_VERBS = """
    add append approve archive arrange ask assign attach book build buy calculate call cancel change check clear click
    close comment compare compute convert copy count create decline delete deploy describe design determine download
    draft draw edit email estimate evaluate execute explain export extract fetch figure fill filter find fix forward
    generate get give guide help identify import include inform insert install invite let list locate look mail make
    mark mention merge message modify monitor move notify open order pay pick ping plan play post prepare print provide
    publish pull put query read recommend record refund remind remove rename reply report request reschedule reserve
    resize respond restart retrieve return review run save say schedule search see select sell send set share show sign
    sort start stop store submit subscribe suggest summarise summarize switch take tell text track transfer translate
    try turn update upgrade upload use verify view watch write
""".split()
_CLAUSES = r"i(?:'d|'ll| would| want| need| also| am| have| will)|can|could|would|will|what|how|who|when|where|which"
_LINKS = r"(?:(?:please|also|then|finally|lastly|afterwards|maybe|just|kindly),?\s+)*"
_NEXT_AIM = re.compile(
    rf",?\s+(?:and|then|plus|but)\s+(?={_LINKS}(?:{_CLAUSES}|is|are|do|does|{'|'.join(_VERBS)})\b)"
    rf"|,\s+(?={_LINKS}(?:{'|'.join(_VERBS)})\s)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")

# Words that point at something said before; "will it rain?" and "this week" do not.
_POINTING = re.compile(
    r"(?<!\bis )(?<!\bwas )(?<!\bwill )(?<!\bdoes )(?<!\bdid )\b(?:it|that)\b"
    r"|\b(?:them|those|these|ones?|same|again|another|her|him|first|second|third|other)\b",
    re.IGNORECASE,
)
_MOST_POINTING_WORDS = 12
_FEWEST_WORDS = 3
_AGREEING = frozenset(
    "yes yeah yep sure ok okay great perfect lovely good nice thanks thank go ahead exactly right correct fine".split()
)

# "Thanks, that is all" wants nothing, whatever was spoken of before. Only where all of it says so.
_CLOSING = frozenset("thank thanks thx cheers bye goodbye no nope nothing nevermind mind".split())
_BESIDE_CLOSING = _AGREEING | frozenset(
    """
    a all am and are day done else everything for got have help helpful i is it lot m more much need needed never now
    one re really s so that thats the time very was we ya you your
    """.split()
)
_SPOKEN = re.compile(r"\w+")

# A file's name says that a file is meant; its words are of the file's content, and lead a search by meaning astray.
_FILE = re.compile(
    r"(?<![\w/:.~-])[\w~./-]*[\w-]\.(?:md|txt|docx?|xlsx?|csv|pdf|pptx?|jpe?g|png|gif|svg|mp[34]|py|js|ts|json|ya?ml"
    r"|html?|css|zip|log|sql|java|go|rs|c|cpp|h|sh|toml|ini|conf|xml|tar|gz)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Query:
    said: str
    """The user's own last words: where a tool's name is looked for."""
    whole: str
    """What is searched for, with what came before where the words say too little alone."""
    aims: tuple[str, ...] = ()
    """Parts of it that are searched for by themselves as well."""
    called: frozenset[str] = frozenset()
    """The names of tools that were called lately."""

    @property
    def closes(self) -> bool:
        """Whether it wants nothing any more: thanks, and a goodbye."""
        words = set(_SPOKEN.findall(self.said[:_LONGEST_CLOSING].lower()))
        return len(self.said) <= _LONGEST_CLOSING and bool(words & _CLOSING) and words <= _CLOSING | _BESIDE_CLOSING

    @property
    def texts(self) -> tuple[str, ...]:
        return self.whole, *self.aims


def read_query(query: str | None, messages: Sequence[Mapping[str, Any]] | None = None) -> Query:
    """The query, or what the user said last."""
    if query is not None:
        return _alone(query.strip())
    turns = list(messages or ())
    place, said = next(_said_by("user", turns), (0, ""))
    called = frozenset(name for turn in turns[-_RECENT_TURNS:] for name in _called(turn))
    if not _says_too_little(said):
        return _alone(said, called)
    return _with_context(said, _before(turns[:place]), called)


def query_in_context(query: str, context: str) -> Query:
    """Of somebody who says apart what it is about."""
    said, about = query.strip(), context.strip()
    return Query(said, shorten(f"{said}\n{about}"), (shorten(said),)) if about else _alone(said)


def shorten(text: str, longest: int = LONGEST_SEARCHED) -> str:
    """A pasted document usually follows or precedes the wish itself: keep both ends."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n{text[-half:]}"


def _alone(said: str, called: frozenset[str] = frozenset()) -> Query:
    whole = _without_file_names(shorten(said))
    return Query(said, whole, _aims(whole), called)


def _with_context(said: str, before: Sequence[str], called: frozenset[str] = frozenset()) -> Query:
    if not before:
        return _alone(said, called)
    last = _without_file_names(shorten(said))
    whole = shorten("\n".join([*map(_without_file_names, before), last]))
    return Query(said, whole, (last,) if last else (), called)


def _without_file_names(text: str) -> str:
    return _FILE.sub("the file", text)


def _aims(text: str) -> tuple[str, ...]:
    """The parts of a message that asks for several things; none where it asks for one. A long one is a document."""
    if len(text) > _LONGEST_WITH_AIMS:
        return ()
    parts = [part for sentence in _SENTENCE.split(text) for part in _NEXT_AIM.split(sentence)]
    if len(parts) == 1:
        return ()
    aims = [part.strip() for part in parts if len(set(terms(part))) > 1]
    return tuple(aims[:_MOST_AIMS]) if len(aims) > 1 else ()


def _says_too_little(said: str) -> bool:
    words = said.split()
    own = set(terms(said)) - _AGREEING
    if len(words) <= _FEWEST_WORDS or len(own) <= 1:
        return True
    return len(words) <= _MOST_POINTING_WORDS and _POINTING.search(said) is not None


def _before(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the user said the time before, and what was answered last."""
    said = [text for _, text in _said_by("user", turns)][:1]
    answered = [text for _, text in _said_by("assistant", turns)][:1]
    return [shorten(text, _LONGEST_TURN) for text in (*said, *answered)]


def _said_by(role: str, turns: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """From the last to the first, each with its place."""
    for place in range(len(turns) - 1, -1, -1):
        if turns[place].get("role") == role and (text := _text_of(turns[place].get("content"))):
            yield place, text


def _text_of(content: Any) -> str:
    """A string, or blocks of which OpenAI's and Anthropic's text ones carry `text`."""
    if isinstance(content, str):
        return content.strip()
    texts = (block.get("text") for block in _blocks(content))
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


def _called(turn: Mapping[str, Any]) -> Iterator[str]:
    """By OpenAI's `tool_calls`, or by Anthropic's `tool_use` blocks."""
    functions = (call.get("function") for call in _blocks(turn.get("tool_calls")))
    uses = (block for block in _blocks(turn.get("content")) if block.get("type") == "tool_use")
    for named in (*functions, *uses):
        if isinstance(named, dict) and isinstance(named.get("name"), str):
            yield named["name"]


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
