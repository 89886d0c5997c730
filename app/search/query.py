"""Parse what a chat backend sends into what is searched for. Pure.

Three things are read from a message:

- Its subqueries. "find the paper and mail it to Ann" requests two things. Each is searched for by itself as well, so
  that neither hides the other.
- Its context. "and for New York?" or "yes please" says little by itself. A message of a conversation is searched for
  twice: alone, and together with the turns before it. What each reading finds decides (`scoring.py`), so no rule has to
  guess from the words of a message whether it is complete.
- The recently called tools: the next message often needs one of them again, or another tool of the same server.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from app.search.bm25 import query_term_ids
from app.search.entities import replace_entities
from app.search.intents import detect_requested_actions
from app.search.language import ENGLISH
from app.search.tokenizer import extract_possible_names, tokenize

MAX_SEARCH_CHARS = 4_000
_MAX_CHARS_FOR_SUBQUERIES = 1_000
_MAX_TURN_CHARS = 300
_MAX_RESULT_CHARS = 150
_MAX_WORDS_OF_A_REPLY = 5
_MAX_CLOSING_CHARS = 80
_MAX_SUBQUERIES = 4
_RECENT_TURNS = 8

# After "and" or "then", a verb that requests something or a new clause begins another subquery.
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
_SUBQUERY_BOUNDARY = re.compile(
    rf",?\s+(?:and|then|plus|but)\s+(?={_LINKS}(?:{_CLAUSES}|is|are|do|does|{'|'.join(_VERBS)})\b)"
    rf"|,\s+(?={_LINKS}(?:{'|'.join(_VERBS)})\s)",
    re.IGNORECASE,
)
_SENTENCE_BOUNDARY = re.compile(r"(?<=[.!?;])\s+|\n+")

_AGREEMENT_WORDS = frozenset(
    "yes yeah yep sure ok okay great perfect lovely good nice thanks thank go ahead exactly right correct fine".split()
)

# "Thanks, that is all" requests nothing, whatever the conversation was about. Every word must be one of these.
_CLOSING_WORDS = frozenset(
    """
    thank thanks thankyou thx ty cheers bye goodbye no nope nothing nevermind mind danke tschüss merci gracias adiós
    obrigado obrigada valeu tchau grazie ciao 谢谢 谢谢你 再见 ありがとう ありがとうございます
    """.split()
)
_CLOSING_FILLERS = _AGREEMENT_WORDS | frozenset(
    """
    a all am and appreciate are bunch day done else everything for got have help helped helpful i is it kind lot m
    many mate million more much need needed never nice now of one re really s so that thats the time u very was we
    were ya you your vielen dank schön sehr beaucoup muchas mille muito tante
    """.split()
)
_REFUSAL_WORDS = frozenset("no nope nothing nevermind never".split())
_ANY_WORD = re.compile(r"\w+")

# "Shall I post it?" or "Which repository?": a short reply belongs to it, and is searched together with it. A "great,
# thanks" accepts an offer, and closes the conversation otherwise.
_OFFER = re.compile(
    r"\b(?:shall|should|can|could|may) i\b|\bi (?:can|could)\b|\b(?:want|like) me to\b|\b(?:do you|you'd|if you) want\b"
    r"|\bwould you like\b|\bif you(?:'d)? like\b|^\s*want\b|[.!]\s+want\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"\?\s*$")
# "Anything else I can help with?" offers nothing in particular.
_COURTESY = re.compile(r"\banything else\b|\bhow (?:can|may) i help\b|\bhelp you\b|\bhelp with\b", re.IGNORECASE)


@dataclass(frozen=True)
class Query:
    """What a search needs of the texts is computed once: a question that is asked again is the same object."""

    user_text: str
    """The user's last message, in which tool names are looked for."""
    search_text: str
    """What is searched for: the message, with its entities replaced by their kinds."""
    subqueries: tuple[str, ...] = ()
    """Parts of the search text that are searched for by themselves as well."""
    context: str = ""
    """The turns before the message."""
    called: frozenset[str] = frozenset()
    """The names of recently called tools."""
    follows_offer: bool = False
    """Whether the assistant's last turn offers something."""
    language: str = ENGLISH
    expansion: str = ""
    """Plain words for what the message says in other words; matched by BM25 alone."""

    @cached_property
    def is_closing(self) -> bool:
        """Whether the message only says thanks or goodbye, and requests nothing."""
        if len(self.user_text) > _MAX_CLOSING_CHARS:
            return False
        words = set(_ANY_WORD.findall(self.user_text.lower()))
        closes = bool(words & (_REFUSAL_WORDS if self.follows_offer else _CLOSING_WORDS))
        return closes and words <= _CLOSING_WORDS | _CLOSING_FILLERS

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The search text first, then each subquery, then the search text in its context if there is one."""
        in_context = (shorten(f"{self.context}\n{self.search_text}"),) if self.context else ()
        return self.search_text, *self.subqueries, *in_context

    @cached_property
    def lexical_texts(self) -> tuple[str, ...]:
        """What is matched by words, for each of the texts."""
        search_text, *others = self.texts
        return f"{search_text} {self.expansion}" if self.expansion else search_text, *others

    @cached_property
    def term_ids(self) -> Sequence[Sequence[int]]:
        """The term ids of each of the lexical texts."""
        return [query_term_ids(text) for text in self.lexical_texts]

    @cached_property
    def own_term_ids(self) -> Sequence[int]:
        """Those term ids of the first text that are the message's own words."""
        if not self.expansion:
            return self.term_ids[0]
        own = set(query_term_ids(self.search_text))
        return [term_id for term_id in self.term_ids[0] if term_id in own]

    @cached_property
    def possible_names(self) -> Sequence[str]:
        """Those words of the message that may be the name of a tool, in lower case."""
        return extract_possible_names(self.user_text)

    @cached_property
    def requested_actions(self) -> int:
        """The actions that the message requests, as a number."""
        texts = self.subqueries or (self.search_text,)
        return int(detect_requested_actions(texts) or detect_requested_actions([self.expansion]))


