"""The tools of an answer as the model gets them, and what has changed since the model was last given tools. Pure.

A provider's prompt cache, and the checks of newer models, begin with `tools`: a changed array costs the whole
conversation. Two APIs take changes as an item of the conversation instead: Anthropic as `tool_removal` and
`tool_addition` blocks of a system message, OpenAI's Responses API as an item `additional_tools`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import orjson

from app.catalog.definitions import ToolDefinitionView
from app.catalog.tool_names import make_aliases
from app.discovery.formats import Format, render_definitions
from app.search.interleave import unique_by

ANTHROPIC_BETAS = ("mid-conversation-tool-changes-2026-07-01", "inline-tools-2026-09-15")
"""The values of the header `anthropic-beta` that the blocks need: one for changes, one for definitions inside them."""

_HASH_DIGITS = 16


@dataclass(frozen=True)
class GivenTool:
    """A tool that the model was given earlier. What the caller does not say of it is taken to be as it is now."""

    tool_key: str
    alias: str | None = None
    definition_hash: str | None = None


@dataclass(frozen=True)
class RenderedTool:
    """A tool in the format of the request."""

    tool_key: str
    alias: str
    definition: bytes
    definition_hash: str


@dataclass(frozen=True)
class ToolsetChanges:
    """What turns the tools that the model has into those of the answer. Removals come first."""

    added: Sequence[RenderedTool]
    removed: Sequence[GivenTool]
    hash_before: str | None
    """None if a definition that the model was given is not known."""

    def name_removed(self, aliases: Mapping[str, str], after: Sequence[RenderedTool]) -> "ToolsetChanges":
        """Return the changes with these aliases, by key, of removed tools whose alias was not given."""
        added = {tool.tool_key for tool in self.added}
        staying = [tool for tool in after if tool.tool_key not in added]
        named = [replace(tool, alias=tool.alias or aliases.get(tool.tool_key)) for tool in self.removed]
        return replace(self, removed=_drop_taken_aliases(named, staying))


def render_toolset(tools: Sequence[ToolDefinitionView], api_format: Format) -> list[RenderedTool]:
    aliases = make_aliases(tools)
    definitions = render_definitions(tools, aliases, api_format)
    return [
        RenderedTool(tool.tool_id, alias, definition, _shorten_hash(definition))
        for tool, alias, definition in zip(tools, aliases, definitions, strict=True)
    ]


def hash_toolset(definition_hashes: Sequence[str]) -> str:
    return _shorten_hash("\n".join(definition_hashes).encode())


def compare_toolsets(before: Sequence[GivenTool], after: Sequence[RenderedTool]) -> ToolsetChanges:
    """Return what has changed. A tool with another definition or alias is removed and added."""
    before = list(unique_by(before, attrgetter("tool_key")))
    current = {tool.tool_key: tool for tool in after}
    unchanged = {tool.tool_key for tool in before if _is_unchanged(tool, current.get(tool.tool_key))}
    hashes = [tool.definition_hash or _get_hash(current.get(tool.tool_key)) for tool in before]
    known_hashes = [each for each in hashes if each is not None]
    return ToolsetChanges(
        added=[tool for tool in after if tool.tool_key not in unchanged],
        removed=_drop_taken_aliases(
            [tool for tool in before if tool.tool_key not in unchanged],
            [tool for tool in after if tool.tool_key in unchanged],
        ),
        hash_before=hash_toolset(known_hashes) if len(known_hashes) == len(hashes) else None,
    )


def render_changes(changes: ToolsetChanges, api_format: Format) -> dict[str, Any] | None:
    """Return the item to append to the conversation, or None if the format has none or there is nothing to say.

    A removed tool whose alias is not known has no block.
    """
    definitions = [orjson.Fragment(tool.definition) for tool in changes.added]
    if api_format == "openai_responses" and definitions:
        return {"type": "additional_tools", "role": "developer", "tools": definitions}
    if api_format != "anthropic":
        return None
    removals = [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": tool.alias}}
        for tool in changes.removed
        if tool.alias is not None
    ]
    additions = [
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}
        for definition in definitions
    ]
    if not removals and not additions:
        return None
    return {"role": "system", "content": [*removals, *additions], "betas": ANTHROPIC_BETAS}


def _drop_taken_aliases(removed: Sequence[GivenTool], staying: Sequence[RenderedTool]) -> list[GivenTool]:
    """Drop the aliases that tools which stay have: a removal by such a name would take away the wrong tool."""
    taken = {tool.alias for tool in staying}
    return [replace(tool, alias=None) if tool.alias in taken else tool for tool in removed]


def _is_unchanged(given: GivenTool, now: RenderedTool | None) -> bool:
    return now is not None and given.alias in (None, now.alias) and given.definition_hash in (None, now.definition_hash)


def _get_hash(tool: RenderedTool | None) -> str | None:
    return None if tool is None else tool.definition_hash


def _shorten_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
