"""The meta-tools: a few fixed tools that find and run all others.

Models read the names, descriptions and schemas below. Every conversation pays for each of their words. Limits that a
model need not know are checked, but not listed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from app.auth.permissions import Permission
from app.errors import ArgumentsInvalid, InvalidInput
from app.execution.argument_validation import check_arguments
from app.mcp_server.catalog_handlers import get_tool_details, list_servers, list_tools
from app.mcp_server.discovery_handlers import discover_tools, search_tools
from app.mcp_server.execution_handlers import execute_tool
from app.mcp_server.tool_call import ToolCall
from app.text.strict_json import Json, parse_json

_SYNONYMS = {
    "arguments": "args input params parameters tool_input",
    "toolKey": "tool tool_name tool_id name id key",
    "query": "message text prompt task q",
    "describe": "tool_keys keys tools",
    "toolKeys": "tools keys ids",
    "calls": "tool_calls requests batch",
    "maxResults": "limit top_k k",
    "top_k": "limit max_results k",
    "server": "server_name name",
}
"""What models call these arguments of the meta-tools."""


_COUNT_SCHEMA = {"type": "integer", "minimum": 1, "maximum": 50}
_KEYS_SCHEMA = {"type": "array", "minItems": 1, "maxItems": 20, "items": {"type": "string"}}
_CALL_SCHEMA = {
    "type": "object",
    "properties": {
        "toolKey": {"type": "string"},
        "arguments": {"type": "object"},
        "confirmationToken": {"type": "string"},
    },
    "required": ["toolKey"],
    "additionalProperties": False,
}
_UNLISTED_PROPERTIES: dict[str, Json] = {
    "tool_discovery": {
        # `maxItems` before `items`, so that a list that is too long is rejected before its items use up the budget.
        "query": {"type": "array", "minItems": 1, "maxItems": 10, "items": {"type": "string"}},
        "describe": _KEYS_SCHEMA,
        "maxResults": _COUNT_SCHEMA,
    },
    "get_tool_details": {"toolKeys": _KEYS_SCHEMA},
    "tool_execute": {
        "confirmationToken": {"type": "string"},
        "calls": {"type": "array", "minItems": 1, "maxItems": 10, "items": _CALL_SCHEMA},
    },
    "search_tools": {"top_k": _COUNT_SCHEMA},
}
"""Properties that are checked in place of the listed ones, and arguments that an error tells a model about when it
needs them, so that no other conversation pays for them."""


@dataclass(frozen=True)
class MetaTool:
    name: str
    permission: Permission
    definition: Json
    handler: Callable[[ToolCall], Awaitable[Json]]
    names_contents: bool = False

    def describe(self, contents: str) -> Json:
        """Return the definition for a user. `contents` says what stands behind the tools."""
        if not self.names_contents or not contents:
            return self.definition
        return self.definition | {"description": f"{self.definition['description']} {contents}"}

    async def run(self, call: ToolCall) -> Json:
        call.caller.require_permission(self.permission)
        arguments = self._coerce_arguments(call.arguments)
        replacement = self._find_replacement(arguments)
        schema = self.input_schema if replacement is None else self._replacement_schema
        # In a thread, because checking a megabyte of arguments takes long.
        await asyncio.to_thread(check_arguments, schema, arguments, self._synonyms)
        if replacement is not None and replacement.replaced in arguments:
            problem = f"send either {replacement.replaced} or {replacement.name}, not both"
            error = {"loc": ["arguments", replacement.name], "msg": problem, "type": "not"}
            raise ArgumentsInvalid(f"arguments.{replacement.name}: {problem}", errors=[error])
        return await self.handler(replace(call, arguments=arguments))

    def _coerce_arguments(self, arguments: Json) -> Json:
        """Models often send a string instead of a list of strings, an object as JSON text, or an empty value for what
        they do not use, or what another argument replaces."""
        properties = self.definition["inputSchema"]["properties"]
        types = {name: schema.get("type") for name, schema in properties.items()}
        coerced = {
            name: _coerce(value, types.get(name))
            for name, value in arguments.items()
            if value != "" or "enum" not in properties.get(name, {})
        }
        if isinstance(coerced.get("calls"), list):
            coerced["calls"] = [_coerce_call(each) for each in coerced["calls"]]
        replacement = _REPLACEMENTS.get(self.name)
        if replacement is not None:
            given = {name for name in replacement if coerced.get(name)}
            empty = set(replacement) - given if given else {replacement.name}
            coerced = {name: value for name, value in coerced.items() if name not in empty or value}
        return coerced

    def _find_replacement(self, arguments: Json) -> "_Replacement | None":
        replacement = _REPLACEMENTS.get(self.name)
        return replacement if replacement is not None and replacement.name in arguments else None

    @cached_property
    def _synonyms(self) -> dict[str, str]:
        properties = self.definition["inputSchema"]["properties"]
        return {word: name for name in properties for word in _SYNONYMS.get(name, "").split()}

    @cached_property
    def input_schema(self) -> str:
        """The schema that arguments are checked against. Unlike the listed one, which is kept short, it rejects unknown
        arguments, and requires what is not replaced."""
        replacement = _REPLACEMENTS.get(self.name)
        return self._make_schema(self._required if replacement is None else [*self._required, replacement.replaced])

    @cached_property
    def _replacement_schema(self) -> str:
        return self._make_schema(self._required)

    @property
    def _required(self) -> list[str]:
        return list(self.definition["inputSchema"].get("required", ()))

    def _make_schema(self, required: Sequence[str]) -> str:
        listed = self.definition["inputSchema"]
        properties = listed["properties"] | _UNLISTED_PROPERTIES.get(self.name, {})
        strict = {"properties": properties, "required": required, "additionalProperties": False}
        return orjson.dumps(listed | strict).decode()


class _Replacement(NamedTuple):
    replaced: str
    name: str


_REPLACEMENTS = {
    "tool_discovery": _Replacement("query", "describe"),
    "tool_execute": _Replacement("toolKey", "calls"),
    "get_tool_details": _Replacement("toolKey", "toolKeys"),
}
"""The argument that each of these tools requires, unless another argument replaces it."""


def _coerce(value: Any, expected_type: str | None) -> Any:
    if isinstance(value, str) and expected_type == "array" and not value.strip():
        return []
    if isinstance(value, str) and expected_type == "array":
        with suppress(InvalidInput):
            parsed = parse_json(value.encode())
            return parsed if isinstance(parsed, list) else [value]
        return [value]
    if isinstance(value, str) and expected_type == "object":
        with suppress(InvalidInput):
            return parse_json(value.encode())
    return value


def _coerce_call(call: Any) -> Any:
    call = _coerce(call, "object")
    if not isinstance(call, dict) or "arguments" not in call:
        return call
    return call | {"arguments": _coerce(call["arguments"], "object")}


def _string_schema(description: str | None = None) -> Json:
    return {"type": "string"} if description is None else {"type": "string", "description": description}


def _object_schema(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _make_tool(
    name: str,
    permission: Permission,
    handler: Callable[[ToolCall], Awaitable[Json]],
    description: str,
    input_schema: Json,
    output_schema: Json | None = None,
    *,
    names_contents: bool = False,
    **annotations: Any,
) -> MetaTool:
    definition = {"name": name, "description": description, "inputSchema": input_schema}
    if output_schema is not None:
        definition["outputSchema"] = output_schema
    if annotations:
        definition["annotations"] = annotations
    return MetaTool(name, permission, definition, handler, names_contents)


_DISCOVERY_OUTPUT_SCHEMA = {"type": "object", "required": ["results"]}
"""Short, because some clients count it, or show it to the model."""

BASIC_TOOLS: Sequence[MetaTool] = (
    _make_tool(
        "tool_discovery",
        Permission.DISCOVER,
        discover_tools,
        "Find tools for a task that your other tools cannot do; call it before you say that you cannot. "
        "Returns the best matches, each with its toolKey and arguments; run them with tool_execute.",
        _object_schema(
            {
                "query": {
                    "type": "array",
                    "items": _string_schema(),
                    "description": "a phrase for each thing to do: create a calendar event",
                },
                "describe": {
                    "type": "array",
                    "items": _string_schema(),
                    "description": "instead of query: toolKeys whose whole definition to show",
                },
                "context": _string_schema("what it is about"),
                "category": _string_schema(),
                "maxResults": {"type": "integer"},
                "detail": {"enum": ["compact", "full", "brief"]},
            },
        ),
        _DISCOVERY_OUTPUT_SCHEMA,
        names_contents=True,
        readOnlyHint=True,
    ),
    _make_tool(
        "tool_execute",
        Permission.EXECUTE,
        execute_tool,
        "Run a tool that tool_discovery found, or several at once. Returns its result; an error says what to correct.",
        _object_schema(
            {
                "toolKey": _string_schema(),
                "arguments": {"type": "object"},
                "calls": {
                    "type": "array",
                    "items": {"type": "object"},
                    "description": "for several: [{toolKey, arguments}]",
                },
            }
        ),
    ),
)

ALL_TOOLS: Sequence[MetaTool] = (
    *BASIC_TOOLS,
    _make_tool(
        "list_servers",
        Permission.READ_TOOLS,
        list_servers,
        "List the servers of the tools.",
        _object_schema({}),
        readOnlyHint=True,
    ),
    _make_tool(
        "list_tools",
        Permission.READ_TOOLS,
        list_tools,
        "List all tools of a server in brief.",
        _object_schema({"server": _string_schema(), "cursor": _string_schema()}, "server"),
        readOnlyHint=True,
    ),
    _make_tool(
        "get_tool_details",
        Permission.READ_TOOLS,
        get_tool_details,
        "Get full definitions of tools.",
        _object_schema({"toolKey": _string_schema(), "toolKeys": {"type": "array", "items": _string_schema()}}),
        readOnlyHint=True,
    ),
    _make_tool(
        "search_tools",
        Permission.DISCOVER,
        search_tools,
        "Get the schemas of the tools nearest to a query.",
        _object_schema({"query": _string_schema(), "top_k": {"type": "integer"}}, "query"),
        readOnlyHint=True,
    ),
)
