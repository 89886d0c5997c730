"""What a browser's form says, and its way into the shapes that every door asks for."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from app.errors import InvalidInput

M = TypeVar("M", bound=BaseModel)

_MAX_FIELDS = 5_000
_FORM_TYPE = "application/x-www-form-urlencoded"


class Form:
    """Fields by name, each as often as it was sent."""

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields: dict[str, list[str]] = {}
        for name, value in fields:
            self._fields.setdefault(name, []).append(value)

    def all(self, name: str) -> list[str]:
        return self._fields.get(name, [])

    def text(self, name: str) -> str:
        return next((value.strip() for value in self.all(name)), "")

    def given(self, name: str) -> str | None:
        """None where it was left empty."""
        return self.text(name) or None

    def on(self, name: str) -> bool:
        return bool(self.text(name))

    def words(self, name: str) -> list[str]:
        """Separated by commas, in one field or in several; each once."""
        parts = (part.strip() for value in self.all(name) for part in value.split(","))
        return list(dict.fromkeys(part for part in parts if part))

    def whole(self, name: str) -> int | None:
        return _number(name, self.text(name), int)

    def decimal(self, name: str) -> float | None:
        return _number(name, self.text(name).replace(",", "."), float)


N = TypeVar("N", int, float)


def _number(name: str, text: str, kind: type[N]) -> N | None:
    try:
        return kind(text) if text else None
    except ValueError as error:
        raise InvalidInput(f"{_spoken(name)}: {text[:40]!r} is not a number") from error


def read_form(content_type: str, body: bytes) -> Form:
    if not body:
        return Form()
    if _FORM_TYPE not in content_type:
        raise InvalidInput("this is not a form of ours")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise InvalidInput("the form holds what is not text, or far too much") from error
    if any("\0" in name + value for name, value in fields):
        raise InvalidInput("the form holds a NUL character, which cannot be stored")
    # browsers end lines as the protocol does, and people as their editor does
    return Form((name, value.replace("\r\n", "\n")) for name, value in fields)


def parse_form(shape: type[M], values: Mapping[str, Any]) -> M:
    """As the API would take it, or the API's objection as a sentence."""
    try:
        return shape.model_validate(values)
    except ValidationError as error:
        raise InvalidInput("; ".join(_objections(error))) from error


def _objections(error: ValidationError) -> Iterator[str]:
    for item in error.errors()[:5]:
        place = " ".join(_spoken(part) for part in item["loc"])
        said = item["msg"].removeprefix("Value error, ").replace("Input should", "should").replace("String", "it")
        yield f"{place}: {said}" if place else said


def _spoken(part: str | int) -> str:
    return str(part + 1) if isinstance(part, int) else re.sub("_", " ", part)
