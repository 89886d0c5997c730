"""Render tool definitions in the formats of model APIs. Pure; the same tools give the same bytes.

Schemas are passed on as the JSON text that is stored, without parsing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson

from app.catalog.definitions import ToolDefinitionView

Format = Literal["mcp", "openai", "openai_responses", "anthropic"]


def to_mcp(tool: ToolDefinitionView, name: str) -> dict[str, Any]:
    rendered: dict[str, Any] = {"name": name}
    if tool.title is not None:
        rendered["title"] = tool.title
    rendered["description"] = tool.description
    rendered["inputSchema"] = orjson.Fragment(tool.input_schema)
    if tool.output_schema is not None:
        rendered["outputSchema"] = orjson.Fragment(tool.output_schema)
    if tool.annotations is not None:
        rendered["annotations"] = orjson.Fragment(tool.annotations)
    if tool.icons is not None:
        rendered["icons"] = orjson.Fragment(tool.icons)
    if tool.meta is not None:
        rendered["_meta"] = orjson.Fragment(tool.meta)
    return rendered


def _to_openai_function(tool: ToolDefinitionView, name: str) -> dict[str, Any]:
    return {"name": name, "description": tool.description, "parameters": orjson.Fragment(tool.input_schema)}


def _to_openai(tool: ToolDefinitionView, name: str) -> dict[str, Any]:
    return {"type": "function", "function": _to_openai_function(tool, name)}


def _to_openai_responses(tool: ToolDefinitionView, name: str) -> dict[str, Any]:
    # Without `strict`, this API assumes true and makes optional arguments required.
    return {"type": "function", **_to_openai_function(tool, name), "strict": False}


def _to_anthropic(tool: ToolDefinitionView, name: str) -> dict[str, Any]:
    return {"name": name, "description": tool.description, "input_schema": orjson.Fragment(tool.input_schema)}


_RENDERERS: Mapping[Format, Callable[[ToolDefinitionView, str], dict[str, Any]]] = {
    "mcp": to_mcp,
    "openai": _to_openai,
    "openai_responses": _to_openai_responses,
    "anthropic": _to_anthropic,
}


def render_definitions(tools: Sequence[ToolDefinitionView], names: Sequence[str], api_format: Format) -> list[bytes]:
    return [orjson.dumps(_RENDERERS[api_format](tool, name)) for tool, name in zip(tools, names, strict=True)]
