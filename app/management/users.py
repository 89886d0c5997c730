"""Create, change and delete users."""

from collections.abc import Mapping
from typing import Any

from app.audit.record import record_event
from app.auth import users
from app.auth.keys import delete_keys
from app.auth.users import User
from app.db.engine import Database
from app.mcp_client.pool import McpPool


async def create_user(database: Database, user_id: str, name: str | None, *, actor: str) -> User:
    """Raise `Conflict` if the user exists."""
    async with database.system_transaction() as session:
        user = await users.insert_user(session, user_id, name)
        await record_event(session, user.id, actor, "user.create", user.id)
    return user


async def change_user(database: Database, user_id: str, changes: Mapping[str, Any], *, actor: str) -> User:
    """Change a user's columns. `discovery_enabled` may be None, which leaves the choice to the roll-out."""
    if "discovery_enabled" in changes:
        chosen = changes["discovery_enabled"]
        changes = {**changes, "discovery_enabled": chosen is not False, "discovery_pinned": chosen is not None}
    async with database.system_transaction() as session:
        user = await users.update_user(session, user_id, changes)
        await record_event(session, user_id, actor, "user.change", user_id)
    return user


async def delete_user(database: Database, mcp_pool: McpPool, user_id: str, *, actor: str) -> None:
    """Delete the user and everything the user owns. Audit events stay."""
    async with database.system_transaction() as session:
        await users.delete_user(session, user_id)
        await delete_keys(session, user_id)
        await record_event(session, user_id, actor, "user.delete", user_id)
        session.after_commit(mcp_pool.forget_user, user_id)
