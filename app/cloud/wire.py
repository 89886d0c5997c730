"""What is sent to the cloud, and what it answers: the shapes of `POST /catalog/search`. Pure.

Names, descriptions and input schemas of visible tools and the text that is searched for are sent, and nothing else: no
user, no address or header of a server.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.catalog.definitions import SearchableTool
from app.errors import CloudFailed, InvalidInput
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, parse_json

MAX_TOOLS = 2_000
"""As many as `/catalog/search` takes."""
MAX_TOOLS_BYTES = 15 * 1024 * 1024
"""The size of the tools together; `/catalog/search` takes 16 MiB."""
_MAX_EXPLANATION = 300


@dataclass(frozen=True)
class CloudRequest:
    body: bytes
    tool_keys: frozenset[str]
    limit: int


@dataclass(frozen=True)
class CloudMatch:
    tool_key: str
    relevance: float
    explanation: str | None


def encode_request(query: str, context: str, tools: Sequence[SearchableTool], limit: int) -> CloudRequest:
    """Return the request for the tools, from the first on, as many as the cloud takes."""
    encoded: dict[str, bytes] = {}
    room = MAX_TOOLS_BYTES
    for tool in tools[:MAX_TOOLS]:
        part = orjson.dumps(_to_json(tool))
        room -= len(part) + 1
        if room < 0:
            break
        encoded[tool.tool_id] = part
    fields: Json = {"query": [query], "max_results": limit}
    if context:
        fields["context"] = context
    body = orjson.dumps(fields | {"tools": [orjson.Fragment(part) for part in encoded.values()]})
    return CloudRequest(body, frozenset(encoded), limit)


def _to_json(tool: SearchableTool) -> Json:
    return {
        "toolKey": tool.tool_id,
        "toolName": tool.name,
        "serverName": tool.server_name,
        "description": tool.description,
        "inputSchema": orjson.Fragment(tool.input_schema),
    }


def parse_answer(body: bytes, tool_keys: Container[str], limit: int) -> list[CloudMatch]:
    """Return the best matches, best first. Tools that were not sent are ignored.

    Raises `CloudFailed` if the answer does not have the documented shape.
    """
    try:
        answer = parse_json(body, "the answer")
    except InvalidInput as error:
        raise _invalid(error.message) from error
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list):
        raise _invalid("it has no list `results`")
    matches: dict[str, CloudMatch] = {}
    for match in map(_parse_result, results):
        if match.tool_key in tool_keys:
            matches.setdefault(match.tool_key, match)
    return sorted(matches.values(), key=lambda match: -match.relevance)[:limit]


def _parse_result(result: Any) -> CloudMatch:
    if not isinstance(result, dict) or not isinstance(result.get("toolKey"), str):
        raise _invalid("a result has no `toolKey`")
    relevance = result.get("relevance")
    if not isinstance(relevance, int | float) or isinstance(relevance, bool) or not 0 <= relevance <= 1:
        raise _invalid("the `relevance` of a result is not a number from 0 to 1")
    return CloudMatch(result["toolKey"], float(relevance), _clean(result.get("explanation")))


def _clean(explanation: Any) -> str | None:
    """Return one line without hidden characters: models and people read it."""
    if not isinstance(explanation, str):
        return None
    return " ".join(remove_hidden(explanation).split())[:_MAX_EXPLANATION] or None


def _invalid(message: str) -> CloudFailed:
    return CloudFailed("invalid_answer", f"the cloud's answer is not that of /catalog/search: {message}")
