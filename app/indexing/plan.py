"""Plans an index run: the difference between the listed tools and the stored ones. Pure functions."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pgvector import SparseVector

from app.catalog.own_texts import NO_OWN_TEXTS, OwnTexts
from app.catalog.rules import RuleSet
from app.catalog.visibility_policy import State, merge_tags
from app.embeddings.base import Vector
from app.indexing import documents
from app.indexing.cache_scope import EVERYONE, CacheScope
from app.indexing.known_tools.matching import KnownTools
from app.indexing.parsing import ListedTool
from app.indexing.sanitize import Finding
from app.indexing.tool_vectors import ToolTexts
from app.mcp_types import FINGERPRINT_VERSION, ToolDefinition
from app.search.intents import Action, detect_tool_action
from app.text.strict_json import Json, dump_json

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class StoredTool:
    tool_id: str
    definition_hash: str
    index_hash: str
    approved_hash: str
    findings: Sequence[Finding]
    is_deleted: bool
    content_hash: str | None
    """Of its vector for the model in question; None if it has none."""
    is_indexed: bool = True
    """Whether it has a row for that model, with or without a vector."""
    own_tags: Sequence[str] = ()
    hash_version: int = FINGERPRINT_VERSION
    own_texts: OwnTexts = NO_OWN_TEXTS
    state: State = "approved"

    def rehash(self, listed: ListedTool) -> "StoredTool":
        """Return the tool with today's hashes, where an older version has stored those of the listed definition.

        What an older hash did not cover counts as unchanged at the first listing after an upgrade.
        """

        def update(stored_hash: str) -> str:
            return listed.fingerprint if stored_hash == listed.fingerprint_of_version_1 else stored_hash

        definition_hash, approved_hash = update(self.definition_hash), update(self.approved_hash)
        return replace(
            self, definition_hash=definition_hash, approved_hash=approved_hash, hash_version=FINGERPRINT_VERSION
        )


@dataclass(frozen=True)
class RehashedTool:
    """A stored tool with the hashes and the fields that the version which stored it did not know."""

    tool_id: str
    definition_hash: str
    approved_hash: str
    icons: Sequence[Any] | None
    execution: Json | None


@dataclass(frozen=True)
class ToolRow:
    """A tool that has to be written, because it is new or because its searchable content has changed."""

    tool_id: str
    definition: ToolDefinition
    """As the server lists it. The other fields are about the effective texts."""
    definition_hash: str
    index_hash: str
    enriched_description: str
    lexical: SparseVector
    action: Action
    tokens: int
    findings: Sequence[Finding]


@dataclass(frozen=True)
class MissingVector:
    """A vector that does not exist yet or is outdated."""

    tool_id: str
    tool_name: str
    texts: ToolTexts
    content_hash: str


@dataclass(frozen=True)
class Plan:
    added: int
    changed: int
    unchanged: int
    rows: Sequence[ToolRow]
    removed_ids: Sequence[str]
    count_missing_vectors: Sequence[MissingVector]
    unapproved: Sequence[str]
    """The names of tools whose definition has changed since it was approved."""
    new: Sequence[str] = ()
    """The names of tools that were added after the first listing and that nobody has approved. They may have changed,
    too."""
    rehashed: Sequence[RehashedTool] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.removed_ids or self.count_missing_vectors or self.rehashed)


@dataclass(frozen=True)
class SearchedTool:
    """What is searched of a tool: its definition with the user's own texts, and what the user and Toolscout add."""

    definition: ToolDefinition
    tags: tuple[str, ...]
    examples: tuple[str, ...]
    scope: CacheScope
    """Who shares its vector."""


@dataclass(frozen=True)
class IndexTarget:
    """The server and the model that a plan is made for."""

    server_id: str
    server_name: str
    model: str
    dimension: int
    server_tags: Sequence[str] = ()
    rules: RuleSet = field(default_factory=lambda: RuleSet(()))
    """The user's own rules. A project's rules tag tools only within the project, so that their tags are not indexed."""
    known_tools: KnownTools = field(default_factory=KnownTools)
    """The tools that come with examples; empty if the settings switch them off."""
    cache_scope: CacheScope = EVERYONE
    """Who shares the vectors of the server's tools."""
    was_listed: bool = False
    """Whether the server has been listed before, so that a tool that appears is new."""
    user_scope: CacheScope = EVERYONE
    """Who shares the vectors of tools with the user's own texts."""
    is_copy: bool = False
    """Whether it is a member's copy of a shared server, so that tags of the user's own make a text the user's own."""

    def resolve(self, listed: ToolDefinition, known: StoredTool | None) -> SearchedTool:
        own_tags, own_texts = ((), NO_OWN_TEXTS) if known is None else (known.own_tags, known.own_texts)
        tool = own_texts.apply(listed)
        tags = merge_tags(own_tags, self.server_tags, self.rules.match(self.server_name, tool.name))
        # the server's description first: other words of the user's do not make it another tool
        examples = self.known_tools.find_examples(tool.name, listed.description, tool.description)
        is_own = bool(own_texts) or (self.is_copy and not set(tags) <= set(self.server_tags))
        return SearchedTool(tool, tags, examples, self.user_scope if is_own else self.cache_scope)


