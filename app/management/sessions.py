"""Sign in to the console with an API key or at the identity provider, and out."""

from dataclasses import replace

from app.audit.actions import Action
from app.audit.record import record_event
from app.auth.authentication import Authenticator
from app.auth.identity import Identity
from app.auth.permissions import Caller
from app.db.engine import Database
from app.errors import InvalidInput


async def sign_in(database: Database, authenticator: Authenticator, key: str, user_id: str | None) -> Caller:
    """Return the caller that the key stands for.

    Raise `Unauthenticated`, or `InvalidInput` for a service key without a user: unlike an admin key, it can do nothing
    without one.
    """
    caller = await authenticator.authenticate(key, user_id)
    if caller.kind == "service" and caller.user is None:
        raise InvalidInput("A service key acts for many users: name the one to act for.")
    await _record(database, caller, "console.sign_in")
    return caller


async def sign_in_person(database: Database, authenticator: Authenticator, identity: Identity) -> Identity:
    """Return the person as the session names them, bound to the user that they have now."""
    caller = await authenticator.authenticate_identity(identity, None)
    await _record(database, caller, "console.sign_in")
    return replace(identity, groups=None, user_created_at=caller.require_user().created_at)


async def sign_out(database: Database, caller: Caller) -> None:
    await _record(database, caller, "console.sign_out")


async def _record(database: Database, caller: Caller, action: Action) -> None:
    user_id = None if caller.user is None else caller.user.id
    async with database.system_transaction() if user_id is None else database.transaction(user_id) as session:
        await record_event(session, user_id, caller.actor, action, caller.key_id)
