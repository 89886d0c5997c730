"""The meta-tools: a few fixed tools that find and run all others.

Models read the names, descriptions and schemas below. Every conversation pays for each of their words, and a list
that is the same for everybody stays in the provider's prompt cache.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson

from app.auth.permissions import Caller, Permission
from app.catalog.definitions import list_server_definitions, list_server_summaries
from app.catalog.tool_keys import read_tool, require_visible_key
from app.catalog.visibility import Scope
from app.container import Container
from app.discovery.discover import discover, discover_each
from app.discovery.models import Discovery
from app.discovery.request import DiscoveryRequest
from app.discovery.selection import interleave_selections
from app.errors import ArgumentsInvalid, ConfirmationRequired, InvalidInput, NotFound
from app.execution.argument_validation import check_arguments
from app.execution.execute import execute, execute_with_progress
from app.execution.models import ExecutionRequest
from app.mcp_server import confirmation, responses
from app.mcp_types import Dialogue
from app.search.query import Query, parse_query_with_context
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, parse_json

_PAGE_SIZE = 100
_NOTHING_CONNECTED = "There are no tools to search: none is connected. Asking again will not help."
_NOTHING_HERE = (
    "There are no tools to search here: some are connected, but rules, switches or the project hide them all."
)
_SYNONYMS = {
    "arguments": "args input params parameters tool_input",
    "toolKey": "tool tool_name tool_id name id key",
    "query": "message text prompt task q",
    "maxResults": "limit top_k k",
    "top_k": "limit max_results k",
    "server": "server_name name",
}
"""What models call these arguments of the meta-tools."""


_UNLISTED_PROPERTIES = {"tool_execute": {"confirmationToken": {"type": "string"}}}
"""Arguments that an error tells a model about when it needs them, so that no other conversation pays for them."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a meta-tool and its caller."""

    container: Container
    caller: Caller
    project_id: str | None
    arguments: Json
    on_progress: Callable[[Json], Awaitable[None]] | None = None
    """Receives progress reports; None if the client did not ask for them."""
    dialogue: Dialogue | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.caller.require_user().id, self.container.model.id, project_id=self.project_id)


@dataclass(frozen=True)
class MetaTool:
    name: str
    permission: Permission
    definition: Json
    handler: Callable[[ToolCall], Awaitable[Json]]

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


async def _discover(call: ToolCall) -> Json:
    """Leave out core tools: the application already has them and runs them itself."""
    discoverer, arguments = call.container.discoverer, call.arguments
    queries = [
        _parse_query(query, arguments.get("context", ""), position) for position, query in enumerate(arguments["query"])
    ]
    limit = _to_integer(arguments.get("maxResults"))
    request = DiscoveryRequest(
        queries[0], call.project_id, limit=limit, include_core_tools=False, describe=True, interface="mcp"
    )
    discoveries = await discover_each(discoverer, call.caller, request, queries)
    options = discoveries[0].options
    max_results = min(options.limit, discoverer.limit_tools(options))
    found = interleave_selections([discovery.tools for discovery in discoveries], max_results)
    hints = (
        _make_hint(discoveries, arguments["query"]),
        _describe_uncertainty(discoveries, arguments["query"]),
        _describe_omission(discoveries, "maxResults"),
    )
    hint = " ".join(each for each in hints if each is not None) or None
    return responses.render_tools(found, hint, brief=arguments.get("detail") == "brief")


def _parse_query(query: str, context: str, position: int) -> Query:
    if not remove_hidden(query).strip():
        error = {"loc": ["arguments", "query", position], "msg": "describe the task", "type": "minLength"}
        raise ArgumentsInvalid(f"arguments.query.{position}: describe the task", errors=[error])
    return parse_query_with_context(query, context)


def _to_integer(number: float | None) -> int | None:
    """In JSON, 8.0 is an integer too."""
    return None if number is None else int(number)


