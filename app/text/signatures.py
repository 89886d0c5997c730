"""Signatures: a tool's input schema as one short line from which a model can write arguments.

    search_issues(query: string, state?: "open"|"closed", labels?: string[], assignee?: {login: string})

The notation is that of TypeScript, with formats (`string<date-time>`), patterns (`string/^[a-z]+$/`), ranges (`integer
1..100`) and lengths (`string(..80)`, `string[1..5]` for a list of one to five). Required parameters come first, and `…`
stands for what was left out. Schemas come from strangers: any JSON is taken, and the work and the length are bounded.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.text.strict_json import Json, dump_json

CUT = "…"
MAX_LENGTH = 600
_MAX_REQUIRED_LENGTH = 1_200
"""Required parameters may be longer: without them no call is valid."""
_MAX_OPTIONAL_LENGTH = 240
"""Of one parameter, so that it leaves room for the others."""

_MAX_DEPTH = 4
_MAX_NESTING = 8
_MAX_STEPS = 1_000
_STEP_SIZE = 25
"""Reading or copying as many names, or characters of a reference, counts as a step: parts of a schema may be large, and
references can lead to the same part again and again."""
_MAX_OPTIONS = 20
_MAX_LITERAL = 60
_MAX_PATTERN = 40
_MAX_COUNT = 1_000
_PLAIN_NAME = re.compile(r"[^\W\d][\w$.-]{0,63}")
_FORMAT = re.compile(r"[\w-]{1,24}")
_ANY = "any"
_CONDITIONS = ("anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies")


@dataclass(frozen=True)
class Signature:
    text: str
    is_cut: bool
    """Whether something was left out."""


def format_signature(name: str, schema: Any) -> Signature:
    """Return the signature of a tool with this name and input schema."""
    parameters = _Formatter(schema).format_parameters()
    return Signature(f"{name}({parameters})", CUT in parameters)


class _Formatter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = 0

    @property
    def _is_exhausted(self) -> bool:
        return self._steps > _MAX_STEPS

    def _count_work(self, size: int) -> None:
        self._steps += size // _STEP_SIZE

    def format_parameters(self) -> str:
        """Where there is no room for a parameter, give up its inner types first, then its type."""
        schema = self._merge_all_of(self._resolve(self._root))
        properties = self._list_properties(schema)
        if not properties and any(name in schema for name in ("anyOf", "oneOf")):
            text = self._format(self._root, _MAX_DEPTH)
            return text if len(text) <= _MAX_REQUIRED_LENGTH else CUT
        parts: list[str] = []
        length = 0
        for name, part, is_required in properties:
            left = (_MAX_REQUIRED_LENGTH if is_required else MAX_LENGTH) - len(f", {CUT}") - length
            room = left if is_required else min(left, _MAX_OPTIONAL_LENGTH)
            variants = (self._format_property(name, part, is_required, depth) for depth in (_MAX_DEPTH, 1))
            fitting = next((each for each in variants if len(each) <= room), None)
            shown = fitting or f"{_format_name(name)}{'' if is_required else '?'}: {CUT}"
            if len(shown) > left:
                return ", ".join([*parts, CUT])
            parts.append(shown)
            length += len(shown) + len(", ")
        if self._is_exhausted or any(name in schema for name in _CONDITIONS):
            parts.append(CUT)
        return ", ".join(parts)

    def _format_property(self, name: str, schema: Any, is_required: bool, depth: int) -> str:
        # A parameter that may be left out need not be null.
        kind = self._format(schema, depth, is_nullable=is_required)
        return f"{_format_name(name)}{'' if is_required else '?'}: {kind}"

    def _format(self, schema: Any, depth: int, *, is_nullable: bool = True) -> str:
        return "|".join(self._get_options(schema, depth, is_nullable=is_nullable))

    def _get_options(self, schema: Any, depth: int, *, is_nullable: bool = True) -> list[str]:
        options = list(dict.fromkeys(self._list_options(schema, depth, _MAX_NESTING)))
        if not is_nullable and len(options) > 1:
            options = [option for option in options if option != "null"]
        return [_ANY] if _ANY in options else options[:_MAX_OPTIONS] + [CUT] * (len(options) > _MAX_OPTIONS)

    def _list_options(self, schema: Any, depth: int, nesting: int) -> Iterator[str]:
        """Yield the alternatives of a type. `nesting` limits alternatives inside alternatives."""
        self._steps += 1
        if self._is_exhausted or nesting < 0:
            yield CUT
            return
        schema = self._merge_all_of(self._resolve(schema)) if schema is not False else schema
        if schema is False:
            yield "never"
        elif "const" in schema:
            yield _format_literal(schema["const"])
        elif values := _get_list(schema, "enum"):
            yield from map(_format_literal, values[: _MAX_OPTIONS + 1])
        elif alternatives := _get_list(schema, "anyOf") or _get_list(schema, "oneOf"):
            self._count_work(len(schema))
            base = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf", "allOf")}
            for alternative in alternatives[: _MAX_OPTIONS + 1]:
                resolved = self._resolve(alternative)
                merged = self._merge(base, resolved) if isinstance(resolved, dict) else resolved
                yield from self._list_options(merged, depth, nesting - 1)
        else:
            kinds = _get_list(schema, "type") or [schema.get("type")]
            yield from (self._format_kind(kind, schema, depth) for kind in kinds[:_MAX_OPTIONS])

    def _format_kind(self, kind: Any, schema: Json, depth: int) -> str:
        if kind == "array" or (kind is None and "items" in schema):
            return self._format_array(schema, depth)
        if kind == "object" or (kind is None and "properties" in schema):
            return self._format_object(schema, depth)
        if kind == "string":
            return _format_string(schema)
        if kind == "integer" or kind == "number":
            return f"{kind}{_format_range(schema)}"
        return str(kind) if kind == "boolean" or kind == "null" else _ANY

    def _format_array(self, schema: Json, depth: int) -> str:
        size = _format_length(schema, "minItems", "maxItems", trivial=0)
        if depth <= 0:
            return f"{CUT}[{size}]"
        if positions := _get_list(schema, "prefixItems"):
            return f"[{', '.join(self._format(each, depth - 1) for each in positions[:_MAX_OPTIONS])}]"
        options = self._get_options(schema.get("items", True), depth - 1)
        is_one_word = len(options) == 1 and (options[0][0] in "{[" or " " not in options[0])
        return f"{options[0]}[{size}]" if is_one_word else f"({'|'.join(options)})[{size}]"

    def _format_object(self, schema: Json, depth: int) -> str:
        properties = self._list_properties(schema)
        values = schema.get("additionalProperties")
        if not properties:
            is_map = isinstance(values, dict) and bool(values) and depth > 0
            return f"{{[key]: {self._format(values, depth - 1)}}}" if is_map else "object"
        if depth <= 0:
            return f"{{{CUT}}}"
        parts = [self._format_property(*each, depth - 1) for each in properties[:_MAX_OPTIONS]]
        return f"{{{', '.join(parts + [CUT] * (len(properties) > _MAX_OPTIONS))}}}"

    def _resolve(self, schema: Any) -> Any:
        """Follow references within the schema. One that leads nowhere stands for anything."""
        for _ in range(_MAX_NESTING):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            self._count_work(len(schema) + len(schema["$ref"]))
            if self._is_exhausted:
                break
            beside = {name: value for name, value in schema.items() if name != "$ref"}
            target = self._look_up(schema["$ref"])
            self._count_work(len(target) if isinstance(target, dict) else 0)
            schema = {**target, **beside} if isinstance(target, dict) else target
        return True

    def _look_up(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return True
        found = self._root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                return True
            found = found[key]
        return found

    def _merge_all_of(self, schema: Any) -> Json:
        merged = schema if isinstance(schema, dict) else {}
        for part in _get_list(merged, "allOf")[:_MAX_OPTIONS]:
            resolved = self._resolve(part)
            merged = self._merge(merged, resolved) if isinstance(resolved, dict) else merged
        return merged

    def _merge(self, base: Json, other: Json) -> Json:
        """Return a schema that asks for both; only the first once the work is too much."""
        parts = (base, other, *(_get_dict(each, "properties") for each in (base, other)))
        self._count_work(sum(map(len, (*parts, _get_list(base, "required"), _get_list(other, "required")))))
        if self._is_exhausted:
            return base
        properties = _get_dict(base, "properties") | _get_dict(other, "properties")
        required = [*_get_list(base, "required"), *_get_list(other, "required")]
        both = base | other
        return both | ({"properties": properties} if properties else {}) | ({"required": required} if required else {})

    def _list_properties(self, schema: Json) -> list[tuple[str, Any, bool]]:
        """Return the name and the schema of each property, and whether it is required; required ones first."""
        properties, names = _get_dict(schema, "properties"), _get_list(schema, "required")
        self._count_work(len(properties) + len(names))
        required = dict.fromkeys(name for name in names if isinstance(name, str))
        return [
            *((name, properties.get(name, True), True) for name in required),
            *((name, part, False) for name, part in properties.items() if name not in required),
        ]


def _format_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _format_literal(name)


def _format_literal(value: Any) -> str:
    text = dump_json(value).decode() if isinstance(value, str | int | float | None) else CUT
    return text if len(text) <= _MAX_LITERAL else CUT


def _format_string(schema: Json) -> str:
    kind, pattern = schema.get("format"), schema.get("pattern")
    text = f"string<{kind}>" if isinstance(kind, str) and _FORMAT.fullmatch(kind) else "string"
    if isinstance(pattern, str):
        text += f"/{pattern if len(pattern) <= _MAX_PATTERN and pattern.isprintable() else CUT}/"
    length = _format_length(schema, "minLength", "maxLength", trivial=1)
    return f"{text}({length})" if length else text


def _format_range(schema: Json) -> str:
    low, high, above, below, step = (
        _format_number(schema.get(name))
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    )
    parts = [f"{low}..{high}" if low or high else "", above and f">{above}", below and f"<{below}"]
    parts.append(f"step {step}" if step and step != "1" else "")
    return "".join(f" {part}" for part in parts if part)


def _format_number(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return f"{value:.15g}" if is_number else ""


def _format_length(schema: Json, minimum: str, maximum: str, *, trivial: int) -> str:
    """Format limits of a length. Those that arguments hardly ever exceed are left out."""
    low, high = (_format_number(schema.get(name)) for name in (minimum, maximum))
    low = low if low and float(low) > trivial else ""
    high = high if high and float(high) <= _MAX_COUNT else ""
    return f"{low}..{high}" if low or high else ""


def _get_list(schema: Json, name: str) -> Sequence[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _get_dict(schema: Json, name: str) -> Json:
    value = schema.get(name)
    return value if isinstance(value, dict) else {}
