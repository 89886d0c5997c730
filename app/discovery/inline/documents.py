"""Turn a tool that is sent with a request into what is searched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from pgvector import SparseVector

from app.indexing.cache_scope import CacheScope
from app.indexing.documents import embedded_text, lexical_vector
from app.indexing.known_tools.matching import KnownTools
from app.indexing.parsing import Refusal, parse_definition
from app.indexing.tool_vectors import ToolTexts
from app.limits.byte_cache import ByteCache, measure_bytes
from app.limits.fair_thread import FairExecutor
from app.search.intents import Action, detect_tool_action
from app.text.invisible import remove_hidden
from app.text.strict_json import Json, canonical_json

_MAX_CACHE_BYTES = 64 * 1024 * 1024
_HASH_BYTES = 500
"""The hashes of a tool's texts, which are computed when they are needed."""
_CACHE_TTL_S = 300.0
_CHUNK = 16
"""How many tools are parsed before it is another user's turn: some milliseconds."""


@dataclass(frozen=True)
class InlineTool:
    """A tool as the request contains it."""

    tool_key: str
    tool_name: str
    server_name: str
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    title: str | None = None
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ParsedTool:
    """A tool without its `tool_key`, so that the same tool of another request is the same cache entry."""

    name: str
    server_name: str
    description: str
    lexical: SparseVector
    action: Action
    texts: ToolTexts
    """The texts to embed."""
    output_schema: bytes | None = None
    """JSON, as are the annotations: both are only passed back."""
    annotations: bytes | None = None


class InlineToolParser:
    """Parses tools and caches them for a few minutes.

    Callers mostly send the same list again with the next message, and tokenizing two thousand tools takes a second.
    """

    def __init__(self, known_tools: KnownTools, executor: FairExecutor) -> None:
        self._executor = executor
        self._known_tools = known_tools
        self._cache: ByteCache[tuple[str, bytes], ParsedTool] = ByteCache(
            _MAX_CACHE_BYTES, get_owner=itemgetter(0), measure=_measure, ttl_s=_CACHE_TTL_S
        )

    async def parse(
        self, user_id: str, tools: Sequence[InlineTool], dimension: int, scope: CacheScope
    ) -> list[ParsedTool | Refusal]:
        """Return the parsed tools in the same order. A tool that is too large or too deep is refused alone.

        `scope`: who shares what is cached about the tools.
        """
        outcomes: list[ParsedTool | Refusal] = []
        for start in range(0, len(tools), _CHUNK):
            parse = partial(self._get_or_parse_each, user_id, tools[start : start + _CHUNK], dimension, scope)
            outcomes += await self._executor.run(user_id, parse)
        return outcomes

    def _get_or_parse_each(
        self, user_id: str, tools: Sequence[InlineTool], dimension: int, scope: CacheScope
    ) -> list[ParsedTool | Refusal]:
        """Only the thread of the executor does this, so the cache needs no lock."""
        return [self._get_or_parse(user_id, tool, dimension, scope) for tool in tools]

    def _get_or_parse(self, user_id: str, tool: InlineTool, dimension: int, scope: CacheScope) -> ParsedTool | Refusal:
        key = user_id, _make_cache_key(tool, dimension, scope)
        if (cached := self._cache.get(key)) is not None:
            return cached
        parsed = self._parse(tool, dimension, scope)
        if isinstance(parsed, ParsedTool):
            self._cache[key] = parsed
        return parsed

    def _parse(self, tool: InlineTool, dimension: int, scope: CacheScope) -> ParsedTool | Refusal:
        definition = parse_definition(_to_mcp(tool))
        if isinstance(definition, Refusal):
            return definition
        server_name = remove_hidden(tool.server_name)
        examples = self._known_tools.find_examples(definition.name, definition.description)
        return ParsedTool(
            name=definition.name,
            server_name=server_name,
            description=definition.description,
            lexical=lexical_vector(definition, server_name, dimension, examples=examples),
            action=detect_tool_action(definition.name, definition.description),
            texts=ToolTexts(embedded_text(definition, server_name), examples, scope),
            output_schema=_to_json(definition.output_schema),
            annotations=_to_json(definition.annotations),
        )


def _measure(tool: ParsedTool) -> int:
    return measure_bytes(tool) + _HASH_BYTES


def _make_cache_key(tool: InlineTool, dimension: int, scope: CacheScope) -> bytes:
    return scope.hash_text(canonical_json([dimension, tool.server_name, _to_mcp(tool)]))


def _to_json(part: Json | None) -> bytes | None:
    return None if part is None else canonical_json(part)


def _to_mcp(tool: InlineTool) -> Json:
    return {
        "name": tool.tool_name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
    }