def _make_hint(discoveries: Sequence[Discovery], queries: Sequence[str]) -> str | None:
    """Tell the model what to try next, or None if the results need no hint."""
    first = discoveries[0]
    if first.strategy is None:
        return "Search is switched off for this project: ask its administrator which tools to use."
    if all(discovery.searched == 0 for discovery in discoveries):
        return _NOTHING_HERE if first.no_match_reason == "filtered_out" else _NOTHING_CONNECTED
    degraded = _describe_degradation(discoveries)
    empty = [query for query, discovery in zip(queries, discoveries, strict=True) if not discovery.tools]
    if len(empty) < len(queries):
        not_found = f"Nothing was found for {', '.join(map(repr, empty))}." if empty else None
        return " ".join(hint for hint in (not_found, degraded) if hint is not None) or None
    no_match = (
        f"None of {first.searched} tools fits. Ask again in other words, with one action and its object in each query, "
        "or go on without a tool."
    )
    return no_match if degraded is None else f"{no_match} {degraded}"


def _describe_uncertainty(discoveries: Sequence[Discovery], queries: Sequence[str]) -> str | None:
    """Name the queries whose tools may not fit. A degraded search has a hint of its own."""
    pairs = zip(queries, discoveries, strict=True)
    uncertain = [query for query, each in pairs if each.tools and each.confidence == "low" and not each.degraded_reason]
    if not uncertain:
        return None
    subject = "The results" if len(queries) == 1 else f"The results for {', '.join(map(repr, uncertain))}"
    return f"{subject} are uncertain: run a tool only if its description fits."


def _describe_omission(discoveries: Sequence[Discovery], argument: str) -> str | None:
    """Say that there was no room for all tools, and which argument makes room."""
    if not any(discovery.omitted_tools for discovery in discoveries):
        return None
    return f"More tools were found than there is room for: a higher {argument} shows them."


def _describe_degradation(discoveries: Sequence[Discovery]) -> str | None:
    reasons = [discovery.degraded_reason for discovery in discoveries if discovery.degraded_reason]
    if not reasons:
        return None
    if reasons[0] == "disabled":
        return "Search is switched off for this user: these tools are not ranked by the query."
    return f"Search is degraded ({reasons[0]}): the best tool may be missing."


async def _execute(call: ToolCall) -> Json:
    executor, arguments = call.container.executor, call.arguments
    request = ExecutionRequest(
        scope=call.scope,
        actor=call.caller.actor,
        arguments=arguments.get("arguments", {}),
        tool_key=arguments["toolKey"],
        dialogue=None if call.dialogue is None else confirmation.take_answer(call.dialogue),
        confirmation_token=arguments.get("confirmationToken"),
    )
    try:
        if call.on_progress is None:
            executed = await execute(executor, request)
        else:
            executed = await execute_with_progress(executor, request, call.on_progress)
    except ConfirmationRequired as error:
        if call.dialogue is None or not confirmation.can_ask(call.dialogue):
            raise
        return confirmation.make_question(error, request.arguments)
    if executed.truncated:
        return responses.mark_truncated(executed.result, executor.max_result_bytes)
    return responses.forward_result(executed.result)


async def _list_servers(call: ToolCall) -> Json:
    async with call.container.database.transaction(call.scope.user_id) as session:

        async def read() -> Json:
            return responses.render_servers(await list_server_summaries(session, call.scope))

        return await call.container.listing_cache.get_list(session, call.scope, (), read)


async def _list_tools(call: ToolCall) -> Json:
    server, after = call.arguments["server"], call.arguments.get("cursor", "")
    async with call.container.database.transaction(call.scope.user_id) as session:

        async def read() -> Json:
            definitions = await list_server_definitions(session, call.scope, server, after, _PAGE_SIZE + 1)
            if not definitions and not after:
                raise NotFound(f"no server named {server!r} has a tool that you may use: call list_servers")
            page = definitions[:_PAGE_SIZE]
            return responses.render_tool_list(page, page[-1].name if len(definitions) > _PAGE_SIZE else None)

        return await call.container.listing_cache.get_list(session, call.scope, (server, after), read)


