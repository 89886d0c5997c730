"""Core tools: native tools of the chat application, which every answer includes.

They belong to one user, or to everyone.
"""

import uuid
from collections.abc import Sequence

from sqlalchemy import delete, insert, select

from app.auth.users import raise_all_catalog_versions
from app.catalog.visibility import bump_catalog
from app.db.engine import Session
from app.db.tables import EVERYONE, core_tools
from app.mcp_types import ToolDefinition
from app.text.strict_json import Json

MAX_CORE_TOOLS = 50

_NAMESPACE = uuid.UUID("6f6f6c73-636f-4574-8000-746f6f6c6b65")


async def list_core_tools(session: Session, owner: str) -> list[Json]:
    statement = select(core_tools.c.definition).where(core_tools.c.user_id == owner).order_by(core_tools.c.position)
    return list((await session.scalars(statement)).all())


async def replace_core_tools(session: Session, owner: str, tools: Sequence[tuple[ToolDefinition, int]]) -> None:
    """Replace all core tools of `owner`: a user's id or `EVERYONE`, which needs a system transaction.

    `tools` are definitions with their numbers of tokens.
    """
    # First, since it waits for concurrent writers: the rows that they commit must be visible to the delete below.
    await (raise_all_catalog_versions(session) if owner == EVERYONE else bump_catalog(session, owner))
    await session.execute(delete(core_tools).where(core_tools.c.user_id == owner))
    rows = [
        {
            "user_id": owner,
            "id": str(uuid.uuid5(_NAMESPACE, f"{owner}\n{tool.name}")),
            "name": tool.name,
            "position": position,
            "definition": tool.as_mcp(),
            "tokens": tokens,
        }
        for position, (tool, tokens) in enumerate(tools)
    ]
    if rows:
        await session.execute(insert(core_tools), rows)
