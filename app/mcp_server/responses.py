"""Results of the meta-tools: structured content for programs, and a short text for models. No I/O."""

from collections.abc import Iterator, Sequence

from app.catalog.availability import describe_availability
from app.catalog.definitions import ServerSummary, ToolDefinitionView
from app.discovery.selection import SelectedTool
from app.errors import ArgumentsInvalid, AuthorizationRequired, ServerUnreachable, ToolFailed, ToolscoutError
from app.mcp_meta import filter_meta
from app.text.strict_json import Json, dump_json, load_json

ERROR_META = "toolscout/error"
TRUNCATED_META = "toolscout/truncated"
TOOLS_META = "toolscout/tools"
"""Icons and `_meta` of the tools in a result, by their ids: for hosts, so that no model pays for them."""
_MAX_BRIEF = 160
_MAX_DEFINITIONS = 100_000
"""Characters of definitions in one result, about 25,000 tokens; the first definition is always included."""
_MAX_TOOLS_META = 200_000
"""Characters of icons and `_meta` in one result."""
_WITHOUT_SCHEMAS = "Some tools are shown without their schemas, which are long: ask for fewer tools to see them."
_LEFT_OUT = "{} more left out, because the schemas are long: tool_discovery finds them, too."
_IN_BRIEF = 'Shown in brief: ask again with detail "full" for the input schemas.'

_ADVICE = {
    "TOOL_NOT_FOUND": "Call tool_discovery and copy a toolKey from its results.",
    "TOOL_VALIDATION_ERROR": "Nothing was run. Correct the arguments, then call again.",
    "SERVER_CONNECTION_ERROR": "Nothing was run. Try again later, or use another tool.",
    "CONFIRMATION_REQUIRED": "Show the user the tool and the arguments, and ask whether to run it. Only if the user "
    "agrees, call again with the same arguments and with confirmationToken {confirmation_token!r}. Never confirm by "
    "yourself.",
    "unavailable": "Nothing was run. Try again in a few seconds.",
}
_PUSH_ADVICE = "Nothing was run, and trying again will not help: tell the user, or use another tool."
_LINK_ADVICE = "Nothing was run. Show the user this link to sign in, and call again once the user has done so:"
_SIGN_IN_ADVICE = "Nothing was run. Ask the user to sign in to the server, and call again after that."
_MAY_HAVE_RUN = "It may have run: find out before you call it again."
_MAX_SCHEMA = 10_000


