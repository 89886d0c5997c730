"""The meta-tools: a few fixed tools that find and run all others.

Models read the names, descriptions and schemas below. Every conversation pays for each of their words. Limits that a
model need not know are checked, but not listed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson

from app.auth.permissions import Permission
from app.errors import InvalidInput
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
    "maxResults": "limit top_k k",
    "top_k": "limit max_results k",
    "server": "server_name name",
}
"""What models call these arguments of the meta-tools."""


_COUNT_SCHEMA = {"type": "integer", "minimum": 1, "maximum": 50}
_UNLISTED_PROPERTIES: dict[str, Json] = {
    "tool_discovery": {
        # `maxItems` before `items`, so that a list that is too long is rejected before its items use up the budget.
        "query": {"type": "array", "minItems": 1, "maxItems": 10, "items": {"type": "string"}},
        "maxResults": _COUNT_SCHEMA,
    },
    "tool_execute": {"confirmationToken": {"type": "string"}},
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
        # In a thread, because checking a megabyte of arguments takes long.
        await asyncio.to_thread(check_arguments, self.input_schema, arguments, self._synonyms)
        return await self.handler(replace(call, arguments=arguments))

    def _coerce_arguments(self, arguments: Json) -> Json:
        """Models often send a string instead of a list of strings, or an object as JSON text."""
        types = {name: schema.get("type") for name, schema in self.definition["inputSchema"]["properties"].items()}
        return {name: _coerce(value, types.get(name)) for name, value in arguments.items()}

    @cached_property
    def _synonyms(self) -> dict[str, str]:
        properties = self.definition["inputSchema"]["properties"]
        return {word: name for name in properties for word in _SYNONYMS.get(name, "").split()}

    @cached_property
    def input_schema(self) -> str:
        """The schema that arguments are checked against. Unlike the listed one, which is kept short, it rejects unknown
        arguments."""
        listed = self.definition["inputSchema"]
        properties = listed["properties"] | _UNLISTED_PROPERTIES.get(self.name, {})
        return orjson.dumps(listed | {"properties": properties, "additionalProperties": False}).decode()


def _coerce(value: Any, expected_type: str | None) -> Any:
    if isinstance(value, str) and expected_type == "array":
        return [value]
    if isinstance(value, str) and expected_type == "object":
        with suppress(InvalidInput):
            return parse_json(value.encode())
    return value


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
                "context": _string_schema("what it is about"),
                "maxResults": {"type": "integer"},
                "detail": {"enum": ["full", "brief"], "description": "brief: no schemas"},
            },
            "query",
        ),
        _DISCOVERY_OUTPUT_SCHEMA,
        names_contents=True,
        readOnlyHint=True,
    ),
    _make_tool(
        "tool_execute",
        Permission.EXECUTE,
        execute_tool,
        "Run a tool by the toolKey that tool_discovery gave. Returns its result; an error says what to correct.",
        _object_schema(
            {
                "toolKey": _string_schema(),
                "arguments": {"type": "object", "description": "as its input schema says"},
            },
            "toolKey",
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
        "Get a tool's full definition, to read before tool_execute.",
        _object_schema({"toolKey": _string_schema()}, "toolKey"),
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
