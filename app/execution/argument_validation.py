"""Check a call's arguments against the tool's input schema, in bounded time for any schema. No I/O.

Schemas come from strangers. Their patterns run on RE2, which has no exponential cases; `$ref` resolves only inside the
schema itself; and each check has a budget of CPU time, because a few nested references can demand an astronomical
amount of work. What cannot be checked here is left to the server, which validates the arguments anyway.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from itertools import islice
from typing import Any

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
from app.text.strict_json import Json, canonical_json, dump_json, load_json
from app.text.suggestions import suggest_name

_ACCEPT_ALL = "{}"
_SCHEMA_BUDGET_S = 3.0
_ARGUMENTS_BUDGET_S = 0.25
_MAX_ERRORS = 50
_MAX_MESSAGE = 300
_MAX_SUGGESTIONS = 3
_SIZES = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""Keywords whose messages do not name the limit."""
_MAX_PATTERN_WORK = 20_000_000

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class _BudgetExceeded(Exception):
    """The check has used up its CPU time."""


_deadline: ContextVar[float] = ContextVar("_deadline")
_synonyms: ContextVar[Mapping[str, str]] = ContextVar("_synonyms")


def check_serializable(arguments: Json) -> None:
    """Reject arguments that our JSON writer cannot write: the MCP SDK may fail on them too."""
    try:
        canonical_json([arguments])
    except TypeError as error:
        raise ArgumentsInvalid("the arguments are nested too deeply") from error


def remove_invalid_parts(schema_text: str) -> str:
    """Return the part of a schema that arguments can be checked against.

    If the schema is invalid, the invalid schemas of single properties are replaced by `{}`; if that does not help, all
    of it is. This takes far longer than checking arguments, so callers cache the result.
    """
    if is_valid_schema(schema_text):
        return schema_text
    schema = load_json(schema_text)
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return _ACCEPT_ALL
    dialect = _get_dialect(schema)
    usable = {name: part if _is_valid(dialect, part) else {} for name, part in properties.items()}
    reduced = dump_json({**schema, "properties": usable}).decode()
    return reduced if is_valid_schema(reduced) else _ACCEPT_ALL


def is_valid_schema(schema_text: str) -> bool:
    """A schema that cannot be checked within the budget counts as invalid."""
    schema = load_json(schema_text)
    _start_budget(_SCHEMA_BUDGET_S)
    return _is_valid(_get_dialect(schema), schema)


def _is_valid(dialect: Any, schema: Any) -> bool:
    with suppress(Exception):  # boundary of the library: a schema can make it raise anything
        return bool(dialect(dialect.META_SCHEMA, registry=_EMPTY_REGISTRY).is_valid(schema))
    return False


def check_arguments(schema_text: str, arguments: Json, synonyms: Mapping[str, str] | None = None) -> None:
    """Raise `ArgumentsInvalid` with every error, or with those found before the budget ran out.

    `synonyms` says which property is meant by an unknown one, where the spelling does not tell.
    """
    _synonyms.set(synonyms or {})
    schema = load_json(schema_text)
    errors: list[dict[str, Any]] = []
    _start_budget(_ARGUMENTS_BUDGET_S)
    with suppress(Exception):  # boundary of the library, as above
        found = _get_dialect(schema)(schema, registry=_EMPTY_REGISTRY).iter_errors(arguments)
        errors.extend(map(_render_error, islice(found, _MAX_ERRORS)))
    if errors:
        message = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in errors[:5])
        raise ArgumentsInvalid(message, errors=errors, schema=schema_text)


def _get_dialect(schema: Json) -> Any:
    return _DIALECTS.get(str(schema.get("$schema")).rstrip("#"), _DEFAULT_DIALECT)


def _render_error(error: ValidationError) -> dict[str, Any]:
    limit = f" ({error.validator}: {error.validator_value})" if error.validator in _SIZES else ""
    return {
        "loc": ["arguments", *error.absolute_path],
        "msg": _shorten_message(error.message) + limit,
        "type": str(error.validator),
    }


