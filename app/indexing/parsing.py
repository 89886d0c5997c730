"""Parses a server's tool list into definitions. Pure functions.

An invalid tool is refused with a reason; the other tools of the list are accepted.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.errors import InvalidInput
from app.indexing.icons import list_valid_icons
from app.indexing.prompt_injection import find_instructions
from app.indexing.sanitize import Finding, sanitize
from app.mcp_client.surrogates import LONE_SURROGATE
from app.mcp_types import ToolDefinition
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, canonical_json, iter_strings, parse_json

MAX_TOOL_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 2_000
"""Counts objects and lists, not values: real tools have enums of thousands of values."""
MAX_NAME_CHARACTERS = 128
MAX_LISTED_REFUSALS = 100
_MAX_NAMES_IN_WARNING = 10
_JSON_SCHEMA_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


@dataclass(frozen=True)
class ListedTool:
    definition: ToolDefinition
    """Sanitized: without characters that a person cannot see."""
    fingerprint: str
    """Hash of the definition as the server sent it."""
    findings: Sequence[Finding] = ()
    fingerprint_of_version_1: str | None = None
    """The hash that versions up to 0.2 would have stored; None for a tool that was read from the database."""


@dataclass(frozen=True)
class Refusal:
    name: str | None
    reason: str


@dataclass(frozen=True)
class Listing:
    tools: Sequence[ListedTool]
    refused_count: int = 0
    refused: Sequence[Refusal] = ()
    """Only the first ones, so that a list of invalid tools cannot fill the database."""
    warnings: Sequence[str] = ()
    ttl_s: float | None = None
    """For so long the server expects no change; None if it does not say."""

    @property
    def definitions(self) -> list[ToolDefinition]:
        return [tool.definition for tool in self.tools]


class _Refused(Exception):
    """Refuses one tool. Never raised out of this module."""


def parse_listing(raw_tools: Iterable[Any], *, max_tools: int) -> Listing:
    """Parse and sanitize a list of tools. Of two tools with the same name the first one is used."""
    tools: dict[str, ListedTool] = {}
    refused: list[Refusal] = []
    refused_count = 0
    duplicates: set[str] = set()
    for position, raw in enumerate(raw_tools, start=1):
        try:
            tool = parse_tool(raw)
            name = tool.definition.name
            if name in tools:
                duplicates.add(name)
            elif len(tools) >= max_tools:
                raise _Refused(f"the server has more than {max_tools} tools")
            else:
                tools[name] = tool
        except _Refused as refusal:
            refused_count += 1
            if len(refused) < MAX_LISTED_REFUSALS:
                shown_name = _printable_name(raw)
                where = "" if shown_name else f" (tool number {position} of the list)"
                refused.append(Refusal(shown_name, f"{refusal}{where}"))
    warnings = [f"the tool {name!r} is listed more than once; the first one is used" for name in sorted(duplicates)]
    return Listing(list(tools.values()), refused_count, refused, [*warnings, *_warn_about_types(tools)])


def _warn_about_types(tools: Mapping[str, ListedTool]) -> Iterator[str]:
    """Warn about types that are not part of JSON Schema. The tools are accepted, since their server may know them."""
    unknown = [name for name, tool in tools.items() if not _has_known_types(tool.definition.input_schema)]
    if unknown:
        names = ", ".join(map(repr, unknown[:_MAX_NAMES_IN_WARNING]))
        more = " and others" if len(unknown) > _MAX_NAMES_IN_WARNING else ""
        yield (
            f"the input schemas of {names}{more} contain types that JSON Schema does not define: "
            "a model provider may reject a whole request because of one such tool"
        )


def _has_known_types(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return True
    declared = schema.get("type", [])
    types = declared if isinstance(declared, list) else [declared]
    known = all(isinstance(each, str) and each in _JSON_SCHEMA_TYPES for each in types)
    return known and all(map(_has_known_types, _subschemas(schema)))


def _subschemas(schema: Json) -> Iterator[Any]:
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(part := schema.get(key), dict):
            yield from part.values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(part := schema.get(key), list):
            yield from part
    yield from (schema.get(key) for key in ("items", "additionalProperties", "not"))


def parse_definition(raw: Any) -> ToolDefinition | Refusal:
    """Parse and sanitize a single tool, without looking for injected instructions: nobody would see the findings."""
    try:
        definition = _parse_raw(raw)
        sanitized, _ = sanitize(definition.as_mcp())
        return _remove_invalid_icons(_make_definition(sanitized, definition.name))
    except (_Refused, ValueError) as refusal:
        return Refusal(None, str(refusal))


def parse_tool(raw: Any) -> ListedTool:
    definition = _parse_raw(raw)
    try:
        return sanitize_definition(definition)
    except ValueError as error:
        raise _Refused(str(error)) from error


def _parse_raw(raw: Any) -> ToolDefinition:
    if not isinstance(raw, dict):
        raise _Refused("a tool must be an object")
    name = _parse_name(raw.get("name"))
    _check_shape(raw)
    raw = _to_strict_json(raw)
    if len(canonical_json(raw)) > MAX_TOOL_BYTES:
        raise _too_large()
    if "inputSchema" not in raw and (other := raw.keys() & {"input_schema", "parameters"}):
        raise _Refused(f"the schema must be named `inputSchema`, not `{min(other)}`")
    if _requires_task(raw):
        raise _Refused("the tool can only be run as a task, which Toolscout does not support")
    definition = _make_definition(raw, name)
    _check_input_schema(definition.input_schema)
    return definition


def _check_input_schema(schema: Json) -> None:
    """Check what MCP and the model providers check: a provider rejects all tools of a request for one bad schema."""
    if schema.get("type") != "object":
        raise _Refused('`inputSchema` must describe an object: `"type": "object"`')
    if not isinstance(schema.get("properties", {}), dict):
        raise _Refused("`inputSchema.properties` must be an object")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _Refused("`inputSchema.required` must be a list of names")


def sanitize_definition(definition: ToolDefinition) -> ListedTool:
    """Return the sanitized definition with its findings. Raises `ValueError` if it cannot be sanitized."""
    original = definition.as_mcp()
    sanitized, hidden = sanitize(original)
    clean = definition if sanitized is original else _make_definition(sanitized, definition.name)
    # no model reads icons, and encoded images contain any sequence of letters
    read_by_models = {name: value for name, value in sanitized.items() if name != "icons"}
    return ListedTool(
        _remove_invalid_icons(clean),
        definition.fingerprint(),
        [*hidden, *find_instructions(read_by_models)],
        definition.fingerprint_of_version_1(),
    )


def _remove_invalid_icons(definition: ToolDefinition) -> ToolDefinition:
    return definition if definition.icons is None else replace(definition, icons=list_valid_icons(definition.icons))


def _make_definition(raw: Json, name: str) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        title=_get_optional(raw, "title", str),
        description=_get_optional(raw, "description", str) or "",
        input_schema=_add_type(_get_optional(raw, "inputSchema", dict) or {"properties": {}}),
        output_schema=_get_optional(raw, "outputSchema", dict),
        annotations=_get_optional(raw, "annotations", dict),
        meta=_get_optional(raw, "_meta", dict),
        # of another type they are ignored: a tool works without its icons
        icons=icons if isinstance(icons := raw.get("icons"), list) else None,
        execution=execution if isinstance(execution := raw.get("execution"), dict) else None,
    )


def _add_type(schema: Json) -> Json:
    """Add the type, which is always an object: providers require it."""
    return schema if "type" in schema else {"type": "object", **schema}


def _check_shape(raw: Json) -> None:
    """Check depth, size and characters. Depth comes first: our limit must apply before that of a serializer."""
    nodes, level = 0, [raw]
    for _ in range(MAX_DEPTH):
        nodes += sum(isinstance(value, dict | list) for value in level)
        level = [child for value in level for child in _children(value)]
        if not level:
            break
    else:
        raise _Refused(f"the definition is nested deeper than {MAX_DEPTH} levels")
    if nodes > MAX_NODES:
        raise _Refused(f"the definition has {nodes} objects and lists, more than {MAX_NODES}")
    if sum(len(text) for text in iter_strings(raw)) > MAX_TOOL_BYTES:
        raise _too_large()
    if any("\0" in text for text in iter_strings(raw)):
        raise _Refused("the definition contains a NUL character, which cannot be stored")
    if any(LONE_SURROGATE in text for text in iter_strings(raw)):
        raise _Refused("the definition contains half of a surrogate pair, or U+FFFF, which are not characters")


def _requires_task(raw: Json) -> bool:
    """Return whether the tool can only be run as a task: such a tool must not be found, since it cannot be run."""
    execution = raw.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def _too_large() -> _Refused:
    return _Refused(f"the definition is larger than {MAX_TOOL_BYTES // 1024} KiB")


def _to_strict_json(raw: Json) -> Json:
    """Convert to what our own JSON parser accepts: the client's parser also accepts NaN and lone surrogates."""
    try:
        value: Json = parse_json(json.dumps(raw, allow_nan=False).encode())
    except (ValueError, InvalidInput) as error:
        raise _Refused("the definition contains values that JSON cannot represent") from error
    return value


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _parse_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise _Refused("a tool needs a name")
    if len(name) > MAX_NAME_CHARACTERS:
        raise _Refused(f"the name is longer than {MAX_NAME_CHARACTERS} characters")
    if not _is_printable(name):
        raise _Refused("the name contains characters that cannot be displayed")
    return name


def _get_optional(raw: Json, key: str, kind: type) -> Any:
    value = raw.get(key)
    if value is not None and not isinstance(value, kind):
        raise _Refused(f"`{key}` must be {'an object' if kind is dict else 'a string'}")
    return value


def _printable_name(raw: Any) -> str | None:
    """Return the name with replacement characters for what cannot be displayed, some of which cannot be stored."""
    name = raw.get("name") if isinstance(raw, dict) else None
    if not isinstance(name, str):
        return None
    return "".join(each if _is_printable(each) else "\ufffd" for each in name[:MAX_NAME_CHARACTERS])


def _is_printable(text: str) -> bool:
    """Return whether every character is visible. For Python, fillers and variation selectors are printable, too."""
    return text.isprintable() and remove_hidden(text) == text
