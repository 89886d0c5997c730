"""Create and revoke API keys."""

from app.audit.record import record_event
from app.auth import keys
from app.auth.keys import ApiKey, NewKey
from app.auth.users import ensure_user
from app.db.engine import Database
from app.errors import InvalidInput
from app.management.quotas import Quotas, check_keys


async def create_key(
    database: Database, new_key: NewKey, quotas: Quotas, *, actor: str, create_user: bool = False
) -> tuple[ApiKey, str]:
    """Return the key's record and the key itself, which is not stored and cannot be read again.

    `create_user`: create the key's user first if it does not exist.
    """
    async with database.system_transaction() as session:
        if create_user and new_key.user_id is not None:
            await ensure_user(session, new_key.user_id, actor)
        if new_key.user_id is not None:
            await check_keys(session, quotas, new_key.user_id)
        key, secret = await keys.insert_key(session, new_key)
        await record_event(session, key.user_id, actor, "key.create", key.id)
    return key, secret


async def create_first_admin_key(database: Database, *, actor: str) -> str | None:
    """Create an admin key unless an active one exists, and return it."""
    async with database.system_transaction() as session:
        if await keys.admin_key_exists(session):
            return None
        key, secret = await keys.insert_key(session, NewKey("admin", name="first"))
        await record_event(session, None, actor, "key.create", key.id)
    return secret


async def revoke_key(database: Database, key_id: str, *, caller_key_id: str | None, actor: str) -> ApiKey:
    """Revoke a key, with effect for the next request on every replica.

    `caller_key_id` is None for an operator, who needs no key.
    """
    if key_id == caller_key_id:
        raise InvalidInput("a key cannot revoke itself: use another admin key, so that nobody locks themselves out")
    async with database.system_transaction() as session:
        key = await keys.revoke_key(session, key_id)
        await record_event(session, key.user_id, actor, "key.revoke", key_id)
    return key
