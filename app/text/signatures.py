"""Signatures: a tool's input schema as one short line from which a model can write arguments.

    search_issues(query: string, state?: "open"|"closed", labels?: string[], assignee?: {login: string})

The notation is that of TypeScript, with formats (`string<date-time>`), patterns (`string/^[a-z]+$/`), ranges (`integer
1..100`) and lengths (`string(..80)`, `string[1..5]` for a list of one to five). Required parameters come first, and `…`
stands for what was left out. Schemas come from strangers: any JSON is taken, and the work and the length are bounded.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

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
_MAX_INDEX_DIGITS = 6
_ANY = "any"
_NEVER = "never"
_INCOMPLETE = "\0incomplete"
"""Marks a schema of which a part could not be found or merged. No server can send this name, as NUL is refused."""
_CONDITIONS = ("anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies", _INCOMPLETE)
_TIGHTEST: Mapping[str, Callable[[float, float], float]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
}
_SHOWN = ("const", "anyOf", "oneOf", "format", "pattern", "multipleOf", "prefixItems", "items", *_TIGHTEST)
"""Keywords that are shown, so that two different values of one cannot pass for one of them."""


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
        without = (_NEVER,) if is_nullable else (_NEVER, "null")
        options = [option for option in options if option not in without] or options[:1]
        return [_ANY] if _ANY in options else options[:_MAX_OPTIONS] + [CUT] * (len(options) > _MAX_OPTIONS)

    def _list_options(self, schema: Any, depth: int, nesting: int) -> Iterator[str]:
        """Yield the alternatives of a type. `nesting` limits alternatives inside alternatives."""
        self._steps += 1
        if self._is_exhausted or nesting < 0:
            yield CUT
            return
        resolved = self._resolve(schema)
        schema = self._merge_all_of(resolved)
        if resolved is False or [] in (schema.get("type"), schema.get("enum")):
            yield _NEVER
        elif _INCOMPLETE in schema and not _get_dict(schema, "properties"):
            yield CUT
        elif "const" in schema:
            yield _format_literal(schema["const"])
        elif values := _get_list(schema, "enum"):
            yield from map(_format_literal, values[: _MAX_OPTIONS + 1])
        elif alternatives := _get_list(schema, "anyOf") or _get_list(schema, "oneOf"):
            self._count_work(len(schema))
            base = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf")}
            base |= {_INCOMPLETE: True} if "anyOf" in schema and "oneOf" in schema else {}
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
        if positions := _get_list(schema, "prefixItems") or _get_list(schema, "items"):
            parts = [self._format(each, depth - 1) for each in positions[:_MAX_OPTIONS]]
            return f"[{', '.join(parts + [CUT] * (len(positions) > _MAX_OPTIONS))}]"
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
        is_cut = len(properties) > _MAX_OPTIONS or any(name in schema for name in _CONDITIONS)
        return f"{{{', '.join(parts + [CUT] * is_cut)}}}"

    def _resolve(self, schema: Any) -> Any:
        """Follow references within the schema. One that leads nowhere, or in a circle, is marked."""
        followed = set[str]()
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            reference = schema["$ref"]
            self._steps += 1
            self._count_work(len(schema) + len(reference))
            beside = {name: value for name, value in schema.items() if name != "$ref"}
            if self._is_exhausted or reference in followed:
                return beside | {_INCOMPLETE: True}
            followed.add(reference)
            target = self._look_up(reference)
            self._count_work(len(target) if isinstance(target, dict) else 0)
            schema = self._merge(target, beside) if isinstance(target, dict) else target
        return schema

    def _look_up(self, reference: str) -> Any:
        """Return the part of the schema that a JSON pointer names."""
        pointer = unquote(reference.removeprefix("#"))
        is_pointer = reference.startswith("#") and pointer[:1] in ("", "/")
        found = self._root if is_pointer else None
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and len(key) <= _MAX_INDEX_DIGITS:
                found = next(iter(found[int(key) :]), None)
            else:
                found = None
                break
        return found if isinstance(found, dict | bool) else {_INCOMPLETE: True}

    def _merge_all_of(self, schema: Any, nesting: int = _MAX_NESTING) -> Json:
        """Return the schema with the parts of its `allOf`, and with theirs, merged into it."""
        if not isinstance(schema, dict) or not _get_list(schema, "allOf"):
            return schema if isinstance(schema, dict) else {}
        self._count_work(len(schema))
        merged = {name: value for name, value in schema.items() if name != "allOf"}
        for part in schema["allOf"]:
            self._steps += 1
            if self._is_exhausted or nesting <= 0:
                return merged | {_INCOMPLETE: True}
            resolved = self._resolve(part)
            other = {_INCOMPLETE: True} if resolved is False else self._merge_all_of(resolved, nesting - 1)
            merged = self._merge(merged, other)
        return merged

    def _merge(self, base: Json, other: Json) -> Json:
        """Return a schema that asks for both; only the first once the work is too much."""
        parts = (base, other, *(_get_dict(each, "properties") for each in (base, other)))
        lists = (_get_list(each, name) for each in (base, other) for name in ("required", "allOf", "enum"))
        self._count_work(sum(map(len, (*parts, *lists))))
        if self._is_exhausted:
            return base
        both = base | other
        for name in base.keys() & other.keys():
            if base[name] is not other[name]:
                both |= self._merge_keyword(name, base[name], other[name])
        return both

    def _merge_keyword(self, name: str, one: Any, two: Any) -> Json:
        """Return the value of a keyword that asks for both values, or a mark if there is no such value."""
        if isinstance(one, dict) and isinstance(two, dict):
            if name == "properties":
                shared = [each for each in one if each in two and one[each] is not two[each]]
                return {name: one | two | {each: {"allOf": [one[each], two[each]]} for each in shared}}
            if name in ("items", "additionalProperties"):
                return {name: {"allOf": [one, two]}}
        if isinstance(one, list) and isinstance(two, list):
            if name in ("required", "allOf"):
                return {name: [*one, *two]}
            if name == "enum":
                return {name: self._intersect(one, two)}
        if name == "type":
            return {name: _intersect_types(one, two)}
        if name in _TIGHTEST and all(isinstance(each, int | float) for each in (one, two)):
            return {name: _TIGHTEST[name](one, two)}
        is_same = not isinstance(one, dict | list) and one == two
        return {_INCOMPLETE: True} if name in _SHOWN and not is_same else {}

    def _intersect(self, one: Sequence[Any], two: Sequence[Any]) -> list[Any]:
        wanted, texts = {dump_json(value) for value in two}, [dump_json(value) for value in one]
        self._count_work(sum(map(len, (*wanted, *texts))))
        return [value for value, text in zip(one, texts, strict=True) if text in wanted]

    def _list_properties(self, schema: Json) -> list[tuple[str, Any, bool]]:
        """Return the name and the schema of each property, and whether it is required; required ones first."""
        properties, names = _get_dict(schema, "properties"), _get_list(schema, "required")
        self._count_work(len(properties) + len(names))
        required = dict.fromkeys(name for name in names if isinstance(name, str))
        return [
            *((name, properties.get(name, True), True) for name in required),
            *((name, part, False) for name, part in properties.items() if name not in required),
        ]


def _intersect_types(one: Any, two: Any) -> list[Any]:
    """Every integer is a number."""
    first, second = (each[:_MAX_OPTIONS] if isinstance(each, list) else [each] for each in (one, two))
    wide = [*second, *(["integer"] if "number" in second else [])]
    narrowed = ["integer"] if "integer" in second and "number" in first and "integer" not in first else []
    return [each for each in first if each in wide] + narrowed


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