def _shorten_message(message: str) -> str:
    """Keep both ends: the library puts the value first and what is wrong with it last."""
    if len(message) <= _MAX_MESSAGE:
        return message
    half = _MAX_MESSAGE // 2
    return f"{message[: half - 1]}…{message[-half:]}"


def _start_budget(seconds: float) -> None:
    _deadline.set(time.thread_time() + seconds)


def _check_budget() -> None:
    if time.thread_time() > _deadline.get():
        raise _BudgetExceeded


def _with_budget(keyword: Keyword) -> Keyword:
    def check_within_budget(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        _check_budget()
        return keyword(validator, value, instance, schema) or ()

    return check_within_budget


def _evolve(self: Any, **changes: Any) -> Any:
    """Replace the library's `evolve`, which switches to an unbounded dialect where a subschema has a `$schema`."""
    _check_budget()
    return type(self)(**{"schema": self.schema, "registry": self._registry, "_resolver": self._resolver} | changes)


def _matches_pattern(pattern: str, text: str) -> bool:
    """RE2 has no look-around: patterns that it cannot compile, or that cost too much, are left to the server."""
    _check_budget()
    try:
        compiled = re2.compile(pattern, _RE2_OPTIONS)
    except re2.error:
        return True
    return compiled.programsize * len(text) > _MAX_PATTERN_WORK or compiled.search(text) is not None


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _matches_pattern(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Json, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _matches_pattern(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Json) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [name for name in instance if name not in known and not any(_matches_pattern(p, name) for p in patterns)]
    if validator.is_type(allowed, "object"):
        for name in extras:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extras:
        allowed_names = f"; the allowed ones are {', '.join(known)}" if known else ""
        refused = f"additional properties are not allowed: {', '.join(map(repr, extras))}{allowed_names}"
        yield ValidationError(refused + _suggest_properties(extras[:_MAX_SUGGESTIONS], known))


def _suggest_properties(extras: Iterable[str], known: Iterable[str]) -> str:
    suggestions = ((name, suggest_name(name, known, _synonyms.get({}))) for name in extras)
    pairs = [f"{meant!r} instead of {name!r}" for name, meant in suggestions if meant is not None]
    return f"; did you mean {', '.join(pairs)}?" if pairs else ""


def _unique_items(validator: Any, required: bool, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Compare items by their canonical form: comparing all pairs takes too long for a long list."""
    if required and validator.is_type(instance, "array") and len(set(map(_canonical_form, instance))) < len(instance):
        yield ValidationError("the items are not unique")


def _canonical_form(item: Any) -> object:
    if not isinstance(item, dict | list):
        return isinstance(item, bool), item  # in JSON, true differs from 1, and 1.0 does not
    _check_budget()
    return canonical_json(item)


def _skip_keyword(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> tuple[()]:
    """The library would run the schema's patterns on Python's regex engine, and compare all pairs of items."""
    return ()


_BOUNDED_KEYWORDS: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "unevaluatedItems": _skip_keyword,
    "unevaluatedProperties": _skip_keyword,
}


def _make_bounded(dialect: type[Validator]) -> Any:
    replaced = {name: keyword for name, keyword in _BOUNDED_KEYWORDS.items() if name in dialect.VALIDATORS}
    keywords = {name: _with_budget(keyword) for name, keyword in (dict(dialect.VALIDATORS) | replaced).items()}
    bounded: Any = validators.extend(dialect, keywords)  # type: ignore[no-untyped-call]
    bounded.evolve = _evolve
    return bounded


_DEFAULT_DIALECT = _make_bounded(Draft202012Validator)
_OLDER_DIALECTS = [
    _make_bounded(dialect) for dialect in (Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator)
]
_DIALECTS = {
    str(dialect.META_SCHEMA["$schema"]).rstrip("#"): dialect for dialect in (_DEFAULT_DIALECT, *_OLDER_DIALECTS)
}
# An empty registry knows only the dialects, so that nothing is ever fetched.
_EMPTY_REGISTRY: Registry[Any] = Registry()
_RE2_OPTIONS = re2.Options()
_RE2_OPTIONS.log_errors = False
_RE2_OPTIONS.never_capture = True
_RE2_OPTIONS.max_mem = 1 << 20
