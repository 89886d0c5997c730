"""Change a tool's switch, tags, pin and own texts, and approve a changed definition."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.audit.record import record_event
from app.catalog import tools
from app.catalog.servers import require_own_server, require_own_servers
from app.catalog.shared_servers import update_sharing
from app.catalog.tools import Tool
from app.db.engine import Database
from app.db.tables import SHARED_OWNER
from app.indexing import queue
from app.indexing.own_texts import sanitize_texts
from app.indexing.plan import CountTokens, definition_tokens
from app.indexing.worker import Worker
from app.management.quotas import Quotas, check_tags
from app.mcp_types import ToolDefinition


@dataclass(frozen=True)
class ChangedTool:
    tool: Tool
    run_id: str | None
    """The index run that was queued, because what is searched of the tool has changed."""
    warnings: Sequence[str]


async def change_tool(
    database: Database,
    worker: Worker,
    user_id: str,
    tool_id: str,
    changes: Mapping[str, Any],
    quotas: Quotas,
    *,
    model_id: str,
    actor: str,
) -> ChangedTool:
    """Update a tool, and queue a run if its tags or own texts have changed, which are what is searched.

    `model_id` is the active embedding model, by which the returned tool says whether it is embedded.
    """
    changes, warnings = sanitize_texts(changes)
    run = None
    async with database.exclusive_transaction(user_id) as session:
        await check_tags(session, quotas, user_id, changes.get("tags", ()))
        needs_run = await tools.update_tool(session, user_id, tool_id, changes)
        await record_event(session, user_id, actor, "tool.change", tool_id)
        tool = await tools.get_tool(session, user_id, tool_id, model_id)
        if needs_run:
            run = await queue.enqueue(session, user_id, tool.server_id, fetch_from_server=False, asked_by=actor)
            session.after_commit(worker.notify)
    return ChangedTool(tool, None if run is None else run.id, warnings)


@dataclass(frozen=True)
class TextsPreview:
    tokens: int
    """Of the definition with these texts."""
    warnings: Sequence[str]


async def preview_texts(count_tokens: CountTokens, tool: Tool, changes: Mapping[str, Any]) -> TextsPreview:
    """Say what changes of a tool's texts would lead to."""
    sanitized, warnings = sanitize_texts(changes)
    description = sanitized.get("description") or tool.server_description
    definition = ToolDefinition(tool.name, None, description, tool.input_schema, None, None, None)
    return TextsPreview(await asyncio.to_thread(definition_tokens, definition, count_tokens), warnings)


async def approve_tool(
    database: Database, user_id: str, tool_id: str, *, seen_hash: str | None, model_id: str, actor: str
) -> Tool:
    """Approve the definition as it is stored.

    `seen_hash` is the hash of the definition that a person has looked at: raise `Conflict` if another is stored. An
    administrator approves the tools of a shared server, for all its members.
    """
    async with database.exclusive_transaction(user_id) as session:
        tool = await tools.get_tool(session, user_id, tool_id, model_id)
        await require_own_server(session, user_id, tool.server_id)
        await tools.approve_tool(session, user_id, tool_id, seen_hash)
        await record_event(session, user_id, actor, "tool.approve", tool_id)
        if user_id == SHARED_OWNER:
            await update_sharing(session, tool.server_id)
        return await tools.get_tool(session, user_id, tool_id, model_id)


async def approve_tools(database: Database, user_id: str, seen_hashes: Mapping[str, str], *, actor: str) -> None:
    """Approve the definitions that a person has looked at, by tool id: all of them, or none if one has changed.

    Raise `Forbidden` if one of them belongs to a shared server, whose tools an administrator approves.
    """
    async with database.exclusive_transaction(user_id) as session:
        await require_own_servers(session, user_id, seen_hashes.keys())
        await tools.approve_tools(session, user_id, seen_hashes)
        for tool_id in seen_hashes:
            await record_event(session, user_id, actor, "tool.approve", tool_id)
