"""What a run has to do: the difference between what is listed and what is stored. Pure."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson
from pgvector import SparseVector

from app.indexing import document
from app.protocol import ToolDefinition

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class StoredTool:
    tool_id: str
    definition_hash: str
    index_hash: str
    content_hash: str | None
    """Of its vector by the active model; None while it has none."""


@dataclass(frozen=True)
class ToolRow:
    """A tool that is written because it is new or because what is searched of it has changed."""

    tool_id: str
    definition: ToolDefinition
    definition_hash: str
    index_hash: str
    enriched_description: str
    lexical: SparseVector
    tokens: int


@dataclass(frozen=True)
class Wanted:
    """A vector that is missing or out of date."""

    tool_id: str
    tool_name: str
    text: str
    content_hash: str


@dataclass(frozen=True)
class Plan:
    added: int
    changed: int
    unchanged: int
    rows: Sequence[ToolRow]
    removed_ids: Sequence[str]
    wanted: Sequence[Wanted]

    @property
    def empty(self) -> bool:
        return not (self.rows or self.removed_ids or self.wanted)


@dataclass(frozen=True)
class Place:
    """Where the tools belong, and which model looks at them."""

    server_id: str
    server_name: str
    model: str
    dimension: int


def make_plan(
    tools: Sequence[ToolDefinition],
    stored: Mapping[str, StoredTool],
    place: Place,
    count_tokens: CountTokens,
    *,
    force: bool,
) -> Plan:
    rows: list[ToolRow] = []
    wanted: list[Wanted] = []
    added = changed = 0
    for tool in tools:
        known = stored.get(tool.name)
        hashes = tool.fingerprint(), document.index_hash(tool, place.server_name)
        added += known is None
        changed += known is not None and known.definition_hash != hashes[0]
        if known is None or (known.definition_hash, known.index_hash) != hashes:
            rows.append(_row(tool, *hashes, place, count_tokens))
        content_hash = document.content_hash(hashes[1], place.model)
        if force or known is None or known.content_hash != content_hash:
            text = document.embedded_text(tool, place.server_name)
            wanted.append(Wanted(tool_id(place.server_id, tool.name), tool.name, text, content_hash))
    listed = {tool.name for tool in tools}
    removed = [known.tool_id for name, known in stored.items() if name not in listed]
    return Plan(added, changed, len(tools) - added - changed, rows, removed, wanted)


def tool_id(server_id: str, tool_name: str) -> str:
    """The same for ever: a tool that vanishes and returns keeps its key."""
    return str(uuid.uuid5(uuid.UUID(server_id), tool_name))


def definition_tokens(tool: ToolDefinition, count_tokens: CountTokens) -> int:
    """Of what a model gets to see: name, description and input schema, in compact JSON."""
    shown = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    return count_tokens(orjson.dumps(shown).decode())


def _row(
    tool: ToolDefinition, definition_hash: str, index_hash: str, place: Place, count_tokens: CountTokens
) -> ToolRow:
    return ToolRow(
        tool_id=tool_id(place.server_id, tool.name),
        definition=tool,
        definition_hash=definition_hash,
        index_hash=index_hash,
        enriched_description=document.enriched_description(tool, place.server_name),
        lexical=document.lexical_vector(tool, place.server_name, place.dimension),
        tokens=definition_tokens(tool, count_tokens),
    )