@dataclass(frozen=True)
class ModelUpdate:
    """What a run writes for one model. The update of the active model also contains the tools themselves."""

    target: IndexTarget
    plan: Plan
    vectors: Mapping[str, Vector]
    """By tool id."""


def make_plan(
    tools: Sequence[ListedTool],
    stored: Mapping[str, StoredTool],
    target: IndexTarget,
    count_tokens: CountTokens,
    *,
    force: bool,
) -> Plan:
    rows: list[ToolRow] = []
    missing: list[MissingVector] = []
    added = changed = 0
    rehashed = {
        listed.definition.name: known.rehash(listed)
        for listed in tools
        if (known := stored.get(listed.definition.name)) is not None and _has_old_hashes(known, listed)
    }
    stored = {**stored, **rehashed}
    for listed in tools:
        name = listed.definition.name
        known = stored.get(name)
        tool = target.resolve(listed.definition, known)
        index_hash = documents.index_hash(tool.definition, target.server_name, tool.tags, tool.examples)
        is_new = known is None or known.is_deleted
        added += is_new
        changed += not is_new and known is not None and known.definition_hash != listed.fingerprint
        if is_new or not _is_up_to_date(known, listed, index_hash):
            rows.append(_make_row(listed, tool, index_hash, target, count_tokens))
        content_hash = documents.content_hash(index_hash, target.model)
        if force or known is None or known.content_hash != content_hash:
            texts = _make_texts(tool, target)
            missing.append(MissingVector(tool_id(target.server_id, name), name, texts, content_hash))
    names = {listed.definition.name for listed in tools}
    removed = [known.tool_id for name, known in stored.items() if name not in names and not known.is_deleted]
    unapproved = [listed.definition.name for listed in tools if _is_unapproved(stored, listed)]
    new = [name for each in tools if _is_new(stored.get(name := each.definition.name), target)]
    updates = [_make_rehashed(rehashed[name], each) for each in tools if (name := each.definition.name) in rehashed]
    return Plan(added, changed, len(tools) - added - changed, rows, removed, missing, unapproved, new, updates)


def plan_backfill(
    tools: Sequence[ListedTool], stored: Mapping[str, StoredTool], target: IndexTarget, count_tokens: CountTokens
) -> Plan:
    """Plan the missing rows and vectors of another model. The tools themselves stay as they are stored."""
    known = [(listed, stored[listed.definition.name]) for listed in tools]
    resolved = [(listed, tool, target.resolve(listed.definition, tool)) for listed, tool in known]
    rows = [
        _make_row(listed, searched, tool.index_hash, target, count_tokens)
        for listed, tool, searched in resolved
        if not tool.is_indexed
    ]
    missing = [
        MissingVector(tool.tool_id, listed.definition.name, _make_texts(searched, target), content_hash)
        for listed, tool, searched in resolved
        if tool.content_hash != (content_hash := documents.content_hash(tool.index_hash, target.model))
    ]
    return Plan(0, 0, len(tools), rows, (), missing, ())


def _make_texts(tool: SearchedTool, target: IndexTarget) -> ToolTexts:
    document = documents.embedded_text(tool.definition, target.server_name, tool.tags)
    return ToolTexts(document, tool.examples, tool.scope)


def _has_old_hashes(known: StoredTool, listed: ListedTool) -> bool:
    return known.hash_version < FINGERPRINT_VERSION and listed.fingerprint_of_version_1 is not None


def _make_rehashed(tool: StoredTool, listed: ListedTool) -> RehashedTool:
    definition = listed.definition
    return RehashedTool(tool.tool_id, tool.definition_hash, tool.approved_hash, definition.icons, definition.execution)


def _is_up_to_date(known: StoredTool | None, listed: ListedTool, index_hash: str) -> bool:
    if known is None or not known.is_indexed:
        return False
    stored = known.definition_hash, known.index_hash, list(known.findings)
    return stored == (listed.fingerprint, index_hash, list(listed.findings))


def _is_unapproved(stored: Mapping[str, StoredTool], listed: ListedTool) -> bool:
    known = stored.get(listed.definition.name)
    return known is not None and known.approved_hash != listed.fingerprint


def _is_new(known: StoredTool | None, target: IndexTarget) -> bool:
    return target.was_listed if known is None else known.state == "new"


def tool_id(server_id: str, tool_name: str) -> str:
    """Return the tool's id, which never changes: a tool that disappears and returns keeps its key."""
    return str(uuid.uuid5(uuid.UUID(server_id), tool_name))


def definition_tokens(tool: ToolDefinition, count_tokens: CountTokens) -> int:
    """Count the tokens that a model gets to see: name, description and input schema as compact JSON."""
    definition = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    return count_tokens(dump_json(definition).decode())


def _make_row(
    listed: ListedTool, searched: SearchedTool, index_hash: str, target: IndexTarget, count_tokens: CountTokens
) -> ToolRow:
    tool, tags, server_name = searched.definition, searched.tags, target.server_name
    return ToolRow(
        tool_id=tool_id(target.server_id, tool.name),
        definition=listed.definition,
        definition_hash=listed.fingerprint,
        index_hash=index_hash,
        enriched_description=documents.enriched_description(tool, server_name, tags),
        lexical=documents.lexical_vector(tool, server_name, target.dimension, tags, searched.examples),
        action=detect_tool_action(tool.name, tool.description),
        tokens=definition_tokens(tool, count_tokens),
        findings=listed.findings,
    )
