"""Notes on parameters: those parts of their descriptions that a model cannot guess from the names.

Most descriptions repeat the name ("repo: the repository's name"). One is worth its tokens if it tells how to write the
value (an example, a format, a unit), or, for a required parameter, if it has several words that neither the names nor
the description of the tool contain.
"""

import re
from collections.abc import Iterator
from typing import Any

from app.text.strict_json import Json

_MAX_NOTE = 60
_MAX_NOTES = 100
"""Characters of one note, and of all notes of a tool."""
_MAX_READ = 1_000
_MAX_READ_OF_TOOL = 10_000
"""Characters of one description, and of all descriptions of a tool, that are read for notes."""
_READ_PER_PARAMETER = 50
"""At least as many characters are counted for each parameter, so that very many are not all looked at."""
_MIN_ROOM = 5
_MIN_NEW_WORDS = 3
_STEM = 5
_PLAIN_NAME = re.compile(r"[\w$.-]{1,64}")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SENTENCE_END = re.compile(r"(?<=\w\w\w[.!?])\s|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_FORM = re.compile(
    r"e\.g\.|i\.e\.|\bexamples?\b|such as|\bformat|\bmust\b|separated|\biso\b|\butc\b|\bjson\b|\bsyntax|\bregex|encoded"
    r"|\bprefix|yyyy|[\"'`][^\"'`]{1,40}[\"'`]|\d{2,}"
    r"|\bin (?:seconds|minutes|hours|days|ms|milliseconds|bytes|usd|cents|percent|meters|pixels)\b",
    re.IGNORECASE,
)
_COMMON_WORDS = frozenset(
    "the and for from with are its this that not which when will can may was has have use used using uses get gets set "
    "whether optional required specified specify specific given provide provided name value parameter param argument "
    "string number integer boolean array object list text ids identifier unique field data type user input only all "
    "any each default defaults true false want your you one per new current should".split()
)


def make_parameter_notes(tool_name: str, description: str, schema: Any) -> dict[str, str]:
    """Return the notes by parameter, those of required parameters first.

    A parameter whose name is no plain word has none: line breaks in it could pass for another tool.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    is_required = set(filter(lambda name: isinstance(name, str), required if isinstance(required, list) else []))
    known, left, notes = {*_list_stems(tool_name), *_list_stems(description)}, _MAX_NOTES, {}
    unread = _MAX_READ_OF_TOOL
    for name in sorted(properties, key=lambda name: name not in is_required):
        unread -= max(_READ_PER_PARAMETER, _count_characters(properties[name]))
        if unread < 0 or left < _MIN_ROOM:
            break
        is_plain = _PLAIN_NAME.fullmatch(name) is not None
        note = _make_note(name, properties[name], known, is_required=name in is_required) if is_plain else None
        if note is not None and len(name) + len(note) <= left:
            notes[name] = note
            left -= len(name) + len(note)
    return notes


def _count_characters(schema: Any) -> int:
    """Return how much of the description is read."""
    text = schema.get("description") if isinstance(schema, dict) else None
    return min(len(text), _MAX_READ) if isinstance(text, str) else 0


def _make_note(name: str, schema: Json, known: set[str], *, is_required: bool) -> str | None:
    text = schema.get("description") if isinstance(schema, dict) else None
    # The values of an enum, and a switch, need no words.
    if not isinstance(text, str) or "enum" in schema or schema.get("type") == "boolean":
        return None
    text = text[:_MAX_READ].strip()
    words = {word.lower() for word in _WORD.findall(text) if len(word) > 2} - _COMMON_WORDS
    new_words = {word for word in words if word[:_STEM] not in known | set(_list_stems(name))}
    tells_form = bool(new_words) and _FORM.search(text) is not None
    if not tells_form and not (is_required and len(new_words) >= _MIN_NEW_WORDS):
        return None
    first = _SENTENCE_END.split(text, maxsplit=1)[0].rstrip(". ")
    return first if len(first) <= _MAX_NOTE else f"{first[:_MAX_NOTE].rsplit(' ', 1)[0]}…"


def _list_stems(text: str) -> Iterator[str]:
    yield from (word.lower()[:_STEM] for word in _WORD.findall(text))
