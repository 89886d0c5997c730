"""The few fixed tools that open all others. What stands here is what a model reads: every word is paid for by every
conversation, and the same bytes for everybody let a provider's prompt cache hold."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson

from app.auth.permissions import Caller, Permission
from app.catalog.definitions import list_server_definitions, list_server_summaries, read_definitions
from app.catalog.visibility import Scope
from app.container import Container
from app.discovery.discover import Discovery, discover
from app.discovery.request import Wishes, resolved
from app.discovery.selection import take_turns
from app.errors import ArgumentsInvalid, InvalidInput, NotFound, ToolNotFound
from app.execution.execute import ExecutionRequest, execute, execute_with_progress
from app.execution.validation import check_arguments
from app.mcp_server import responses
from app.search.query import Query, query_in_context
from app.text.strict_json import Dialogue, Json, parse_json

_PAGE = 100


@dataclass(frozen=True)
class ToolCall:
    """A call of a meta-tool, and what is known of whoever makes it."""

    container: Container
    caller: Caller
    project_id: str | None
    arguments: Json
    tell: Callable[[Json], Awaitable[None]] | None = None
    """Takes reports of progress, where the client wants them."""
    dialogue: Dialogue | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.caller.require_user().id, self.container.model.id, project_id=self.project_id)


@dataclass(frozen=True)
class MetaTool:
    name: str
    permission: Permission
    definition: Json
    deed: Callable[[ToolCall], Awaitable[Json]]

    async def answer(self, asked: ToolCall) -> Json:
        asked.caller.require_permission(self.permission)
        arguments = self._understood(asked.arguments)
        # in a thread, since a megabyte of them takes a while
        await asyncio.to_thread(check_arguments, self.input_schema, arguments)
        return await self.deed(replace(asked, arguments=arguments))

    def _understood(self, arguments: Json) -> Json:
        """Models often send one text where a list of texts is meant, or an object as its JSON."""
        kinds = {name: shape.get("type") for name, shape in self.definition["inputSchema"]["properties"].items()}
        return {name: _as_meant(value, kinds.get(name)) for name, value in arguments.items()}

    @cached_property
    def input_schema(self) -> str:
        """Stricter than the list says, where each word costs: an argument that nobody knows is an error."""
        return orjson.dumps(self.definition["inputSchema"] | {"additionalProperties": False}).decode()


def _as_meant(value: Any, kind: str | None) -> Any:
    if isinstance(value, str) and kind == "array":
        return [value]
    if isinstance(value, str) and kind == "object":
        with suppress(InvalidInput):
            return parse_json(value.encode())
    return value


async def _discover(asked: ToolCall) -> Json:
    """Core tools are left out: the application has them anyway, and runs them itself."""
    discoverer, given = asked.container.discoverer, asked.arguments
    queries = [_searched(query, given.get("context", ""), place) for place, query in enumerate(given["query"])]
    wishes = Wishes(queries[0], asked.project_id, limit=_whole(given.get("maxResults")), include_core_tools=False)
    ask = await resolved(discoverer, asked.caller, wishes)
    user = asked.caller.require_user()
    # one after the other: a single call is not to take up several connections
    discoveries = [await discover(discoverer, user, replace(ask, query=query)) for query in queries]
    found = take_turns([discovery.tools for discovery in discoveries], ask.limit)
    hint = _hint(discoveries, given["query"])
    return responses.render_tools(found, hint, brief=given.get("detail") == "brief")


def _searched(query: str, context: str, place: int) -> Query:
    if not query.strip():
        wrong = {"loc": ["arguments", "query", place], "msg": "say what is to be done", "type": "minLength"}
        raise ArgumentsInvalid(f"arguments.query.{place}: say what is to be done", errors=[wrong])
    return query_in_context(query, context)


def _whole(number: float | None) -> int | None:
    """To JSON 8.0 is an integer too."""
    return None if number is None else int(number)


def _hint(discoveries: Sequence[Discovery], queries: Sequence[str]) -> str | None:
    """What to try next, where there is something to try."""
    first = discoveries[0]
    if first.strategy is None:
        return "This project does not search: its tools are named by whoever set it up."
    if all(discovery.searched == 0 for discovery in discoveries):
        return "There are no tools to search: none is connected yet, or none may be used here."
    impaired = _impairment(discoveries)
    empty = [query for query, discovery in zip(queries, discoveries, strict=True) if not discovery.tools]
    if len(empty) < len(queries):
        nothing = f"Nothing was found for {', '.join(map(repr, empty))}." if empty else None
        return " ".join(each for each in (nothing, impaired) if each is not None) or None
    none = (
        f"None of {first.searched} tools fits. Ask again in other words, an action and what it is done to in each "
        "query, or go on without a tool."
    )
    return none if impaired is None else f"{none} {impaired}"


def _impairment(discoveries: Sequence[Discovery]) -> str | None:
    reasons = [discovery.degraded_reason for discovery in discoveries if discovery.degraded_reason]
    if not reasons:
        return None
    if reasons[0] == "disabled":
        return "Search is switched off for this user: these are simply the first of all tools."
    return f"The search is impaired ({reasons[0]}): the best tool may be missing."


async def _execute(asked: ToolCall) -> Json:
    container, given = asked.container, asked.arguments
    call = ExecutionRequest(
        scope=asked.scope,
        actor=asked.caller.actor,
        arguments=given.get("arguments", {}),
        tool_key=given["toolKey"],
        dialogue=asked.dialogue,
    )
    if asked.tell is None:
        executed = await execute(container.executor, call)
    else:
        executed = await execute_with_progress(container.executor, call, asked.tell)
    if executed.truncated:
        return responses.truncate_result(executed.result, container.executor.max_result_bytes)
    return responses.forward_result(executed.result)


async def _list_servers(asked: ToolCall) -> Json:
    async with asked.container.database.transaction(asked.scope.user_id) as session:
        return responses.servers(await list_server_summaries(session, asked.scope))


async def _list_tools(asked: ToolCall) -> Json:
    server, after = asked.arguments["server"], asked.arguments.get("cursor", "")
    async with asked.container.database.transaction(asked.scope.user_id) as session:
        offers = await list_server_definitions(session, asked.scope, server, after, _PAGE + 1)
    if not offers and not after:
        raise NotFound(f"no server named {server!r} offers a tool that you may use: call list_servers")
    page = offers[:_PAGE]
    return responses.tool_list(page, page[-1].name if len(offers) > _PAGE else None)


async def _get_tool_details(asked: ToolCall) -> Json:
    tool_key = asked.arguments["toolKey"]
    async with asked.container.database.transaction(asked.scope.user_id) as session:
        offers = await read_definitions(session, asked.scope, [tool_key], core=False)
    if tool_key not in offers.tools:
        raise ToolNotFound("there is no such tool, or it may not be used")
    return responses.details(offers.tools[tool_key])


async def _search_tools(asked: ToolCall) -> Json:
    discoverer, given = asked.container.discoverer, asked.arguments
    wishes = Wishes(
        _searched(given["query"], "", 0),
        asked.project_id,
        strategy="semantic",
        limit=_whole(given.get("top_k")),
        include_core_tools=False,
    )
    ask = await resolved(discoverer, asked.caller, wishes)
    discovery = await discover(discoverer, asked.caller.require_user(), ask)
    return responses.schemas(discovery.tools, _hint([discovery], [given["query"]]))


def _text(description: str | None = None) -> Json:
    return {"type": "string"} if description is None else {"type": "string", "description": description}


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _meta_tool(
    name: str,
    permission: Permission,
    deed: Callable[[ToolCall], Awaitable[Json]],
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
    return MetaTool(name, permission, definition, deed)


_COUNT = {"type": "integer", "minimum": 1, "maximum": 50}
_FOUND = {
    "type": "object",
    "properties": {
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    **{name: {"type": "string"} for name in ("toolKey", "toolName", "serverName", "description")},
                    "relevance": {"type": "number"},
                    **{name: {"type": "object"} for name in ("inputSchema", "outputSchema", "annotations")},
                },
                "required": ["toolKey", "toolName"],
            },
        },
        "hint": {"type": "string"},
    },
    "required": ["results"],
}

TWO_TOOLS: Sequence[MetaTool] = (
    _meta_tool(
        "tool_discovery",
        Permission.DISCOVER,
        _discover,
        "Find tools: hundreds stand behind this. Call it first when your other tools cannot do a task. "
        "Returns the best matches, each with its toolKey and input schema; run one with tool_execute. "
        "If none fits, ask in other words.",
        _object(
            {
                "query": {
                    "type": "array",
                    # before the items: a list so long that checking each takes too long is still too long
                    "minItems": 1,
                    "maxItems": 10,
                    "items": _text(),
                    "description": "a phrase for each thing to do: create a calendar event",
                },
                "context": _text("what it is about"),
                "maxResults": _COUNT,
                "detail": {"enum": ["full", "brief"], "description": "brief: no schemas"},
            },
            "query",
        ),
        _FOUND,
        readOnlyHint=True,
    ),
    _meta_tool(
        "tool_execute",
        Permission.EXECUTE,
        _execute,
        "Run a tool by the toolKey that tool_discovery gave. Returns its result; an error says what to correct.",
        _object(
            {
                "toolKey": _text(),
                "arguments": {"type": "object", "description": "as its input schema says"},
            },
            "toolKey",
        ),
    ),
)

ALL_TOOLS: Sequence[MetaTool] = (
    *TWO_TOOLS,
    _meta_tool(
        "list_servers",
        Permission.READ_TOOLS,
        _list_servers,
        "List the servers behind the tools.",
        _object({}),
        readOnlyHint=True,
    ),
    _meta_tool(
        "list_tools",
        Permission.READ_TOOLS,
        _list_tools,
        "List, in brief, all tools of a server that list_servers named.",
        _object({"server": _text(), "cursor": _text()}, "server"),
        readOnlyHint=True,
    ),
    _meta_tool(
        "get_tool_details",
        Permission.READ_TOOLS,
        _get_tool_details,
        "Get a tool's full definition, to read before tool_execute.",
        _object({"toolKey": _text()}, "toolKey"),
        readOnlyHint=True,
    ),
    _meta_tool(
        "search_tools",
        Permission.DISCOVER,
        _search_tools,
        "Get the schemas of the tools most similar to one query.",
        _object({"query": _text(), "top_k": _COUNT}, "query"),
        readOnlyHint=True,
    ),
)
