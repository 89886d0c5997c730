"""Two definitions side by side, line by line, with what differs inside a line marked. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import orjson

_CONTEXT = 2
_LONGEST_LINE = 4_000
"""Beyond it a line is marked as a whole: comparing words takes the square of their number."""
_MOST_LINES = 3_000

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Piece:
    text: str
    marked: bool


@dataclass(frozen=True)
class DiffRow:
    """A line of each side; None where there is none, both where lines were left out."""

    old: Sequence[Piece] | None
    new: Sequence[Piece] | None
    changed: bool


Differences = Sequence[DiffRow]


def differences(old: Any, new: Any) -> Differences:
    before, after = _lines(old), _lines(new)
    matcher = SequenceMatcher(None, before, after, autojunk=len(before) + len(after) > _MOST_LINES)
    return list(_rows(matcher, before, after))


def _lines(definition: Any) -> list[str]:
    """In one order of keys, since another order is no change."""
    return orjson.dumps(definition, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode().splitlines()


def _rows(matcher: SequenceMatcher[str], before: Sequence[str], after: Sequence[str]) -> Iterator[DiffRow]:
    """As a patch shows it: the changes, and a little of what is around them."""
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
        if number:
            yield DiffRow(None, None, changed=False)
        for tag, old_from, old_to, new_from, new_to in group:
            for old, new in zip_longest(before[old_from:old_to], after[new_from:new_to]):
                yield _row(old, new, changed=tag != "equal")


def _row(old: str | None, new: str | None, *, changed: bool) -> DiffRow:
    if old is None or new is None or not changed:
        return DiffRow(_whole(old, marked=changed), _whole(new, marked=changed), changed)
    if max(len(old), len(new)) > _LONGEST_LINE:
        return DiffRow(_whole(old, marked=True), _whole(new, marked=True), changed)
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    steps = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    old_pieces = _pieces(before, [(tag, first, last) for tag, first, last, _, _ in steps])
    new_pieces = _pieces(after, [(tag, first, last) for tag, _, _, first, last in steps])
    return DiffRow(old_pieces, new_pieces, changed)


def _whole(line: str | None, marked: bool) -> Sequence[Piece] | None:
    return None if line is None else [Piece(line, marked)]


def _pieces(words: Sequence[str], steps: Sequence[tuple[str, int, int]]) -> list[Piece]:
    return [Piece("".join(words[first:last]), tag != "equal") for tag, first, last in steps if first < last]
