"""What a run has to do: the difference between what is listed and what is stored. Pure."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson
from pgvector import SparseVector

from app.embeddings.base import Vector
from app.indexing import documents
from app.indexing.parsing import ListedTool
from app.indexing.sanitize import Finding
from app.mcp_types import ToolDefinition
from app.search.intents import Action, detect_tool_action

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class StoredTool:
    tool_id: str
    definition_hash: str
    index_hash: str
    approved_hash: str
    findings: Sequence[Finding]
    vanished: bool
    content_hash: str | None
    """Of its vector by the model that is asked about; None while it has none."""
    indexed: bool = True
    """Whether it has a row for that model, be it without a vector."""


@dataclass(frozen=True)
class ToolRow:
    """A tool that is written because it is new or because what is searched of it has changed."""

    tool_id: str
    definition: ToolDefinition
    definition_hash: str
    index_hash: str
    enriched_description: str
    lexical: SparseVector
    action: Action
    tokens: int
    findings: Sequence[Finding]


@dataclass(frozen=True)
class MissingVector:
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
    wanted: Sequence[MissingVector]
    unapproved: Sequence[str]
    """The names of tools whose definition nobody has accepted yet."""

    @property
    def empty(self) -> bool:
        return not (self.rows or self.removed_ids or self.wanted)


@dataclass(frozen=True)
class IndexTarget:
    """Where the tools belong, and which model looks at them."""

    server_id: str
    server_name: str
    model: str
    dimension: int


@dataclass(frozen=True)
class ModelUpdate:
    """What is to be written for one model. Of a run's shares the active model's comes first: the tools are its own."""

    place: IndexTarget
    plan: Plan
    vectors: Mapping[str, Vector]
    """By tool."""


def make_plan(
    tools: Sequence[ListedTool],
    stored: Mapping[str, StoredTool],
    place: IndexTarget,
    count_tokens: CountTokens,
    *,
    force: bool,
) -> Plan:
    rows: list[ToolRow] = []
    wanted: list[MissingVector] = []
    added = changed = 0
    for listed in tools:
        tool = listed.definition
        known = stored.get(tool.name)
        index_hash = documents.index_hash(tool, place.server_name)
        is_new = known is None or known.vanished
        added += is_new
        changed += not is_new and _differs(known, listed)
        if is_new or not _is_as_stored(known, listed, index_hash) or not _is_indexed(known):
            rows.append(_row(listed, index_hash, place, count_tokens))
        content_hash = documents.content_hash(index_hash, place.model)
        if force or known is None or known.content_hash != content_hash:
            text = documents.embedded_text(tool, place.server_name)
            wanted.append(MissingVector(tool_id(place.server_id, tool.name), tool.name, text, content_hash))
    names = {listed.definition.name for listed in tools}
    removed = [known.tool_id for name, known in stored.items() if name not in names and not known.vanished]
    unapproved = [listed.definition.name for listed in tools if _is_unapproved(stored, listed)]
    return Plan(added, changed, len(tools) - added - changed, rows, removed, wanted, unapproved)


def plan_for_another_model(
    tools: Sequence[ListedTool], stored: Mapping[str, StoredTool], place: IndexTarget, count_tokens: CountTokens
) -> Plan:
    """The tools stay as they are stored; they only lack rows or vectors of this model."""
    known = [(listed, stored[listed.definition.name]) for listed in tools]
    rows = [_row(listed, tool.index_hash, place, count_tokens) for listed, tool in known if not tool.indexed]
    wanted = [
        MissingVector(tool.tool_id, listed.definition.name, text, content_hash)
        for listed, tool in known
        if tool.content_hash != (content_hash := documents.content_hash(tool.index_hash, place.model))
        and (text := documents.embedded_text(listed.definition, place.server_name))
    ]
    return Plan(0, 0, len(tools), rows, (), wanted, ())


def _differs(known: StoredTool | None, listed: ListedTool) -> bool:
    return known is not None and known.definition_hash != listed.fingerprint


def _is_as_stored(known: StoredTool | None, listed: ListedTool, index_hash: str) -> bool:
    stored = None if known is None else (known.definition_hash, known.index_hash, list(known.findings))
    return stored == (listed.fingerprint, index_hash, list(listed.findings))


def _is_indexed(known: StoredTool | None) -> bool:
    return known is not None and known.indexed


def _is_unapproved(stored: Mapping[str, StoredTool], listed: ListedTool) -> bool:
    known = stored.get(listed.definition.name)
    return known is not None and known.approved_hash != listed.fingerprint


def tool_id(server_id: str, tool_name: str) -> str:
    """The same for ever: a tool that vanishes and returns keeps its key."""
    return str(uuid.uuid5(uuid.UUID(server_id), tool_name))


def definition_tokens(tool: ToolDefinition, count_tokens: CountTokens) -> int:
    """Of what a model gets to see: name, description and input schema, in compact JSON."""
    shown = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    return count_tokens(orjson.dumps(shown).decode())


def _row(listed: ListedTool, index_hash: str, place: IndexTarget, count_tokens: CountTokens) -> ToolRow:
    tool = listed.definition
    return ToolRow(
        tool_id=tool_id(place.server_id, tool.name),
        definition=tool,
        definition_hash=listed.fingerprint,
        index_hash=index_hash,
        enriched_description=documents.enriched_description(tool, place.server_name),
        lexical=documents.lexical_vector(tool, place.server_name, place.dimension),
        action=detect_tool_action(tool.name, tool.description),
        tokens=definition_tokens(tool, count_tokens),
        findings=listed.findings,
    )
