"""From what a server says it offers to the definitions that we take. Pure.

A bad tool is refused alone, with its reason; its siblings are indexed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.indexing.injection import find_instructions
from app.indexing.sanitize import Finding, sanitize
from app.mcp_types import ToolDefinition
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, canonical_json, iter_strings

MAX_TOOL_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 2_000
"""Objects and lists: real tools have enums of thousands of values."""
MAX_NAME_CHARACTERS = 128
MAX_SHOWN_REFUSALS = 100
_MOST_NAMED = 10
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


@dataclass(frozen=True)
class ListedTool:
    definition: ToolDefinition
    """Cleaned: nothing in it that a person could not see."""
    fingerprint: str
    """Of the definition as its server has it."""
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class Refusal:
    name: str | None
    reason: str


@dataclass(frozen=True)
class Listing:
    tools: Sequence[ListedTool]
    refused_count: int = 0
    refused: Sequence[Refusal] = ()
    """The first of them: a list of nothing but rubbish must not fill the database."""
    warnings: Sequence[str] = ()

    @property
    def definitions(self) -> list[ToolDefinition]:
        return [tool.definition for tool in self.tools]


class _Refused(Exception):
    """Ends the reading of one tool; never leaves this module."""


def parse_listing(raw_tools: Iterable[Any], *, max_tools: int) -> Listing:
    tools: dict[str, ListedTool] = {}
    refused: list[Refusal] = []
    refused_count = 0
    doubled: set[str] = set()
    for position, raw in enumerate(raw_tools, start=1):
        try:
            tool = read_tool(raw)
            name = tool.definition.name
            if name in tools:
                doubled.add(name)
            elif len(tools) >= max_tools:
                raise _Refused(f"the server already has {max_tools} tools")
            else:
                tools[name] = tool
        except _Refused as refusal:
            refused_count += 1
            if len(refused) < MAX_SHOWN_REFUSALS:
                shown = _shown_name(raw)
                where = "" if shown else f" (number {position} of the list)"
                refused.append(Refusal(shown, f"{refusal}{where}"))
    warnings = [f"the tool {each!r} was listed more than once; the first one was taken" for each in sorted(doubled)]
    return Listing(list(tools.values()), refused_count, refused, [*warnings, *_warnings_of_types(tools)])


def _warnings_of_types(tools: Mapping[str, ListedTool]) -> Iterator[str]:
    """Their servers may know what they mean, so they are not refused."""
    odd = [name for name, tool in tools.items() if not _has_known_types(tool.definition.input_schema)]
    if odd:
        named = ", ".join(map(repr, odd[:_MOST_NAMED])) + (" and others" if len(odd) > _MOST_NAMED else "")
        yield (
            f"types that JSON Schema does not know are in the input schemas of {named}: "
            "models' providers may refuse all tools of a request for one of them"
        )


def _has_known_types(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return True
    named = schema.get("type", [])
    types = named if isinstance(named, list) else [named]
    known = all(isinstance(each, str) and each in _TYPES for each in types)
    return known and all(map(_has_known_types, _schemas_within(schema)))


def _schemas_within(schema: Json) -> Iterator[Any]:
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(part := schema.get(key), dict):
            yield from part.values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(part := schema.get(key), list):
            yield from part
    yield from (schema.get(key) for key in ("items", "additionalProperties", "not"))


def parse_definition(raw: Any) -> ToolDefinition | Refusal:
    """A tool without siblings, cleaned. Orders are not looked for in it: there is nobody to tell of them."""
    try:
        definition = _read(raw)
        shown, _ = sanitize(definition.as_mcp())
        return _definition(shown, definition.name)
    except (_Refused, ValueError) as refusal:
        return Refusal(None, str(refusal))


def read_tool(raw: Any) -> ListedTool:
    definition = _read(raw)
    try:
        return sanitize_definition(definition)
    except ValueError as error:
        raise _Refused(str(error)) from error


def _read(raw: Any) -> ToolDefinition:
    if not isinstance(raw, dict):
        raise _Refused("a tool must be an object")
    name = _name(raw.get("name"))
    _check_shape(raw)
    raw = _as_json(raw)
    if len(canonical_json(raw)) > MAX_TOOL_BYTES:
        raise _too_large()
    if "inputSchema" not in raw and (other := raw.keys() & {"input_schema", "parameters"}):
        raise _Refused(f"MCP calls the schema `inputSchema`, not `{min(other)}`")
    if _runs_only_as_a_task(raw):
        raise _Refused("it can be run only as a task, which is not done here")
    definition = _definition(raw, name)
    _check_input_schema(definition.input_schema)
    return definition


def _check_input_schema(schema: Json) -> None:
    """As far as MCP and the models' providers do: of one that they refuse, they refuse all tools beside it, too."""
    if schema.get("type") != "object":
        raise _Refused('`inputSchema` must describe an object: `"type": "object"`')
    if not isinstance(schema.get("properties", {}), dict):
        raise _Refused("`inputSchema.properties` must be an object")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _Refused("`inputSchema.required` must be a list of names")


