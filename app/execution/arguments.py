"""Are these arguments what the tool's input schema asks for? Pure, and bounded whatever the schema is.

A schema comes from a stranger. Its patterns run on RE2, which takes no longer for a nasty one; `$ref` leads nowhere but
into the schema itself; and the whole check has a budget, since a few nested references can ask for more work than
there are atoms.
"""

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Any

import re2
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import SchemaError, UnknownType
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from app.errors import ArgumentsInvalid
from app.protocol import Json, canonical

_BUDGET = 100_000
_MAX_ERRORS = 50
_MAX_MESSAGE = 300

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class _TooMuch(Exception):
    """The check has used up its budget."""


_left: ContextVar[list[int]] = ContextVar("_left")


def check_arguments(schema: Json, arguments: Json) -> None:
    """Raises `ArgumentsInvalid` with every error. A schema that is itself not valid checks nothing: its server will."""
    _left.set([_BUDGET])
    try:
        errors = list(islice(_errors(schema, arguments), _MAX_ERRORS))
    except (_TooMuch, RecursionError) as error:
        raise ArgumentsInvalid("the tool's input schema asks for more checking than we do") from error
    except (SchemaError, UnknownType, Unresolvable):
        return
    if errors:
        message = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in errors[:5])
        raise ArgumentsInvalid(message, errors=errors)


def _errors(schema: Json, arguments: Json) -> Iterator[dict[str, Any]]:
    dialect = validators.validator_for(schema, default=Draft202012Validator)
    dialect.check_schema(schema)
    # an empty registry knows the dialects and nothing else: nothing is ever fetched
    checker = validators.extend(dialect, _bounded(dialect))(schema, registry=Registry())  # type: ignore[no-untyped-call]
    for error in checker.iter_errors(arguments):
        yield {
            "loc": ["arguments", *error.absolute_path],
            "msg": error.message[:_MAX_MESSAGE],
            "type": str(error.validator),
        }


def _bounded(dialect: type[Validator]) -> dict[str, Keyword]:
    keywords = dict(dialect.VALIDATORS) | {name: own for name, own in _OWN.items() if name in dialect.VALIDATORS}
    return {name: _counted(keyword) for name, keyword in keywords.items()}


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        left = _left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _TooMuch
        return keyword(validator, value, instance, schema) or ()

    return counted


def _found(pattern: str, text: str) -> bool:
    """RE2 knows no look-around; what only other engines can read is left to the server."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.search(pattern, text, options) is not None
    except re2.error:
        return True


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
        yield ValidationError(f"additional properties are not allowed: {', '.join(map(repr, extras))}")


def _unique_items(validator: Any, wanted: bool, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """By their spelling: comparing each with each takes too long for a long list."""
    if wanted and validator.is_type(instance, "array") and len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("the items are not all different")


def _unchecked(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> tuple[()]:
    """Would match the schema's patterns with Python's own engine."""
    return ()


_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "unevaluatedProperties": _unchecked,
}