def make_result(structured: Json, text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def render_error(error: ToolscoutError) -> Json:
    """Tell a model what is wrong with which argument, and what to do next."""
    lines = [f"{error.code}: {error.message}"]
    # The message contains the first five errors.
    lines += [f"- {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in (error.errors or ())[5:]]
    if error.called_tool is not None:
        lines.append(f"The tool was {error.called_tool.tool} of {error.called_tool.server}.")
    lines += _advise(error)
    fields = {"code": error.code, "message": error.message, **error.all_members}
    if error.errors is not None:
        fields["errors"] = list(error.errors)
    return {
        "content": [{"type": "text", "text": "\n".join(lines)}],
        "isError": True,
        "_meta": {ERROR_META: fields},
    }


def _advise(error: ToolscoutError) -> Iterator[str]:
    if isinstance(error, ToolFailed) and error.outcome == "unknown":
        yield _MAY_HAVE_RUN
    elif isinstance(error, ServerUnreachable) and error.cause == "push":
        yield _PUSH_ADVICE
    elif isinstance(error, AuthorizationRequired):
        yield _SIGN_IN_ADVICE if error.authorization_url is None else f"{_LINK_ADVICE} {error.authorization_url}"
    elif error.code in _ADVICE:
        yield _ADVICE[error.code].format(**error.members)
    if isinstance(error, ArgumentsInvalid) and error.schema is not None and len(error.schema) <= _MAX_SCHEMA:
        yield f"The input schema: {error.schema}"


def mark_truncated(result: Json, limit: int) -> Json:
    """Add a notice for the model and a mark for programs to a result that was truncated."""
    notice = {"type": "text", "text": f"[truncated: the whole result is larger than {limit} bytes]"}
    return result | {"content": [*result["content"], notice], "_meta": {TRUNCATED_META: True}}


def forward_result(result: Json) -> Json:
    """Return the server's result without the `_meta` keys that only Toolscout may set."""
    meta = filter_meta(result.get("_meta"))
    return {name: value for name, value in result.items() if name != "_meta"} | ({"_meta": meta} if meta else {})


def adapt_to_older_clients(result: Json) -> Json:
    """Older clients accept only objects as structured content; other values are also in the content, as text."""
    if isinstance(result.get("structuredContent", {}), dict):
        return result
    return {name: value for name, value in result.items() if name != "structuredContent"}


def render_tools(tools: Sequence[SelectedTool], hint: str | None, *, brief: bool) -> Json:
    full_count = 0 if brief else _count_fitting(tools)
    results = [_tool_result(tool, brief=position >= full_count) for position, tool in enumerate(tools)]
    structured: Json = {"results": results}
    if full_count < len(tools):
        hints = [hint, _IN_BRIEF if brief else _WITHOUT_SCHEMAS]
        hint = " ".join(part for part in hints if part is not None)
    if hint is not None:
        structured["hint"] = hint
    texts = [_tool_text(result, tool.definition) for result, tool in zip(results, tools, strict=True)]
    text = "\n\n".join(texts if hint is None else [*texts, hint])
    return make_result(structured, text) | _make_tools_meta([tool.definition for tool in tools[:full_count]])


def _count_fitting(tools: Sequence[SelectedTool]) -> int:
    """Return how many tools, from the first on, fit into one result with their definitions."""
    left = _MAX_DEFINITIONS
    for position, tool in enumerate(tools):
        definition = tool.definition
        left -= len(definition.description) + len(definition.input_schema) + len(definition.output_schema or "")
        if left < 0 and position > 0:
            return position
    return len(tools)


def _tool_result(tool: SelectedTool, *, brief: bool) -> Json:
    definition = tool.definition
    result: Json = {
        "toolKey": definition.tool_id,
        "toolName": definition.name,
        "serverName": definition.server_name,
        "description": shorten_description(definition.description) if brief else definition.description,
        "relevance": round(min(max(tool.score or 0.0, 0.0), 1.0), 3),
    }
    if tool.explanation:
        result["explanation"] = tool.explanation
    if not brief:
        result |= _parse_schemas(definition)
    if definition.flags:
        result["flags"] = list(definition.flags)
    return result


def _tool_text(result: Json, tool: ToolDefinitionView) -> str:
    lines = [
        f"{result['toolName']} of {result['serverName']} ({result['relevance']:.2f})",
        f"toolKey: {result['toolKey']}",
    ]
    if "explanation" in result:
        lines.append(f"why: {result['explanation']}")
    if result["description"]:
        lines.append(result["description"])
    if "inputSchema" in result:
        lines.append(f"arguments: {dump_json(result['inputSchema']).decode()}")
    if tool.server_status is not None and tool.availability != "runnable":
        lines.append(f"Note: {describe_availability(tool.availability)}")
    if "flags" in result:
        lines.append(f"Beware, flagged: {', '.join(result['flags'])}")
    return "\n".join(lines)


def render_schemas(tools: Sequence[SelectedTool], hint: str | None) -> Json:
    count = _count_fitting(tools)
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


def render_servers(servers: Sequence[ServerSummary]) -> Json:
    items = [{"name": s.name, "description": s.description, "tools": s.tools, "status": s.status} for s in servers]
    lines = [f"{s.name} ({_describe_server(s)}) {shorten_description(s.description or '')}".rstrip() for s in servers]
    return make_result({"servers": items}, "\n".join(lines) or "no server has a tool that you may use")


def _describe_server(server: ServerSummary) -> str:
    return f"{server.tools} tools" + (", needs a sign-in" if server.status == "needs_authorization" else "")


def render_tool_list(definitions: Sequence[ToolDefinitionView], cursor: str | None) -> Json:
    items = [
        {
            "toolKey": definition.tool_id,
            "name": definition.name,
            "description": shorten_description(definition.description),
        }
        for definition in definitions
    ]
    lines = [f"{item['toolKey']} {item['name']}: {item['description']}" for item in items]
    structured: Json = {"tools": items}
    if cursor is not None:
        structured["nextCursor"] = cursor
        lines.append(f"There are more: call again with cursor {cursor!r}.")
    return make_result(structured, "\n".join(lines) or "there are no more tools")


def render_details(definition: ToolDefinitionView) -> Json:
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
    structured = {name: value for name, value in fields.items() if value not in (None, [])}
    return make_result(structured, dump_json(structured).decode()) | _make_tools_meta([definition])


def _make_tools_meta(definitions: Sequence[ToolDefinitionView]) -> Json:
    """Return the `_meta` of a result that shows these tools in full."""
    tools: Json = {}
    left = _MAX_TOOLS_META
    for definition in definitions:
        texts = {"icons": definition.icons, "_meta": definition.meta}
        fields = {name: text for name, text in texts.items() if text is not None}
        left -= sum(map(len, fields.values()))
        if left < 0:
            break
        if fields:
            tools[definition.tool_id] = {name: load_json(text) for name, text in fields.items()}
    return {"_meta": {TOOLS_META: tools}} if tools else {}


def _parse_schemas(definition: ToolDefinitionView) -> Json:
    texts = {
        "inputSchema": definition.input_schema,
        "outputSchema": definition.output_schema,
        "annotations": definition.annotations,
    }
    return {name: load_json(text) for name, text in texts.items() if text is not None}


def shorten_description(description: str) -> str:
    """Return the first line, shortened."""
    first_line = next(iter(description.strip().splitlines()), "").rstrip()
    return first_line if len(first_line) <= _MAX_BRIEF else f"{first_line[:_MAX_BRIEF].rstrip()}…"
