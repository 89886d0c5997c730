"""Idempotency keys: the first call with a key runs, later calls get its stored response. Responses are encrypted."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Delete, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.crypto import Sealer, SecretOwner
from app.db.engine import Session
from app.db.tables import tool_calls
from app.errors import Conflict, InvalidInput, ToolFailed
from app.text.strict_json import Json, dump_json, load_json

_RETENTION = timedelta(hours=24)
_GRACE = timedelta(seconds=30)


async def claim_key(
    session: Session, sealer: Sealer, user_id: str, key: str, request: bytes, timeout_s: float
) -> Json | None:
    """Return None if the key is now claimed and the call may run, otherwise the stored response of an earlier call."""
    given_up_at = func.now() + timedelta(seconds=timeout_s) + _GRACE
    values = {"user_id": user_id, "key": key, "request": sealer.fingerprint(request), "given_up_at": given_up_at}
    statement = insert(tool_calls).values(**values).on_conflict_do_nothing()
    if await session.scalar(statement.returning(tool_calls.c.key)) is not None:
        return None
    response = await get_stored_response(session, sealer, user_id, key, request)
    if response is None:  # the key was released between the two statements
        return await claim_key(session, sealer, user_id, key, request, timeout_s)
    return response


async def get_stored_response(session: Session, sealer: Sealer, user_id: str, key: str, request: bytes) -> Json | None:
    """Return the stored response, or None if the key is free.

    Raise `InvalidInput` if the key belongs to another request, `Conflict` while the first call runs, and `ToolFailed`
    if the process that ran it died.
    """
    columns = tool_calls.c.request, tool_calls.c.answer, (tool_calls.c.given_up_at < func.now()).label("given_up")
    call = (await session.execute(select(*columns).where(*_by_key(user_id, key)))).one_or_none()
    if call is None:
        return None
    if not sealer.matches_fingerprint(bytes(call.request), request):
        raise InvalidInput("this Idempotency-Key was used for another request")
    if call.answer is not None:
        response: Json = load_json(sealer.open(bytes(call.answer), _owner(user_id, key)))
        return response
    if call.given_up:
        raise ToolFailed("the first call with this Idempotency-Key never ended; it may have run", outcome="unknown")
    raise Conflict("a call with this Idempotency-Key is still running")


async def store_response(session: Session, sealer: Sealer, user_id: str, key: str, response: Json) -> None:
    sealed = sealer.seal(dump_json(response), _owner(user_id, key))
    await session.execute(update(tool_calls).where(*_by_key(user_id, key)).values(answer=sealed))


async def release_key(session: Session, user_id: str, key: str) -> None:
    """Free the key of a call that was not run, so that it can be used again."""
    await session.execute(delete(tool_calls).where(*_by_key(user_id, key), tool_calls.c.answer.is_(None)))


def expired_rows() -> Delete:
    """Build the statement that deletes expired keys of all users."""
    return delete(tool_calls).where(tool_calls.c.started_at < func.now() - _RETENTION)


def _by_key(user_id: str, key: str) -> tuple[Any, Any]:
    return tool_calls.c.user_id == user_id, tool_calls.c.key == key


def _owner(user_id: str, key: str) -> SecretOwner:
    return SecretOwner(user_id, key, "answer")
