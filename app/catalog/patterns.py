"""Patterns over tool names: globs (`github_*`) and regular expressions (`/^create_/i`), negated by a `!`.

RE2 compiles all of them into one automaton. It never backtracks: matching a name with a thousand patterns costs little
more than with one, and no pattern takes exponential time.
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

_NEGATION = "!"
_REGEX = re.compile(r"/(?P<source>.+)/(?P<flags>[A-Za-z]*)", re.DOTALL)
_FLAGS = frozenset("ims")
_GLOB_PART = re.compile(r"\*+|\?|\[!?+.[^\]]*\]|[^*?\[]+|\[", re.DOTALL)
_SPECIAL_IN_CLASS = re.compile(r"[\\\[\]^]")
# limits of the compiled size: enough for patterns over names, too little for `(.{900}){900}`
_PATTERN_MEMORY = 256 * 1024
_SET_MEMORY = 32 * 1024 * 1024


@dataclass(frozen=True)
class Pattern:
    is_negated: bool
    expression: str
    """In RE2's syntax; matches anywhere in a name."""
    size: int
    """Of the program that RE2 compiles it to, a measure of its cost."""


def parse_pattern(text: str) -> Pattern:
    """Parse a pattern. Raise `InvalidInput`, whose message does not repeat the pattern."""
    if len(text) > MAX_PATTERN:
        raise InvalidInput(f"a pattern has at most {MAX_PATTERN} characters")
    is_negated = text.startswith(_NEGATION)
    body = text.removeprefix(_NEGATION)
    if not body:
        raise InvalidInput("a pattern needs at least one character")
    regex = _REGEX.fullmatch(body)
    if regex is None and body.startswith("/"):
        raise InvalidInput(
            "a regular expression ends with a slash, as in `/^create_/i`; to begin a glob with a slash, use `[/]`"
        )
    expression = _translate_glob(body) if regex is None else _translate_regex(regex["source"], regex["flags"])
    try:
        program = _compile(expression)
    except re2.error as error:
        raise InvalidInput(f"the pattern is not valid: {_describe(error)}") from error
    return Pattern(is_negated, expression, program.programsize)


def _translate_regex(source: str, flags: str) -> str:
    if unknown := set(flags) - _FLAGS:
        raise InvalidInput(f"unknown flag {min(unknown)!r} of a regular expression; the flags are i, m and s")
    return f"(?{flags}){source}" if flags else source


def _translate_glob(glob: str) -> str:
    return rf"(?s)\A(?:{''.join(_translate_glob_part(part) for part in _GLOB_PART.findall(glob))})\z"


def _translate_glob_part(part: str) -> str:
    if part.startswith("*"):
        return ".*"
    if part == "?":
        return "."
    if len(part) > 1 and part.startswith("["):
        return _translate_class(part[1:-1])
    return str(re2.escape(part))


def _translate_class(content: str) -> str:
    """Translate the content of `[abc]`, `[a-z]` or `[!abc]`."""
    caret = "^" if content.startswith("!") else ""
    characters = _SPECIAL_IN_CLASS.sub(r"\\\g<0>", content.removeprefix("!"))
    return f"[{caret}{characters}]"


def _compile(expression: str) -> Any:
    return re2.compile(expression, options=_make_options(_PATTERN_MEMORY))


def _describe(error: re2.error) -> str:
    reason = error.args[0]
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return f"{text.partition(':')[0]} (the syntax is RE2's: no look-around, no back-references)"


def _make_options(max_memory: int) -> re2.Options:
    options = re2.Options()
    options.max_mem = max_memory
    options.log_errors = False
    return options


class PatternSet:
    """Finds out which of many patterns match a name."""

    def __init__(self, expressions: Sequence[str]) -> None:
        self._expressions = expressions
        self._set = re2.Set.SearchSet(_make_options(_SET_MEMORY))
        for expression in expressions:
            self._set.Add(expression)
        # matches every name: if it is missing in a result, the automaton ran out of memory and the result is wrong
        self._sentinel = self._set.Add("")
        self._is_compiled = False
        with suppress(re2.error):
            self._set.Compile()
            self._is_compiled = True

    def match(self, name: str) -> set[int]:
        """Return the indexes of the expressions that match."""
        found = set(self._set.Match(name) or ()) if self._is_compiled else set()
        if self._sentinel in found:
            return found - {self._sentinel}
        return {index for index, program in enumerate(self._programs) if program.search(name) is not None}

    @cached_property
    def _programs(self) -> list[Any]:
        """Each expression compiled alone. Stored here, since RE2's own cache holds a hundred at most."""
        return [_compile(expression) for expression in self._expressions]
