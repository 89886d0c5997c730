"""Detect the action that a message requests and the action that a tool performs. Pure.

Embeddings tell well what a text is about, and badly what is to happen to it: "delete the ticket" is close to every tool
for tickets. The verbs tell. The first known verb decides: in a message or in each of its subqueries, in a tool's name,
or else the first word of the tool's description. Without a known English verb the action is unknown, and an unknown
action neither raises nor lowers a score.
"""

import re
from collections.abc import Iterable
from enum import IntFlag
from functools import reduce
from operator import or_

from app.search.tokenizer import stem


class Action(IntFlag):
    """The values are stored in rows. A tool has one action or `UNKNOWN`; a message may request several."""

    UNKNOWN = 0
    LOOK = 1
    MAKE = 2
    CHANGE = 4
    REMOVE = 8


_VERBS = {
    Action.LOOK: """
        analyse analyze browse check compare count describe determine discover display explore fetch find get how
        identify inspect list locate look lookup monitor query read retrieve return search see show summarise summarize
        tell track view watch what where which who
    """,
    Action.MAKE: """
        add append compose create draft generate insert make produce record register save schedule store upload write
    """,
    Action.CHANGE: "adjust change configure disable edit enable modify move rename replace set update",
    Action.REMOVE: "cancel clear delete destroy discard drop erase purge remove rid unregister",
}
_ACTIONS_BY_STEM = {stem(verb): action for action, verbs in _VERBS.items() for verb in verbs.split()}

_MAX_WORDS = 16
_MAX_CHARS = 500
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_GET_RID = re.compile(r"\bget(?:ting)?(?= rid of\b)", re.IGNORECASE)


def detect_requested_actions(texts: Iterable[str]) -> Action:
    """Return the actions that the texts of a query request, combined."""
    return reduce(or_, [_find_first_action(_GET_RID.sub("", text), _MAX_WORDS) for text in texts], Action.UNKNOWN)


def detect_tool_action(name: str, description: str) -> Action:
    return _find_first_action(name, _MAX_WORDS) or _find_first_action(description, 1)


def compare_actions(requested: int, action: int) -> int:
    """Return 1 if a tool performs a requested action, -1 if it performs another, 0 if either is unknown."""
    if requested == Action.UNKNOWN or action == Action.UNKNOWN:
        return 0
    return 1 if action & requested else -1


def _find_first_action(text: str, max_words: int) -> Action:
    for word in _WORD.findall(text[:_MAX_CHARS])[:max_words]:
        if (action := _ACTIONS_BY_STEM.get(stem(word.lower()))) is not None:
            return action
    return Action.UNKNOWN


def is_action_word(word: str) -> bool:
    """Whether the word says what is done, and not what it is done to."""
    return stem(word) in _ACTIONS_BY_STEM
