"""Delete a user's selection log."""

from app.audit.record import record_event
from app.db.engine import Database
from app.usage.selection_log import SelectionLog, delete_user_selections


async def delete_selections(database: Database, selection_log: SelectionLog, user_id: str, *, actor: str) -> None:
    """Delete all selections of the user, stored or waiting in memory. The user's setting stays as it is."""
    # Before the transaction and not after its commit: selections that are just being written are stored once this
    # returns, and are deleted below. Those that this process would write a moment later must be gone by then.
    await selection_log.discard_pending(user_id)
    async with database.transaction(user_id) as session:
        await delete_user_selections(session, user_id)
        await record_event(session, user_id, actor, "selections.delete", None)
