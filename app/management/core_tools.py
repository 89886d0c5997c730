"""Replace the native tools that every answer includes."""

import asyncio
from collections.abc import Sequence
from typing import Any

from app.audit.record import record_event
from app.catalog import core_tools
from app.catalog.core_tools import MAX_CORE_TOOLS
from app.db.engine import Database
from app.db.tables import EVERYONE
from app.errors import InvalidInput
from app.indexing.parsing import parse_listing
from app.indexing.plan import CountTokens, definition_tokens
from app.mcp_types import ToolDefinition


async def replace_core_tools(
    database: Database, count_tokens: CountTokens, owner: str, tools: Sequence[Any], *, actor: str
) -> Sequence[ToolDefinition]:
    """Replace all core tools of `owner`, a user's id or `EVERYONE`, by these MCP tools."""
    definitions = _parse_tools(tools)
    counts = await asyncio.to_thread(lambda: [definition_tokens(tool, count_tokens) for tool in definitions])
    scope = database.system_transaction() if owner == EVERYONE else database.exclusive_transaction(owner)
    async with scope as session:
        await core_tools.replace_core_tools(session, owner, list(zip(definitions, counts, strict=True)))
        await record_event(session, owner, actor, "core_tools.replace", None)
    return definitions


def _parse_tools(tools: Sequence[Any]) -> Sequence[ToolDefinition]:
    """Unlike a server's listing, which is indexed without its refused tools, the list is valid as a whole or not."""
    listing = parse_listing(tools, max_tools=MAX_CORE_TOOLS)
    if listing.refused:
        first = listing.refused[0]
        raise InvalidInput(f"the tool {first.name!r} is refused: {first.reason}")
    if listing.warnings:
        raise InvalidInput("two of the tools have one name: each must have its own")
    return listing.definitions
