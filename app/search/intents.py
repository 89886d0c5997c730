"""What a message wants to be done, and what a tool does: to look, to make, to change or to remove something. Pure.

Vectors tell well what a text is about, and badly what is to happen to it: "delete the ticket" is near to every tool for
tickets. The verbs tell. Of a message the first one counts, or the first of each of its aims; of a tool the first in its
name, or else the word that its description begins with. Where either has none that we know, in English, nothing follows
from it.
"""

import re
from collections.abc import Iterable
from enum import IntFlag
from functools import reduce
from operator import or_

from app.search.bm25 import stem


class Action(IntFlag):
    """As rows store it: a tool has one, or none that we know; a message may want several."""

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
_ACTIONS = {stem(verb): action for action, verbs in _VERBS.items() for verb in verbs.split()}

_FIRST_WORDS = 16
_FIRST_CHARACTERS = 500
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_GET_RID = re.compile(r"\bget(?:ting)?(?= rid of\b)", re.IGNORECASE)


def actions_wanted(texts: Iterable[str]) -> Action:
    return reduce(or_, [_first(_GET_RID.sub("", text), _FIRST_WORDS) for text in texts], Action.UNKNOWN)


def action_of_tool(name: str, description: str) -> Action:
    return _first(name, _FIRST_WORDS) or _first(description, 1)


def agreement(wanted: int, action: int) -> int:
    """1 for a tool that does something of what is wanted, -1 for one that does something else."""
    if wanted == Action.UNKNOWN or action == Action.UNKNOWN:
        return 0
    return 1 if action & wanted else -1


def _first(text: str, words: int) -> Action:
    for word in _WORD.findall(text[:_FIRST_CHARACTERS])[:words]:
        if (action := _ACTIONS.get(stem(word.lower()))) is not None:
            return action
    return Action.UNKNOWN