def sanitize_definition(definition: ToolDefinition) -> ListedTool:
    """Cleaned, with whatever in it a person should know of. Raises `ValueError` where it cannot be cleaned."""
    said = definition.as_mcp()
    shown, hidden = sanitize(said)
    clean = definition if shown is said else _definition(shown, definition.name)
    return ListedTool(clean, definition.fingerprint(), [*hidden, *find_instructions(shown)])


def _definition(raw: Json, name: str) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        title=_optional(raw, "title", str),
        description=_optional(raw, "description", str) or "",
        input_schema=_with_type(_optional(raw, "inputSchema", dict) or {"properties": {}}),
        output_schema=_optional(raw, "outputSchema", dict),
        annotations=_optional(raw, "annotations", dict),
        meta=_optional(raw, "_meta", dict),
    )


def _with_type(schema: Json) -> Json:
    """Arguments are always an object; providers want to hear it."""
    return schema if "type" in schema else {"type": "object", **schema}


def _check_shape(raw: Json) -> None:
    """Depth before anything else: serialisers have limits of their own, which must not decide for us."""
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
        raise _Refused("the definition holds a NUL character, which cannot be stored")


def _runs_only_as_a_task(raw: Json) -> bool:
    """What cannot be run is not to be found."""
    execution = raw.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def _too_large() -> _Refused:
    return _Refused(f"the definition is larger than {MAX_TOOL_BYTES // 1024} KiB")


def _as_json(raw: Json) -> Json:
    """As our own reader has it. What a server sent was read by a more lenient one, which knows NaN, lone surrogates and
    integers without an end."""
    try:
        value: Json = orjson.loads(json.dumps(raw, allow_nan=False))
    except ValueError as error:
        raise _Refused("the definition holds what JSON cannot carry") from error
    return value


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise _Refused("a tool needs a name")
    if len(name) > MAX_NAME_CHARACTERS:
        raise _Refused(f"the name is longer than {MAX_NAME_CHARACTERS} characters")
    if not _can_be_shown(name):
        raise _Refused("the name holds characters that cannot be shown")
    return name


def _optional(raw: Json, key: str, kind: type) -> Any:
    value = raw.get(key)
    if value is not None and not isinstance(value, kind):
        raise _Refused(f"`{key}` must be {'an object' if kind is dict else 'a text'}")
    return value


def _shown_name(raw: Any) -> str | None:
    """What cannot be shown cannot be stored either, some of it."""
    name = raw.get("name") if isinstance(raw, dict) else None
    if not isinstance(name, str):
        return None
    return "".join(each if _can_be_shown(each) else "\ufffd" for each in name[:MAX_NAME_CHARACTERS])


def _can_be_shown(text: str) -> bool:
    """Python calls fillers and variation selectors printable, though nothing is drawn."""
    return text.isprintable() and remove_hidden(text) == text
