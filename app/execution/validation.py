"""Are these arguments what the tool's input schema asks for? Pure, and bounded whatever the schema is.

A schema comes from a stranger. Its patterns run on RE2, which takes no longer for a nasty one; `$ref` leads nowhere but
into the schema itself; and the whole check has a budget of computing time, since a few nested references can ask for
more work than there are atoms. What cannot be checked here is left to the server, which has the last word anyway.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from itertools import islice
from typing import Any

import orjson
import re2
from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    ValidationError,
    validators,
)
from jsonschema.protocols import Validator
from referencing import Registry

from app.errors import ArgumentsInvalid
from app.text.strict_json import Json, canonical_json

_ANYTHING = "{}"
_SCHEMA_S = 3.0
_ARGUMENTS_S = 0.25
_MAX_ERRORS = 50
_MAX_MESSAGE = 300
_MAX_PATTERN_WORK = 20_000_000

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class _TooMuch(Exception):
    """The check has used up its budget."""


_deadline: ContextVar[float] = ContextVar("_deadline")


def check_serializable(arguments: Json) -> None:
    """What our own writer does not take, whoever writes them on the wire may not either."""
    try:
        canonical_json([arguments])
    except TypeError as error:
        wrong = "hold an integer of more than 64 bits" if "64-bit" in str(error) else "are nested too deeply"
        raise ArgumentsInvalid(f"the arguments {wrong}") from error


def usable_schema(text: str) -> str:
    """As much of a schema as arguments can be checked against: without what it says of single properties, where that is
    no schema, or nothing of it. Takes far longer than the arguments do: worth remembering."""
    if is_valid_schema(text):
        return text
    schema = orjson.loads(text)
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return _ANYTHING
    dialect = _dialect(schema)
    known = {name: part if _is_valid(dialect, part) else {} for name, part in properties.items()}
    reduced = orjson.dumps({**schema, "properties": known}).decode()
    return reduced if is_valid_schema(reduced) else _ANYTHING


def is_valid_schema(text: str) -> bool:
    """False also where nobody can tell in time."""
    schema = orjson.loads(text)
    _begin(_SCHEMA_S)
    return _is_valid(_dialect(schema), schema)


def _is_valid(dialect: Any, schema: Any) -> bool:
    with suppress(Exception):  # the library's boundary: whatever a schema makes it stumble over
        return bool(dialect(dialect.META_SCHEMA, registry=_NOTHING).is_valid(schema))
    return False


def check_arguments(schema_text: str, arguments: Json) -> None:
    """Raises `ArgumentsInvalid` with every error, or with those that were found until something ended the check."""
    schema = orjson.loads(schema_text)
    errors: list[dict[str, Any]] = []
    _begin(_ARGUMENTS_S)
    with suppress(Exception):  # the library's boundary, as above
        found = _dialect(schema)(schema, registry=_NOTHING).iter_errors(arguments)
        errors.extend(map(_shown, islice(found, _MAX_ERRORS)))
    if errors:
        message = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in errors[:5])
        raise ArgumentsInvalid(message, errors=errors, schema=schema_text)


def _dialect(schema: Json) -> Any:
    return _DIALECTS.get(str(schema.get("$schema")).rstrip("#"), _DEFAULT)


def _shown(error: ValidationError) -> dict[str, Any]:
    return {
        "loc": ["arguments", *error.absolute_path],
        "msg": _both_ends(error.message),
        "type": str(error.validator),
    }


def _both_ends(message: str) -> str:
    """The library puts the value first, and what is wrong with it last."""
    if len(message) <= _MAX_MESSAGE:
        return message
    half = _MAX_MESSAGE // 2
    return f"{message[: half - 1]}…{message[-half:]}"


def _begin(seconds: float) -> None:
    _deadline.set(time.thread_time() + seconds)


def _go_on() -> None:
    if time.thread_time() > _deadline.get():
        raise _TooMuch


def _timed(keyword: Keyword) -> Keyword:
    def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        _go_on()
        return keyword(validator, value, instance, schema) or ()

    return timed


def _evolve(self: Any, **changes: Any) -> Any:
    """The library's own goes on with its unbounded dialect where a part of the schema names one in `$schema`."""
    _go_on()
    return type(self)(**{"schema": self.schema, "registry": self._registry, "_resolver": self._resolver} | changes)


def _found(pattern: str, text: str) -> bool:
    """RE2 knows no look-around; what only other engines can read is left to the server."""
    _go_on()
    try:
        compiled = re2.compile(pattern, _RE2_OPTIONS)
    except re2.error:
        return True
    return compiled.programsize * len(text) > _MAX_PATTERN_WORK or compiled.search(text) is not None


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Json, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _found(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Json) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [name for name in instance if name not in known and not any(_found(p, name) for p in patterns)]
    if validator.is_type(allowed, "object"):
        for name in extras:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extras:
        allowed_names = f"; there are {', '.join(known)}" if known else ""
        yield ValidationError(f"additional properties are not allowed: {', '.join(map(repr, extras))}{allowed_names}")


def _unique_items(validator: Any, wanted: bool, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """By their spelling: comparing each with each takes too long for a long list."""
    if wanted and validator.is_type(instance, "array") and len(set(map(_spelling, instance))) < len(instance):
        yield ValidationError("the items are not all different")


def _spelling(item: Any) -> object:
    if not isinstance(item, dict | list):
        return isinstance(item, bool), item  # true is not 1, but 1.0 is
    _go_on()
    return canonical_json(item)


def _unchecked(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> tuple[()]:
    """Would match the schema's patterns with Python's own engine, and compare each item with each."""
    return ()


_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "unevaluatedItems": _unchecked,
    "unevaluatedProperties": _unchecked,
}


def _bounded(dialect: type[Validator]) -> Any:
    own = {name: keyword for name, keyword in _OWN.items() if name in dialect.VALIDATORS}
    keywords = {name: _timed(keyword) for name, keyword in (dict(dialect.VALIDATORS) | own).items()}
    bounded: Any = validators.extend(dialect, keywords)  # type: ignore[no-untyped-call]
    bounded.evolve = _evolve
    return bounded


_DEFAULT = _bounded(Draft202012Validator)
_OLDER = [_bounded(dialect) for dialect in (Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator)]
_DIALECTS = {str(dialect.META_SCHEMA["$schema"]).rstrip("#"): dialect for dialect in (_DEFAULT, *_OLDER)}
# an empty registry knows the dialects and nothing else: nothing is ever fetched
_NOTHING: Registry[Any] = Registry()
_RE2_OPTIONS = re2.Options()
_RE2_OPTIONS.log_errors = False
_RE2_OPTIONS.never_capture = True
_RE2_OPTIONS.max_mem = 1 << 20
