"""What the meta-tools answer: for a program as structured content, for a model as few words as will do. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import orjson
from mcp_types import SERVER_INFO_META_KEY

from app.catalog.definitions import ServerSummary, ToolDefinitionView
from app.discovery.selection import SelectedTool
from app.errors import ArgumentsInvalid, ServerUnreachable, ToolFailed, ToolscoutError
from app.text.strict_json import Json

ERROR_META = "toolscout/error"
TRUNCATED_META = "toolscout/truncated"
_OURS = ("toolscout/", SERVER_INFO_META_KEY)
_BRIEF = 160
_ROOM = 100_000
"""Characters of definitions in one answer, about 25,000 tokens; the first is always shown in full."""
_WITHOUT_SCHEMAS = "Some are shown without their schemas, which are long: ask for less at once to see them."
_IN_BRIEF = 'Shown in brief: ask again with detail "full" for the input schemas.'

_ADVICE = {
    "TOOL_NOT_FOUND": "Call tool_discovery and copy a toolKey from its results.",
    "TOOL_VALIDATION_ERROR": "Nothing was run. Correct the arguments, then call again.",
    "SERVER_CONNECTION_ERROR": "Nothing was run. Try again later, or use another tool.",
    "unavailable": "Nothing was run. Try again in a few seconds.",
}
_NEVER_HERE = "Nothing was run, and it cannot be run from here later either: tell the user, or use another tool."
_LONGEST_SCHEMA = 10_000
_MAY_HAVE_RUN = "It may have run all the same: find out before you call it again."


def answer(structured: Json, text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def failure(error: ToolscoutError) -> Json:
    """Readable by a model: what is wrong with which argument, and what to do instead."""
    lines = [f"{error.code}: {error.message}"]
    lines += [f"- {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in (error.errors or ())[5:]]
    lines += _advice(error)
    told = {"code": error.code, "message": error.message, **error.members}
    if error.errors is not None:
        told["errors"] = list(error.errors)
    return {
        "content": [{"type": "text", "text": "\n".join(lines)}],
        "isError": True,
        "_meta": {ERROR_META: told},
    }


def _advice(error: ToolscoutError) -> Iterator[str]:
    if isinstance(error, ToolFailed) and error.outcome == "unknown":
        yield _MAY_HAVE_RUN
    elif isinstance(error, ServerUnreachable) and error.cause == "push":
        yield _NEVER_HERE
    elif error.code in _ADVICE:
        yield _ADVICE[error.code]
    if isinstance(error, ArgumentsInvalid) and error.schema is not None and len(error.schema) <= _LONGEST_SCHEMA:
        yield f"The input schema: {error.schema}"


def truncate_result(result: Json, limit: int) -> Json:
    """A result that was cut, with a word about it for the model and a mark for the program."""
    cut = {"type": "text", "text": f"[cut here: the whole result is larger than {limit} bytes]"}
    return result | {"content": [*result["content"], cut], "_meta": {TRUNCATED_META: True}}


def forward_result(result: Json) -> Json:
    """As the server gave it, but in our name, and without marks that only we may set."""
    meta = {name: value for name, value in result.get("_meta", {}).items() if not name.startswith(_OURS)}
    return {name: value for name, value in result.items() if name != "_meta"} | ({"_meta": meta} if meta else {})


def fit_for_older_clients(result: Json) -> Json:
    """Which know only objects as structured content; whatever else it is stands in the content as text."""
    if isinstance(result.get("structuredContent", {}), dict):
        return result
    return {name: value for name, value in result.items() if name != "structuredContent"}


def render_tools(tools: Sequence[SelectedTool], hint: str | None, *, brief: bool) -> Json:
    whole = 0 if brief else _fitting(tools)
    results = [_result(tool, brief=place >= whole) for place, tool in enumerate(tools)]
    structured: Json = {"results": results}
    if whole < len(tools):
        hints = [hint, _IN_BRIEF if brief else _WITHOUT_SCHEMAS]
        hint = " ".join(each for each in hints if each is not None)
    if hint is not None:
        structured["hint"] = hint
    words = [_told(tool, result) for tool, result in zip(tools, results, strict=True)]
    return answer(structured, "\n\n".join(words if hint is None else [*words, hint]))


def _fitting(tools: Sequence[SelectedTool]) -> int:
    """How many of them, from the first on, there is room for."""
    left = _ROOM
    for place, tool in enumerate(tools):
        offer = tool.definition
        left -= len(offer.description) + len(offer.input_schema) + len(offer.output_schema or "")
        if left < 0 and place > 0:
            return place
    return len(tools)


def _result(tool: SelectedTool, *, brief: bool) -> Json:
    offer = tool.definition
    result: Json = {
        "toolKey": offer.tool_id,
        "toolName": offer.name,
        "serverName": offer.server_name,
        "description": shorten_description(offer.description) if brief else offer.description,
        "relevance": round(min(max(tool.score or 0.0, 0.0), 1.0), 3),
    }
    if not brief:
        result |= _parsed(offer)
    if offer.flags:
        result["flags"] = list(offer.flags)
    return result


def _told(tool: SelectedTool, result: Json) -> str:
    lines = [f"{_called(tool.definition)} ({result['relevance']:.2f})", f"toolKey: {tool.definition.tool_id}"]
    if result["description"]:
        lines.append(result["description"])
    if "inputSchema" in result:
        lines.append(f"arguments: {orjson.dumps(result['inputSchema']).decode()}")
    if "flags" in result:
        lines.append(f"Beware, flagged: {', '.join(result['flags'])}")
    return "\n".join(lines)


def schemas(tools: Sequence[SelectedTool], hint: str | None) -> Json:
    found = [
        {
            "toolKey": tool.definition.tool_id,
            "name": tool.definition.name,
            "serverName": tool.definition.server_name,
            "description": tool.definition.description,
            "inputSchema": orjson.loads(tool.definition.input_schema),
            "similarity": None if tool.similarity is None else round(tool.similarity, 4),
        }
        for tool in tools[: _fitting(tools)]
    ]
    structured: Json = {"tools": found} | ({} if hint is None else {"hint": hint})
    return answer(structured, orjson.dumps(structured).decode())


def servers(offering: Sequence[ServerSummary]) -> Json:
    shown = [{"name": s.name, "description": s.description, "tools": s.tools, "status": s.status} for s in offering]
    lines = [f"{s.name} ({s.tools} tools) {shorten_description(s.description or '')}".rstrip() for s in offering]
    return answer({"servers": shown}, _lines(lines, "no server offers a tool that you may use"))


def tool_list(offers: Sequence[ToolDefinitionView], cursor: str | None) -> Json:
    shown = [
        {"toolKey": offer.tool_id, "name": offer.name, "description": shorten_description(offer.description)}
        for offer in offers
    ]
    lines = [f"{item['toolKey']} {item['name']}: {item['description']}" for item in shown]
    structured: Json = {"tools": shown}
    if cursor is not None:
        structured["nextCursor"] = cursor
        lines.append(f"There are more: call again with cursor {cursor!r}.")
    return answer(structured, _lines(lines, "there are no more"))


def details(offer: ToolDefinitionView) -> Json:
    shown: Json = {
        "toolKey": offer.tool_id,
        "name": offer.name,
        "title": offer.title,
        "serverName": offer.server_name,
        "serverStatus": offer.server_status,
        "description": offer.description,
        "flags": list(offer.flags),
        **_parsed(offer),
    }
    known = {name: value for name, value in shown.items() if value not in (None, [])}
    return answer(known, orjson.dumps(known).decode())


def _parsed(offer: ToolDefinitionView) -> Json:
    parts = {
        "inputSchema": offer.input_schema,
        "outputSchema": offer.output_schema,
        "annotations": offer.annotations,
    }
    return {name: orjson.loads(text) for name, text in parts.items() if text is not None}


def shorten_description(description: str) -> str:
    """Its first line, as far as one reads when skimming."""
    first = next(iter(description.strip().splitlines()), "").rstrip()
    return first if len(first) <= _BRIEF else f"{first[:_BRIEF].rstrip()}…"


def _called(offer: ToolDefinitionView) -> str:
    return f"{offer.name} of {offer.server_name}"


def _lines(lines: Iterable[str], otherwise: str) -> str:
    return "\n".join(lines) or otherwise
