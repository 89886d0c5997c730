"""The meta-tools that search: `tool_discovery` and `search_tools`."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from app.catalog.categories import find_by_name, list_categories, read_names
from app.catalog.definitions import ToolDefinitionView
from app.catalog.tool_keys import read_tools
from app.discovery.discover import discover, discover_each
from app.discovery.models import Discovery
from app.discovery.request import DiscoveryRequest
from app.discovery.selection import interleave_selections
from app.errors import ArgumentsInvalid, InvalidInput
from app.mcp_server import tool_results
from app.mcp_server.catalog_handlers import split_found
from app.mcp_server.contents import describe_categories, is_plain_category
from app.mcp_server.tool_call import ToolCall
from app.search.query import Query, parse_query_with_context
from app.text.invisible import remove_hidden
from app.text.strict_json import Json
from app.text.suggestions import suggest_name

_MAX_SCHEMAS_ON_LOOP = 100_000
"""Characters of input schemas: rendering as many takes a few milliseconds."""
_NOTHING_CONNECTED = "There are no tools to search: none is connected. Asking again will not help."
_NO_CATEGORIES = "There are no categories: all tools were searched."
_NOTHING_HERE = (
    "There are no tools to search here: some are connected, but rules, switches or the project hide them all."
)


async def discover_tools(call: ToolCall) -> Json:
    """Search, or show whole definitions."""
    return await (_describe_tools(call) if "describe" in call.arguments else _search(call))


async def _describe_tools(call: ToolCall) -> Json:
    keys = list(dict.fromkeys(call.arguments["describe"]))
    async with call.container.database.transaction(call.scope.user_id) as session:
        found = await read_tools(session, call.scope, keys)
    definitions, errors = split_found(found)
    return await _render(definitions, partial(tool_results.render_definitions, definitions, errors))


async def _search(call: ToolCall) -> Json:
    """Leave out core tools: the application already has them and runs them itself."""
    discoverer, arguments = call.container.discoverer, call.arguments
    queries = [
        _parse_query(query, arguments.get("context", ""), position) for position, query in enumerate(arguments["query"])
    ]
    # models leave an argument empty that they do not use
    category = arguments.get("category", "").strip()
    category_ids = await _find_category(call, category) if category else None
    request = DiscoveryRequest(
        queries[0],
        call.project_id,
        categories=category_ids,
        limit=_to_integer(arguments.get("maxResults")),
        include_core_tools=False,
        describe=True,
        interface="mcp",
    )
    discoveries = await discover_each(discoverer, call.caller, request, queries)
    options = discoveries[0].options
    max_results = min(options.limit, discoverer.limit_tools(options))
    found = interleave_selections([discovery.tools for discovery in discoveries], max_results)
    hints = (
        _NO_CATEGORIES if category and category_ids is None else None,
        _make_hint(discoveries, arguments["query"]),
        _describe_uncertainty(discoveries, arguments["query"]),
        _describe_omission(discoveries, "maxResults"),
    )
    hint = " ".join(each for each in hints if each is not None) or None
    detail = arguments.get("detail") or tool_results.choose_detail(found, call.container.settings.mcp_result_tokens)
    return await _render(
        [tool.definition for tool in found], partial(tool_results.render_tools, found, hint, detail=detail)
    )


async def _find_category(call: ToolCall, given: str) -> list[str] | None:
    """Return the ids of the category that the model gave by name or id; None if there are no categories.

    An error names those that there are, as far as the description of the tool may name them.
    """
    reader = call.container.database.reader(call.scope.user_id)
    names = await read_names(reader, call.scope)
    ids = [given] if given in names else find_by_name(names, given)
    if ids or not names:
        return ids or None
    categories = await list_categories(reader, call.scope)
    suggestion = suggest_name(given, filter(is_plain_category, names.values()))
    meant = "" if suggestion is None else f" Did you mean {suggestion!r}?"
    known = describe_categories(categories, call.container.count_tokens)
    raise InvalidInput(f"there is no such category; leave it out to search all tools.{meant} {known}".rstrip())


async def _render(definitions: Sequence[ToolDefinitionView], render: Callable[[], Json]) -> Json:
    """Render large definitions in a thread, because parsing them takes long, and others wait for the event loop."""
    is_large = sum(len(definition.input_schema) for definition in definitions) > _MAX_SCHEMAS_ON_LOOP
    return await asyncio.to_thread(render) if is_large else render()


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


async def search_tools(call: ToolCall) -> Json:
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
    return tool_results.render_schemas(discovery.tools, " ".join(each for each in hints if each is not None) or None)
