"""Parse what a chat backend sends into what is searched for. Pure.

Three things are read from a message:

- Whether it is complete. "do it" or "and the second one?" is searched together with the turn before it.
- Its subqueries. "find the paper and mail it to Ann" requests two things. Each is searched for by itself as well, so
  that neither hides the other.
- The recently called tools, since the next message often needs one of them again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.search.tokenizer import tokenize

MAX_SEARCH_CHARS = 4_000
_MAX_CHARS_FOR_SUBQUERIES = 1_000
_MAX_TURN_CHARS = 600
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

# Words that refer to an earlier turn. "will it rain?" and "this week" do not.
_REFERENCE = re.compile(
    r"(?<!\bis )(?<!\bwas )(?<!\bwill )(?<!\bdoes )(?<!\bdid )\b(?:it|that)\b"
    r"|\b(?:them|those|these|ones?|same|again|another|her|him|first|second|third|other)\b",
    re.IGNORECASE,
)
_MAX_WORDS_WITH_REFERENCE = 12
_MAX_WORDS_OF_A_FRAGMENT = 3
_AGREEMENT_WORDS = frozenset(
    "yes yeah yep sure ok okay great perfect lovely good nice thanks thank go ahead exactly right correct fine".split()
)

# "Thanks, that is all" requests nothing, whatever the conversation was about. Every word must be one of these.
_CLOSING_WORDS = frozenset("thank thanks thx cheers bye goodbye no nope nothing nevermind mind".split())
_CLOSING_FILLERS = _AGREEMENT_WORDS | frozenset(
    """
    a all am and are day done else everything for got have help helpful i is it lot m more much need needed never now
    one re really s so that thats the time very was we ya you your
    """.split()
)
_ANY_WORD = re.compile(r"\w+")

# A file name shows that the message is about a file. Its words describe the content of the file and mislead a semantic
# search.
_FILE_NAME = re.compile(
    r"(?<![\w/:.~-])[\w~./-]*[\w-]\.(?:md|txt|docx?|xlsx?|csv|pdf|pptx?|jpe?g|png|gif|svg|mp[34]|py|js|ts|json|ya?ml"
    r"|html?|css|zip|log|sql|java|go|rs|c|cpp|h|sh|toml|ini|conf|xml|tar|gz)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Query:
    user_text: str
    """The user's last message, in which tool names are looked for."""
    search_text: str
    """What is searched for: the message, with earlier turns if it is incomplete without them."""
    subqueries: tuple[str, ...] = ()
    """Parts of the search text that are searched for by themselves as well."""
    called: frozenset[str] = frozenset()
    """The names of recently called tools."""

    @property
    def is_closing(self) -> bool:
        """Whether the message only says thanks or goodbye, and requests nothing."""
        if len(self.user_text) > _MAX_CLOSING_CHARS:
            return False
        words = set(_ANY_WORD.findall(self.user_text.lower()))
        return bool(words & _CLOSING_WORDS) and words <= _CLOSING_WORDS | _CLOSING_FILLERS

    @property
    def texts(self) -> tuple[str, ...]:
        """The search text first, then each subquery."""
        return self.search_text, *self.subqueries


def parse_query(query: str | None, messages: Sequence[Mapping[str, Any]] | None = None) -> Query:
    """Return the query for a text, or for the user's last turn of a conversation."""
    if query is not None:
        return _make_query(query.strip())
    turns = list(messages or ())
    position, user_text = next(_iterate_backwards("user", turns), (0, ""))
    called = frozenset(name for turn in turns[-_RECENT_TURNS:] for name in _find_tool_calls(turn))
    if _is_complete(user_text):
        return _make_query(user_text, called)
    return _make_follow_up(user_text, _find_context(turns[:position]), called)


def parse_query_with_context(query: str, context: str) -> Query:
    """Return the query for a caller that gives the context separately."""
    user_text, context = query.strip(), context.strip()
    if not context:
        return _make_query(user_text)
    return Query(user_text, shorten(f"{user_text}\n{context}"), (shorten(user_text),))


def shorten(text: str, max_chars: int = MAX_SEARCH_CHARS) -> str:
    """Keep both ends of a long text: a pasted document usually follows or precedes the request itself."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n{text[-half:]}"


def _make_query(user_text: str, called: frozenset[str] = frozenset()) -> Query:
    search_text = _replace_file_names(shorten(user_text))
    return Query(user_text, search_text, _split_subqueries(search_text), called)


def _make_follow_up(user_text: str, context: Sequence[str], called: frozenset[str]) -> Query:
    if not context:
        return _make_query(user_text, called)
    message = _replace_file_names(shorten(user_text))
    search_text = shorten("\n".join([*map(_replace_file_names, context), message]))
    return Query(user_text, search_text, (message,) if message else (), called)


def _replace_file_names(text: str) -> str:
    return _FILE_NAME.sub("the file", text)


def _split_subqueries(text: str) -> tuple[str, ...]:
    """Return the parts of a text that requests several things, and none for a single request or a document."""
    if len(text) > _MAX_CHARS_FOR_SUBQUERIES:
        return ()
    parts = [part for sentence in _SENTENCE_BOUNDARY.split(text) for part in _SUBQUERY_BOUNDARY.split(sentence)]
    if len(parts) == 1:
        return ()
    subqueries = [part.strip() for part in parts if len(set(tokenize(part))) > 1]
    return tuple(subqueries[:_MAX_SUBQUERIES]) if len(subqueries) > 1 else ()


def _is_complete(user_text: str) -> bool:
    """Whether the message can be searched for without the turns before it."""
    words = user_text.split()
    terms = set(tokenize(user_text)) - _AGREEMENT_WORDS
    if len(words) <= _MAX_WORDS_OF_A_FRAGMENT or len(terms) <= 1:
        return False
    return len(words) > _MAX_WORDS_WITH_REFERENCE or _REFERENCE.search(user_text) is None


def _find_context(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the user's previous message and the assistant's last answer."""
    message = [text for _, text in _iterate_backwards("user", turns)][:1]
    answer = [text for _, text in _iterate_backwards("assistant", turns)][:1]
    return [shorten(text, _MAX_TURN_CHARS) for text in (*message, *answer)]


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
    """Yield the tool names in OpenAI's `tool_calls` and Anthropic's `tool_use` blocks."""
    functions = (call.get("function") for call in _list_blocks(turn.get("tool_calls")))
    tool_uses = (block for block in _list_blocks(turn.get("content")) if block.get("type") == "tool_use")
    for call in (*functions, *tool_uses):
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            yield call["name"]


def _list_blocks(content: Any) -> list[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