def parse_query(query: str | None, messages: Sequence[Mapping[str, Any]] | None = None) -> Query:
    """Return the query for a text, or for the user's last turn of a conversation."""
    if query is not None:
        return _make_query(query.strip())
    turns = list(messages or ())
    position, user_text = next(_iterate_backwards("user", turns), (0, ""))
    called = frozenset(name for turn in turns[-_RECENT_TURNS:] for name in _find_tool_calls(turn))
    before = turns[:position]
    parsed = _make_query(user_text, _describe_context(before), called)
    answer = next((_get_last_sentences(text) for text in _find_last("assistant", before)), "")
    follows_offer = bool(_OFFER.search(answer))
    if _COURTESY.search(answer) or not (follows_offer or _QUESTION.search(answer)):
        return parsed
    if len(user_text.split()) > _MAX_WORDS_OF_A_REPLY:
        return replace(parsed, follows_offer=follows_offer)
    search_text = f"{replace_entities(shorten(answer, _MAX_TURN_CHARS))} {parsed.search_text}"
    return replace(parsed, search_text=search_text, subqueries=(), follows_offer=follows_offer)


def find_ages_of_calls(messages: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many messages of the user followed the last call of each tool, by the name that the model called."""
    ages: dict[str, int] = {}
    age = 0
    for turn in reversed(messages):
        for name in _find_tool_calls(turn):
            ages.setdefault(name, age)
        if turn.get("role") == "user" and _extract_text(turn.get("content")):
            age += 1
    return ages


def parse_query_with_context(query: str, context: str) -> Query:
    """Return the query for a caller that gives the context separately."""
    return _make_query(query.strip(), replace_entities(context.strip()))


def shorten(text: str, max_chars: int = MAX_SEARCH_CHARS) -> str:
    """Keep both ends of a long text: a pasted document usually follows or precedes the request itself."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n{text[-half:]}"


def _make_query(user_text: str, context: str = "", called: frozenset[str] = frozenset()) -> Query:
    search_text = replace_entities(shorten(user_text))
    return Query(user_text, search_text, _split_subqueries(search_text), context, called)


def _split_subqueries(text: str) -> tuple[str, ...]:
    """Return the parts of a text that requests several things, and none for a single request or a document."""
    if len(text) > _MAX_CHARS_FOR_SUBQUERIES:
        return ()
    parts = [part for sentence in _SENTENCE_BOUNDARY.split(text) for part in _SUBQUERY_BOUNDARY.split(sentence)]
    if len(parts) == 1:
        return ()
    subqueries = [part.strip() for part in parts if len(set(tokenize(part))) > 1]
    return tuple(subqueries[:_MAX_SUBQUERIES]) if len(subqueries) > 1 else ()


def _describe_context(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the user's previous message, the last tool result and the assistant's last answer, which may be an offer.

    The message itself follows, so that the nearest turn stands next to it.
    """
    texts = [
        *(shorten(text, _MAX_TURN_CHARS) for text in _find_last("user", turns)),
        *(text[:_MAX_RESULT_CHARS] for text in _find_last_result(turns)),
        *(shorten(text, _MAX_TURN_CHARS) for text in _find_last("assistant", turns)),
    ]
    return "\n".join(map(replace_entities, texts))


def _find_last(role: str, turns: Sequence[Mapping[str, Any]]) -> list[str]:
    return [text for _, text in _iterate_backwards(role, turns)][:1]


def _get_last_sentences(text: str) -> str:
    """Return the last two sentences, in which an assistant makes an offer."""
    return " ".join(_SENTENCE_BOUNDARY.split(text.strip())[-2:])


def _find_last_result(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text of the last tool result, in OpenAI's formats or Anthropic's."""
    for turn in reversed(turns):
        results = [block for block in _list_blocks(turn.get("content")) if block.get("type") == "tool_result"]
        contents = [block.get("content") for block in results]
        if turn.get("role") == "tool":
            contents = [turn.get("content")]
        elif turn.get("type") == "function_call_output":
            contents = [turn.get("output")]
        if texts := [text for content in contents if (text := _extract_text(content))]:
            return texts[-1:]
    return []


def _iterate_backwards(role: str, turns: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield the position and the text of each turn of a role, the last turn first."""
    for position in range(len(turns) - 1, -1, -1):
        if turns[position].get("role") == role and (text := _extract_text(turns[position].get("content"))):
            yield position, text


def _extract_text(content: Any) -> str:
    """Return a string as it is, or the `text` of OpenAI's and Anthropic's content blocks."""
    if isinstance(content, str):
        return content.strip()
    texts = (block.get("text") for block in _list_blocks(content))
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


def _find_tool_calls(turn: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tool names in OpenAI's `tool_calls`, its Responses items and Anthropic's `tool_use` blocks."""
    functions = (call.get("function") for call in _list_blocks(turn.get("tool_calls")))
    tool_uses = (block for block in _list_blocks(turn.get("content")) if block.get("type") == "tool_use")
    items = (turn,) if turn.get("type") == "function_call" else ()
    for call in (*functions, *tool_uses, *items):
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            yield call["name"]


def _list_blocks(content: Any) -> list[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
