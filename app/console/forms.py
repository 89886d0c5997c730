"""Read HTML forms, and validate them with the request models of the API."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from app.errors import InvalidInput
from app.schemas.base import locate_error

M = TypeVar("M", bound=BaseModel)
N = TypeVar("N", int, float)

_MAX_FIELDS = 5_000
_MAX_ERRORS = 5
_FORM_TYPE = "application/x-www-form-urlencoded"


class Form:
    """The fields of a form or of a query string. A name may have several values."""

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields: dict[str, list[str]] = {}
        for name, value in fields:
            self._fields.setdefault(name, []).append(value)

    def items(self) -> list[tuple[str, str]]:
        return [(name, value) for name, values in self._fields.items() for value in values]

    def all(self, name: str) -> list[str]:
        return self._fields.get(name, [])

    def text(self, name: str) -> str:
        """Return the first value without surrounding space, or an empty text."""
        return next((value.strip() for value in self.all(name)), "")

    def optional_text(self, name: str) -> str | None:
        """Return None for an empty field."""
        return self.text(name) or None

    def is_checked(self, name: str) -> bool:
        return bool(self.text(name))

    def comma_list(self, name: str) -> list[str]:
        """Return the comma-separated parts of all values, each once."""
        parts = (part.strip() for value in self.all(name) for part in value.split(","))
        return list(dict.fromkeys(part for part in parts if part))

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text that are not empty, each once."""
        parts = (line.strip() for value in self.all(name) for line in value.splitlines())
        return list(dict.fromkeys(line for line in parts if line))

    def integer(self, name: str) -> int | None:
        return _parse_number(name, self.text(name), int)

    def decimal(self, name: str) -> float | None:
        return _parse_number(name, self.text(name).replace(",", "."), float)


def _parse_number(name: str, text: str, number_type: type[N]) -> N | None:
    try:
        return number_type(text) if text else None
    except ValueError as error:
        raise InvalidInput(f"{_field_label(name)}: {text[:40]!r} is not a number") from error


def read_form(content_type: str, body: bytes) -> Form:
    if not body:
        return Form()
    if _FORM_TYPE not in content_type:
        raise InvalidInput(f"the form must be sent as {_FORM_TYPE}")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise InvalidInput(f"the form is not valid UTF-8 text or has more than {_MAX_FIELDS} fields") from error
    if any("\0" in name + value for name, value in fields):
        raise InvalidInput("the form contains a NUL character, which cannot be stored")
    # browsers submit line breaks as CRLF
    return Form((name, value.replace("\r\n", "\n")) for name, value in fields)


def parse_form(model: type[M], values: Mapping[str, Any]) -> M:
    """Validate values with a request model of the API. Raise `InvalidInput` with all errors in one sentence."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InvalidInput("; ".join(_error_messages(error))) from error


def _error_messages(error: ValidationError) -> Iterator[str]:
    for item in error.errors()[:_MAX_ERRORS]:
        field = " ".join(_field_label(part) for part in locate_error(item))
        message = item["msg"].removeprefix("Value error, ").replace("Input should", "should").replace("String", "it")
        yield f"{field}: {message}" if field else message


def _field_label(part: str | int) -> str:
    """Return a part of an error's location as text; positions count from 1."""
    return str(part + 1) if isinstance(part, int) else part.replace("_", " ")


def parse_time(text: str | None) -> datetime | None:
    """Parse the value of a `datetime-local` field, which has no time zone, as UTC."""
    try:
        time = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput("a time must have the form 2030-01-31T12:00") from error
    return time if time is None or time.tzinfo is not None else time.replace(tzinfo=UTC)
