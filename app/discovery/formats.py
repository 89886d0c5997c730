"""Tool definitions in the shapes that models' APIs take. Pure; the same tools give the same bytes.

Schemas are passed on as the text that they are stored as: nothing is parsed only to be written again.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson

from app.catalog.definitions import ToolDefinitionView

Format = Literal["mcp", "openai", "openai_responses", "anthropic"]


def as_mcp(offer: ToolDefinitionView, name: str) -> dict[str, Any]:
    shape: dict[str, Any] = {"name": name}
    if offer.title is not None:
        shape["title"] = offer.title
    shape["description"] = offer.description
    shape["inputSchema"] = orjson.Fragment(offer.input_schema)
    if offer.output_schema is not None:
        shape["outputSchema"] = orjson.Fragment(offer.output_schema)
    if offer.annotations is not None:
        shape["annotations"] = orjson.Fragment(offer.annotations)
    return shape


def _as_openai_function(offer: ToolDefinitionView, name: str) -> dict[str, Any]:
    return {"name": name, "description": offer.description, "parameters": orjson.Fragment(offer.input_schema)}


def _as_openai(offer: ToolDefinitionView, name: str) -> dict[str, Any]:
    return {"type": "function", "function": _as_openai_function(offer, name)}


def _as_openai_responses(offer: ToolDefinitionView, name: str) -> dict[str, Any]:
    # left out, this API takes it for true and makes optional arguments required
    return {"type": "function", **_as_openai_function(offer, name), "strict": False}


def _as_anthropic(offer: ToolDefinitionView, name: str) -> dict[str, Any]:
    return {"name": name, "description": offer.description, "input_schema": orjson.Fragment(offer.input_schema)}


_SHAPES: Mapping[Format, Callable[[ToolDefinitionView, str], dict[str, Any]]] = {
    "mcp": as_mcp,
    "openai": _as_openai,
    "openai_responses": _as_openai_responses,
    "anthropic": _as_anthropic,
}


def render_definitions(offers: Sequence[ToolDefinitionView], names: Sequence[str], shape: Format) -> list[bytes]:
    return [orjson.dumps(_SHAPES[shape](offer, name)) for offer, name in zip(offers, names, strict=True)]


def toolset_hash(render_definitions: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(render_definitions)).hexdigest()[:16]
