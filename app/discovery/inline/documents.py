"""From a tool that comes with a request to what is searched of it."""

import asyncio
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache
from pgvector import SparseVector

from app.indexing.documents import embedded_text, lexical_vector, text_hash
from app.indexing.parsing import Refusal, parse_definition
from app.search.intents import Action, action_of_tool
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, canonical_json

_MAX_CACHE_BYTES = 64 * 1024 * 1024
_CACHE_S = 300.0
_ENTRY_BYTES = 1_000
_TERM_BYTES = 100


@dataclass(frozen=True)
class SentTool:
    tool_key: str
    tool_name: str
    server_name: str
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    title: str | None = None


@dataclass(frozen=True)
class ReadTool:
    """Without the sender's key for it: the same tool reads the same, whoever sends it."""

    name: str
    server_name: str
    description: str
    lexical: SparseVector
    action: Action
    text: str
    """What is embedded."""
    text_hash: bytes


class Reader:
    """Remembers for a few minutes, since whoever sends a list mostly sends it again with the next message: finding the
    words of two thousand tools takes a second."""

    def __init__(self) -> None:
        self._known: TTLCache[bytes, ReadTool] = TTLCache(_MAX_CACHE_BYTES, _CACHE_S, getsizeof=_estimate_bytes)

    async def read(self, tools: Sequence[SentTool], dimension: int) -> list[ReadTool | Refusal]:
        """In the same order. What is too large or too deep is refused alone."""
        keys = await asyncio.to_thread(_keys, tools, dimension)
        known = {key: self._known.get(key) for key in keys}
        new = {key: tool for key, tool in zip(keys, tools, strict=True) if known[key] is None}
        read = await asyncio.to_thread(_read_all, new, dimension)
        for key, tool in read.items():
            if isinstance(tool, ReadTool):
                self._known[key] = tool
        return [known[key] or read[key] for key in keys]


def _estimate_bytes(tool: ReadTool) -> int:
    """Estimate the memory that a cached tool takes: mostly its texts and its terms."""
    texts = sys.getsizeof(tool.description) + sys.getsizeof(tool.text)
    return _ENTRY_BYTES + texts + _TERM_BYTES * len(tool.lexical.indices())


def _keys(tools: Sequence[SentTool], dimension: int) -> list[bytes]:
    return [_key(tool, dimension) for tool in tools]


def _key(tool: SentTool, dimension: int) -> bytes:
    said = [dimension, tool.server_name, _as_mcp(tool)]
    return hashlib.sha256(canonical_json(said)).digest()


def _read_all(tools: Mapping[bytes, SentTool], dimension: int) -> dict[bytes, ReadTool | Refusal]:
    return {key: _read(tool, dimension) for key, tool in tools.items()}


def _read(tool: SentTool, dimension: int) -> ReadTool | Refusal:
    definition = parse_definition(_as_mcp(tool))
    if isinstance(definition, Refusal):
        return definition
    server_name = remove_hidden(tool.server_name)
    text = embedded_text(definition, server_name)
    lexical = lexical_vector(definition, server_name, dimension)
    action = action_of_tool(definition.name, definition.description)
    return ReadTool(definition.name, server_name, definition.description, lexical, action, text, text_hash(text))


def _as_mcp(tool: SentTool) -> Json:
    return {
        "name": tool.tool_name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
    }
