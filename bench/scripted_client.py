"""A client that knows of its tools only what the compact text of `tool_discovery` says: it reads the key and the
signature of a tool, and fills the required arguments by their types."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from app.text.signatures import CUT
from app.text.strict_json import Json

_HINT = "Shown as toolKey("
_NAME = re.compile(r"[^\W\d][\w$.-]*")
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null')
_WORD = re.compile(r"string|integer|number|boolean|any|object|never")
_FORMAT = re.compile(r"<([\w-]+)>")
_PATTERN = re.compile(r"/.*?/(?=[,)|}\](]|$)")
_LENGTH = re.compile(r"\((\d*)\.\.(\d*)\)")
_RANGE = re.compile(r" (-?[\d.e+]*?)\.\.(-?[\d.e+]*)(?=[ ,)|}\]]|$)")
_LIMIT = re.compile(r" ([<>]|step )(-?[\d.e+-]+)")
_SIZE = re.compile(r"\[(?:(\d*)\.\.(\d*))?\]")
_FORMATS = {
    "date-time": "2026-11-18T12:00:00Z",
    "date": "2026-11-18",
    "time": "12:00:00Z",
    "email": "ann@example.com",
    "uri": "https://example.com/a",
    "url": "https://example.com/a",
    "uuid": "6f1c1d8e-9a53-4a6b-8d0b-2f6d1f0c7a11",
    "ipv4": "192.0.2.1",
}


class NeedsDefinition(Exception):
    """The signature does not tell enough: a part that is needed was left out."""


@dataclass(frozen=True)
class ShownTool:
    """A tool as the text shows it."""

    tool_key: str
    signature: str


def read_tools(text: str) -> Iterator[ShownTool]:
    """Yield the tools of a compact result, best first."""
    for block in text.split("\n\n"):
        first, _, rest = block.partition("\n")
        if first.startswith("toolKey: "):
            yield ShownTool(first.removeprefix("toolKey: "), rest.split("\n")[0])
        elif "(" in first and _HINT not in first:
            yield ShownTool(first.partition("(")[0], first)


def fill_arguments(signature: str) -> Json:
    """Return arguments for all required parameters. Raise `NeedsDefinition` if one of them was left out."""
    parser = _Parser(signature, signature.index("(") + 1)
    arguments = parser.read_type() if parser.peek() == "{" else parser.read_fields(")")
    if not isinstance(arguments, dict):
        raise NeedsDefinition
    return arguments


class _Parser:
    """Reads a signature and makes a value of each type on the way."""

    def __init__(self, text: str, position: int) -> None:
        self._text, self._position = text, position

    def peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def read_fields(self, end: str) -> "Json | _Cut":
        """Read `name: type, name?: type` up to the closing bracket."""
        fields: Json = {}
        is_cut = False
        while not self._take(end):
            self._take(", ")
            if self._take(CUT):
                continue  # optional parameters, or conditions, that had no room
            if self._take("[key]: "):
                name, is_optional = "key", False
            else:
                name, is_optional = self._read_name(), self._take("?")
                self._expect(": ")
            value = self.read_type()
            if not is_optional:
                fields[name] = value
                is_cut = is_cut or isinstance(value, _Cut)
        return _Cut() if is_cut else fields

    def read_type(self) -> Any:
        """Return a value of the first alternative that is shown whole."""
        values = [self._read_option()]
        while self._take("|"):
            values.append(self._read_option())
        return next((value for value in values if not isinstance(value, _Cut)), values[0])

    def _read_option(self) -> Any:
        value = self._read_atom()
        while (size := _SIZE.match(self._text, self._position)) is not None:
            self._position = size.end()
            count = max(1, int(size[1] or 0))
            value = value if isinstance(value, _Cut) else [value] * count
        return value

    def _read_atom(self) -> Any:
        if self._take(CUT):
            return _Cut()
        if self._take("("):
            value = self.read_type()
            self._expect(")")
            return value
        if self._take("{"):
            if self._take(f"{CUT}}}"):
                return _Cut()
            return self.read_fields("}")
        if self._take("["):
            items = [self.read_type()]
            while self._take(", "):
                items.append(self.read_type())
            self._expect("]")
            return next((item for item in items if isinstance(item, _Cut)), items)
        if (literal := self._match(_LITERAL)) is not None:
            return orjson.loads(literal[0])
        word = self._match(_WORD)
        if word is None:
            raise ValueError(f"no type at {self._text[self._position :][:40]!r}")
        return self._read_constraints(word[0])

    def _read_constraints(self, word: str) -> Any:
        if word == "string":
            return self._read_string()
        if word in ("integer", "number"):
            return self._read_number()
        return {"boolean": True, "object": {}}.get(word, "text")

    def _read_string(self) -> str:
        named = self._match(_FORMAT)
        self._match(_PATTERN)  # a person or a model would read it; this client does not
        length = self._match(_LENGTH)
        text = _FORMATS.get(named[1], "text") if named is not None else "text"
        if length is None or named is not None:
            return text
        return text.ljust(int(length[1] or 0), "x")[: int(length[2] or 1_000)]

    def _read_number(self) -> float:
        value: float = 1
        bounds = self._match(_RANGE)
        if bounds is not None:
            value = max(value, float(bounds[1])) if bounds[1] else value
            value = min(value, float(bounds[2])) if bounds[2] else value
        while (limit := self._match(_LIMIT)) is not None:
            bound = float(limit[2])
            value = {">": max(value, bound + 1), "<": min(value, bound - 1)}.get(limit[1], bound)
        return int(value) if float(value).is_integer() else value

    def _read_name(self) -> str:
        if self.peek() == '"' and (literal := self._match(_LITERAL)) is not None:
            return str(orjson.loads(literal[0]))
        name = self._match(_NAME)
        if name is None:
            raise ValueError(f"no name at {self._text[self._position :][:40]!r}")
        return name[0]

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
        return match

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise ValueError(f"{text!r} expected at {self._text[self._position :][:40]!r}")


class _Cut:
    """Stands for a part that was left out."""
