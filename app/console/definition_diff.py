"""A side-by-side diff of two tool definitions, with the changed words of a line marked. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import orjson

from app.text.strict_json import dump_json

_CONTEXT_LINES = 2
_MAX_LINE_LENGTH = 4_000
"""A longer line is marked as a whole: comparing words takes quadratic time."""
_MAX_EXACT_LINES = 3_000
"""With more lines, difflib's heuristic for frequent lines is on."""

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Segment:
    text: str
    marked: bool


@dataclass(frozen=True)
class DiffRow:
    """A line of each side. A side without a line is None; both are None where unchanged lines are left out."""

    old: Sequence[Segment] | None
    new: Sequence[Segment] | None
    changed: bool


def diff_definitions(old: Any, new: Any) -> list[DiffRow]:
    """Return the changed lines with a few unchanged lines around them. The order of keys makes no difference."""
    before, after = _to_lines(old), _to_lines(new)
    matcher = SequenceMatcher(None, before, after, autojunk=len(before) + len(after) > _MAX_EXACT_LINES)
    return list(_iter_rows(matcher, before, after))


def _to_lines(definition: Any) -> list[str]:
    return dump_json(definition, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode().splitlines()


def _iter_rows(matcher: SequenceMatcher[str], before: Sequence[str], after: Sequence[str]) -> Iterator[DiffRow]:
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT_LINES)):
        if number:
            yield DiffRow(None, None, changed=False)
        for tag, old_from, old_to, new_from, new_to in group:
            for old, new in zip_longest(before[old_from:old_to], after[new_from:new_to]):
                yield _make_row(old, new, changed=tag != "equal")


def _make_row(old: str | None, new: str | None, *, changed: bool) -> DiffRow:
    if old is None or new is None or not changed or max(len(old), len(new)) > _MAX_LINE_LENGTH:
        return DiffRow(_whole_line(old, marked=changed), _whole_line(new, marked=changed), changed)
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    opcodes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    old_segments = _make_segments(before, [(tag, first, last) for tag, first, last, _, _ in opcodes])
    new_segments = _make_segments(after, [(tag, first, last) for tag, _, _, first, last in opcodes])
    return DiffRow(old_segments, new_segments, changed)


def _whole_line(line: str | None, *, marked: bool) -> Sequence[Segment] | None:
    return None if line is None else [Segment(line, marked)]


def _make_segments(words: Sequence[str], ranges: Sequence[tuple[str, int, int]]) -> list[Segment]:
    return [Segment("".join(words[first:last]), tag != "equal") for tag, first, last in ranges if first < last]