async def _get_tool_details(call: ToolCall) -> Json:
    async with call.container.database.transaction(call.scope.user_id) as session:
        given_key = call.arguments["toolKey"]
        tool_id = await require_visible_key(session, call.scope, given_key)

        async def read() -> Json:
            return responses.render_details(await read_tool(session, call.scope, tool_id, given_key))

        return await call.container.listing_cache.get_details(session, call.scope, tool_id, read)


async def _search_tools(call: ToolCall) -> Json:
    discoverer, arguments = call.container.discoverer, call.arguments
    request = DiscoveryRequest(
        _parse_query(arguments["query"], "", 0),
        call.project_id,
        strategy="semantic",
        limit=_to_integer(arguments.get("top_k")),
        fill=True,
        include_core_tools=False,
        interface="mcp",
    )
    discovery = await discover(discoverer, call.caller, request)
    hints = _make_hint([discovery], [arguments["query"]]), _describe_omission([discovery], "top_k")
    return responses.render_schemas(discovery.tools, " ".join(each for each in hints if each is not None) or None)


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
    **annotations: Any,
) -> MetaTool:
    definition = {"name": name, "description": description, "inputSchema": input_schema}
    if output_schema is not None:
        definition["outputSchema"] = output_schema
    if annotations:
        definition["annotations"] = annotations
    return MetaTool(name, permission, definition, handler)


_COUNT_SCHEMA = {"type": "integer", "minimum": 1, "maximum": 50}
_DISCOVERY_OUTPUT_SCHEMA = {
    "type": "object",
    "properties": {
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    **{name: {"type": "string"} for name in ("toolKey", "toolName", "serverName", "description")},
                    "relevance": {"type": "number"},
                    "explanation": {"type": "string"},
                    **{name: {"type": "object"} for name in ("inputSchema", "outputSchema", "annotations")},
                },
                "required": ["toolKey", "toolName"],
            },
        },
        "hint": {"type": "string"},
    },
    "required": ["results"],
}

BASIC_TOOLS: Sequence[MetaTool] = (
    _make_tool(
        "tool_discovery",
        Permission.DISCOVER,
        _discover,
        "Find tools: hundreds are connected. Call it first when your other tools cannot do a task. "
        "Returns the best matches, each with its toolKey and input schema; run one with tool_execute.",
        _object_schema(
            {
                "query": {
                    "type": "array",
                    # Before `items`, so that a list that is too long is rejected before its items use up the budget.
                    "minItems": 1,
                    "maxItems": 10,
                    "items": _string_schema(),
                    "description": "a phrase for each thing to do: create a calendar event",
                },
                "context": _string_schema("what it is about"),
                "maxResults": _COUNT_SCHEMA,
                "detail": {"enum": ["full", "brief"], "description": "brief: no schemas"},
            },
            "query",
        ),
        _DISCOVERY_OUTPUT_SCHEMA,
        readOnlyHint=True,
    ),
    _make_tool(
        "tool_execute",
        Permission.EXECUTE,
        _execute,
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
        _list_servers,
        "List the servers behind the tools.",
        _object_schema({}),
        readOnlyHint=True,
    ),
    _make_tool(
        "list_tools",
        Permission.READ_TOOLS,
        _list_tools,
        "List, in brief, all tools of a server that list_servers named.",
        _object_schema({"server": _string_schema(), "cursor": _string_schema()}, "server"),
        readOnlyHint=True,
    ),
    _make_tool(
        "get_tool_details",
        Permission.READ_TOOLS,
        _get_tool_details,
        "Get a tool's full definition, to read before tool_execute.",
        _object_schema({"toolKey": _string_schema()}, "toolKey"),
        readOnlyHint=True,
    ),
    _make_tool(
        "search_tools",
        Permission.DISCOVER,
        _search_tools,
        "Get the schemas of the tools most similar to one query.",
        _object_schema({"query": _string_schema(), "top_k": _COUNT_SCHEMA}, "query"),
        readOnlyHint=True,
    ),
)
