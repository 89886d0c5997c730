"""Results that show tools: structured content for programs, and a text for models. No I/O.

A client shows its model one of the two. Both say the same, and a tool is shown in one of three ways:

full     its whole definition
compact  its signature, the first line of its description, and notes on parameters that the signature does not explain
brief    the first line of its description
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from app.catalog.availability import describe_availability
from app.catalog.definitions import ToolDefinitionView
from app.catalog.tool_keys import make_short_key
from app.discovery.selection import SelectedTool
from app.errors import ToolscoutError
from app.execution.resource_uris import rewrite_ui_links
from app.mcp_server.responses import make_result, shorten_description
from app.text.parameter_notes import make_parameter_notes
from app.text.signatures import CUT, format_signature
from app.text.strict_json import Json, dump_json, load_json

Detail = Literal["full", "compact", "brief"]

TOOLS_META = "toolscout/tools"
"""Icons and `_meta` of the tools in a result, by their toolKeys: for hosts, so that no model pays for them."""
_MAX_DEFINITIONS = 100_000
"""Characters of definitions in one result, about 25,000 tokens; the first definition is always included."""
_MAX_TOOLS_META = 200_000
"""Characters of icons and `_meta` in one result."""
_TOKENS_BESIDE = 75
"""About as many tokens as a result in full has besides the definition: the keys, the server, the relevance and why."""
_SOME_COMPACT = "Some tools are shown without their schemas, which are long: ask for fewer tools to see them."
_LEFT_OUT = "{} more left out, because the schemas are long: tool_discovery finds them, too."
_IN_BRIEF = 'Shown in brief: ask again with detail "full" for the input schemas.'
_COMPACT = "Shown as toolKey(arguments), ? is optional; describe [toolKey] shows a whole definition."
_ALL = "All of these: {}."
_SOME_CUT = f"Do so before you run one with {CUT}."


def choose_detail(tools: Sequence[SelectedTool], max_tokens: int) -> Detail:
    """Choose how much to show if the caller does not say: all, unless that takes more than `max_tokens`."""
    tokens = sum(tool.definition.tokens + _TOKENS_BESIDE for tool in tools)
    return "full" if tokens <= max_tokens else "compact"


def render_tools(tools: Sequence[SelectedTool], hint: str | None, *, detail: Detail) -> Json:
    full_count = _count_fitting([tool.definition for tool in tools]) if detail == "full" else 0
    other_detail = "compact" if detail == "full" else detail
    results = [
        _render_tool(tool.definition, detail if position < full_count else other_detail, tool)
        for position, tool in enumerate(tools)
    ]
    hints = [hint]
    if full_count < len(tools):
        hints += [_SOME_COMPACT if detail == "full" else _IN_BRIEF if detail == "brief" else _describe_compact(results)]
    definitions = [tool.definition for tool in tools]
    return _make_tools_result(results, definitions, " ".join(part for part in hints if part is not None))


def render_definitions(definitions: Sequence[ToolDefinitionView], errors: Mapping[str, ToolscoutError]) -> Json:
    """Render what `describe` asks for: whole definitions, and an error for each key that names no tool, or several."""
    full_count = _count_fitting(definitions)
    results = [
        _render_tool(definition, "full" if position < full_count else "compact")
        for position, definition in enumerate(definitions)
    ]
    hint = _SOME_COMPACT if full_count < len(definitions) else ""
    return _add_errors(_make_tools_result(results, definitions, hint), errors, is_empty=not definitions)


def render_details(definition: ToolDefinitionView) -> Json:
    structured = _make_details(definition)
    return make_result(structured, dump_json(structured).decode()) | _make_tools_meta({definition.tool_id: definition})


def render_many_details(definitions: Sequence[ToolDefinitionView], errors: Mapping[str, ToolscoutError]) -> Json:
    count = _count_fitting(definitions)
    structured: Json = {"tools": [_make_details(definition) for definition in definitions[:count]]}
    if count < len(definitions):
        structured["hint"] = _LEFT_OUT.format(len(definitions) - count)
    result = make_result(structured, dump_json(structured).decode())
    result |= _make_tools_meta({definition.tool_id: definition for definition in definitions[:count]})
    return _add_errors(result, errors, is_empty=not definitions)


def render_schemas(tools: Sequence[SelectedTool], hint: str | None) -> Json:
    count = _count_fitting([tool.definition for tool in tools])
    if count < len(tools):
        hint = " ".join(part for part in (hint, _LEFT_OUT.format(len(tools) - count)) if part is not None)
    schemas = [
        {
            "toolKey": tool.definition.tool_id,
            "name": tool.definition.name,
            "serverName": tool.definition.server_name,
            "description": tool.definition.description,
            "inputSchema": load_json(tool.definition.input_schema),
            "similarity": None if tool.similarity is None else round(tool.similarity, 4),
        }
        for tool in tools[:count]
    ]
    structured: Json = {"tools": schemas} | ({} if hint is None else {"hint": hint})
    return make_result(structured, dump_json(structured).decode())


def render_tool_list(definitions: Sequence[ToolDefinitionView], cursor: str | None) -> Json:
    items = [
        {
            "toolKey": definition.tool_id,
            "name": definition.name,
            "description": shorten_description(definition.description),
        }
        for definition in definitions
    ]
    keys = [make_short_key(definition) or f"{definition.tool_id} {definition.name}" for definition in definitions]
    lines = [f"{key}: {item['description']}" for key, item in zip(keys, items, strict=True)]
    structured: Json = {"tools": items}
    if cursor is not None:
        structured["nextCursor"] = cursor
        lines.append(f"There are more: call again with cursor {cursor!r}.")
    return make_result(structured, "\n".join(lines) or "there are no more tools")


def _count_fitting(definitions: Sequence[ToolDefinitionView]) -> int:
    """Return how many tools, from the first on, fit into one result with their definitions."""
    left = _MAX_DEFINITIONS
    for position, definition in enumerate(definitions):
        left -= len(definition.description) + len(definition.input_schema) + len(definition.output_schema or "")
        if left < 0 and position > 0:
            return position
    return len(definitions)


def _make_tools_result(results: Sequence[Json], definitions: Sequence[ToolDefinitionView], hint: str) -> Json:
    notes = [_describe_problem(definition) for definition in definitions]
    is_shared = len(notes) > 1 and notes[0] is not None and len(set(notes)) == 1
    texts = [
        _make_text(result, definition, None if is_shared else note)
        for result, definition, note in zip(results, definitions, notes, strict=True)
    ]
    texts += [_ALL.format(notes[0])] if is_shared else []
    structured: Json = {"results": list(results)} | ({"hint": hint} if hint else {})
    meta = {
        result["toolKey"]: definition
        for result, definition in zip(results, definitions, strict=True)
        if "inputSchema" in result or "signature" in result
    }
    return make_result(structured, "\n\n".join([*texts, hint] if hint else texts)) | _make_tools_meta(meta)


def _render_tool(definition: ToolDefinitionView, detail: Detail, found: SelectedTool | None = None) -> Json:
    """Render a tool; `found` says how it was found."""
    short = shorten_description(definition.description)
    result: Json = {
        **_make_names(definition, detail),
        "description": definition.description if detail == "full" else short,
    }
    if found is not None:
        result["relevance"] = round(min(max(found.score or 0.0, 0.0), 1.0), 3)
    if found is not None and found.explanation and detail != "compact":
        result["explanation"] = found.explanation
    if detail == "full":
        result |= _parse_schemas(definition)
    elif detail == "compact":
        schema = load_json(definition.input_schema)
        result["signature"] = format_signature(definition.name, schema).text
        if notes := make_parameter_notes(definition.name, short, schema):
            result["parameters"] = notes
    if definition.flags:
        result["flags"] = list(definition.flags)
    return result


def _make_names(definition: ToolDefinitionView, detail: Detail) -> Json:
    """Return the keys and the names; in a compact result the short key instead of the id, if there is one."""
    short_key = None if detail == "brief" else make_short_key(definition)
    names = {"toolName": definition.name, "serverName": definition.server_name}
    if short_key is None:
        return {"toolKey": definition.tool_id} | names
    if detail == "compact":
        return {"toolKey": short_key} | names
    return {"toolKey": definition.tool_id, "shortKey": short_key} | names


def _describe_problem(definition: ToolDefinitionView) -> str | None:
    """Say why Toolscout may not be able to run the tool; None if it is able to."""
    if definition.server_status is None or definition.availability == "runnable":
        return None
    return describe_availability(definition.availability)


def _make_text(result: Json, definition: ToolDefinitionView, note: str | None) -> str:
    lines = _make_compact_head(result, definition) if "signature" in result else _make_head(result)
    lines += [result["description"]] if result["description"] else []
    if "inputSchema" in result:
        lines.append(f"arguments: {dump_json(result['inputSchema']).decode()}")
    lines += [f"{name}: {text}" for name, text in result.get("parameters", {}).items()]
    lines += [f"Note: {note}"] if note is not None else []
    if "flags" in result:
        lines.append(f"Beware, flagged: {', '.join(result['flags'])}")
    return "\n".join(lines)


def _make_head(result: Json) -> list[str]:
    relevance = f" ({result['relevance']:.2f})" if "relevance" in result else ""
    lines = [f"{result['toolName']} of {result['serverName']}{relevance}", f"toolKey: {result['toolKey']}"]
    return lines + ([f"why: {result['explanation']}"] if "explanation" in result else [])


def _make_compact_head(result: Json, definition: ToolDefinitionView) -> list[str]:
    """Begin the signature with the key, where the key ends with the name."""
    server, key = definition.server_name, result["toolKey"]
    if key == f"{server}.{definition.name}":
        return [f"{server}.{result['signature']}"]
    return [f"toolKey: {key}", f"{result['signature']} of {server}"]


def _describe_compact(results: Sequence[Json]) -> str:
    is_cut = any(CUT in result["signature"] for result in results)
    return f"{_COMPACT} {_SOME_CUT}" if is_cut else _COMPACT


def _make_details(definition: ToolDefinitionView) -> Json:
    fields: Json = {
        "toolKey": definition.tool_id,
        "name": definition.name,
        "title": definition.title,
        "serverName": definition.server_name,
        "serverStatus": definition.server_status,
        "description": definition.description,
        "flags": list(definition.flags),
        **_parse_schemas(definition),
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _add_errors(result: Json, errors: Mapping[str, ToolscoutError], *, is_empty: bool) -> Json:
    """Name the keys that name no tool. The result is an error if all of them are such keys."""
    if not errors:
        return result
    rows = [
        {"toolKey": key, "code": error.code, "message": error.message, **error.members} for key, error in errors.items()
    ]
    lines = [f"{row['toolKey']}: {row['code']}: {row['message']}" for row in rows]
    text = "\n".join(filter(None, [result["content"][0]["text"], *lines]))
    added = make_result(result["structuredContent"] | {"errors": rows}, text)
    return result | added | ({"isError": True} if is_empty else {})


def _make_tools_meta(definitions: Mapping[str, ToolDefinitionView]) -> Json:
    """Return the `_meta` of a result that shows these tools, by their toolKeys there."""
    tools: Json = {}
    left = _MAX_TOOLS_META
    for key, definition in definitions.items():
        texts = {"icons": definition.icons, "_meta": definition.meta}
        fields = {name: text for name, text in texts.items() if text is not None}
        left -= sum(map(len, fields.values()))
        if left < 0:
            break
        if fields:
            parsed = {name: load_json(text) for name, text in fields.items()}
            tools[key] = _rewrite_links(parsed, definition)
    return {"_meta": {TOOLS_META: tools}} if tools else {}


def _rewrite_links(fields: Json, definition: ToolDefinitionView) -> Json:
    """Let links to user interfaces lead to the tool's server. Those of push servers are for the backend to read."""
    if "_meta" not in fields or definition.server_id is None or definition.server_status == "push":
        return fields
    return fields | {"_meta": rewrite_ui_links(definition.server_id, fields["_meta"])}


def _parse_schemas(definition: ToolDefinitionView) -> Json:
    texts = {
        "inputSchema": definition.input_schema,
        "outputSchema": definition.output_schema,
        "annotations": definition.annotations,
    }
    return {name: load_json(text) for name, text in texts.items() if text is not None}
