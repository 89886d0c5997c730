"""Patterns over tool names: globs (`github_*`) and regular expressions (`/^create_/i`), negated by a `!`. Pure.

All of them are compiled into one automaton by RE2, which never backtracks: a thousand patterns cost a name little more
than one does, and none of them can be written so that a name takes for ever.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import re2

from app.errors import InvalidInput

MAX_PATTERN = 256

_NEGATED = "!"
_REGEX = re.compile(r"/(?P<source>.+)/(?P<flags>[A-Za-z]*)", re.DOTALL)
_FLAGS = frozenset("ims")
_GLOB_PART = re.compile(r"\*+|\?|\[!?+.[^\]]*\]|[^*?\[]+|\[", re.DOTALL)
_SPECIAL_IN_CLASS = re.compile(r"[\\\[\]^]")
# what one pattern may grow to when it is compiled: enough for any name, too little for `(.{900}){900}`
_MEMORY_OF_ONE = 256 * 1024
_MEMORY_OF_ALL = 32 * 1024 * 1024


@dataclass(frozen=True)
class Pattern:
    negated: bool
    expression: str
    """In RE2's syntax; it matches where it is found in a name."""
    size: int
    """Of the program that RE2 makes of it: what it costs to compile and to run."""


def parse_pattern(text: str) -> Pattern:
    """Raises `InvalidInput`, saying what is wrong and not what was said."""
    if len(text) > MAX_PATTERN:
        raise InvalidInput(f"a pattern has at most {MAX_PATTERN} characters")
    negated = text.startswith(_NEGATED)
    body = text.removeprefix(_NEGATED)
    if not body:
        raise InvalidInput("a pattern needs at least one character")
    regex = _REGEX.fullmatch(body)
    if regex is None and body.startswith("/"):
        raise InvalidInput("a regular expression ends with a slash, as in `/^create_/i`; a glob may begin with `[/]`")
    expression = _from_glob(body) if regex is None else _from_regex(regex["source"], regex["flags"])
    try:
        program = _alone(expression)
    except re2.error as error:
        raise InvalidInput(f"it cannot be read: {_told(error)}") from error
    return Pattern(negated, expression, program.programsize)


def _from_regex(source: str, flags: str) -> str:
    if unknown := set(flags) - _FLAGS:
        raise InvalidInput(f"a regular expression has no flag {min(unknown)!r}; there are i, m and s")
    return f"(?{flags}){source}" if flags else source


def _from_glob(glob: str) -> str:
    return rf"(?s)\A(?:{''.join(_glob_part(part) for part in _GLOB_PART.findall(glob))})\z"


def _glob_part(part: str) -> str:
    if part.startswith("*"):
        return ".*"
    if part == "?":
        return "."
    if len(part) > 1 and part.startswith("["):
        return _letters(part[1:-1])
    return str(re2.escape(part))


def _letters(inside: str) -> str:
    """One of these, or none of these: `[abc]`, `[a-z]`, `[!abc]`."""
    caret = "^" if inside.startswith("!") else ""
    letters = _SPECIAL_IN_CLASS.sub(r"\\\g<0>", inside.removeprefix("!"))
    return f"[{caret}{letters}]"


def _alone(expression: str) -> Any:
    return re2.compile(expression, options=_options(_MEMORY_OF_ONE))


def _told(error: re2.error) -> str:
    reason = error.args[0]
    told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return f"{told.partition(':')[0]} (regular expressions are RE2's: no look-around, no back-references)"


def _options(memory: int) -> re2.Options:
    options = re2.Options()
    options.max_mem = memory
    options.log_errors = False
    return options


class PatternSet:
    """Says which of many patterns match a name."""

    def __init__(self, expressions: Sequence[str]) -> None:
        self._expressions = expressions
        self._all = re2.Set.SearchSet(_options(_MEMORY_OF_ALL))
        for expression in expressions:
            self._all.Add(expression)
        # matches everything: where even this is missing, the automaton has run out of memory and says nothing true
        self._sentinel = self._all.Add("")
        self._compiled = False
        with suppress(re2.error):
            self._all.Compile()
            self._compiled = True

    def matching(self, name: str) -> set[int]:
        """By their places in the list that the set was made from."""
        found = set(self._all.Match(name) or ()) if self._compiled else set()
        if self._sentinel in found:
            return found - {self._sentinel}
        return {place for place, each in enumerate(self._one_by_one) if each.search(name) is not None}

    @cached_property
    def _one_by_one(self) -> list[Any]:
        """Kept here, since RE2 itself remembers no more than its last hundred."""
        return [_alone(expression) for expression in self._expressions]
