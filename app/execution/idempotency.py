"""Calls with an `Idempotency-Key`: the first one runs, the others get its answer. The answer is stored sealed."""

from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import Delete, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.crypto import Sealer, SecretOwner
from app.db.engine import Session
from app.db.tables import tool_calls
from app.errors import Conflict, InvalidInput, ToolFailed
from app.text.strict_json import Json

_KEPT = timedelta(hours=24)
_GRACE = timedelta(seconds=30)


async def claim_key(
    session: Session, sealer: Sealer, user_id: str, key: str, request: bytes, timeout_s: float
) -> Json | None:
    """The answer of whoever used the key before; None is the right to run the call."""
    given_up_at = func.now() + timedelta(seconds=timeout_s) + _GRACE
    values = {"user_id": user_id, "key": key, "request": sealer.fingerprint(request), "given_up_at": given_up_at}
    statement = insert(tool_calls).values(**values).on_conflict_do_nothing()
    if await session.scalar(statement.returning(tool_calls.c.key)) is not None:
        return None
    answer = await get_stored_response(session, sealer, user_id, key, request)
    if answer is None:  # released in this very moment
        return await claim_key(session, sealer, user_id, key, request, timeout_s)
    return answer


async def get_stored_response(session: Session, sealer: Sealer, user_id: str, key: str, request: bytes) -> Json | None:
    """None where the key is free. Raises where it was used for another request, is in use, or was left behind by a
    process that died."""
    columns = tool_calls.c.request, tool_calls.c.answer, (tool_calls.c.given_up_at < func.now()).label("given_up")
    earlier = (await session.execute(select(*columns).where(*_this(user_id, key)))).one_or_none()
    if earlier is None:
        return None
    if not sealer.matches_fingerprint(bytes(earlier.request), request):
        raise InvalidInput("this Idempotency-Key was used for another request")
    if earlier.answer is not None:
        answer: Json = orjson.loads(sealer.open(bytes(earlier.answer), _owner(user_id, key)))
        return answer
    if earlier.given_up:
        raise ToolFailed("the first call with this Idempotency-Key never ended; it may have run", outcome="unknown")
    raise Conflict("a call with this Idempotency-Key is still running")


async def store_response(session: Session, sealer: Sealer, user_id: str, key: str, answer: Json) -> None:
    sealed = sealer.seal(orjson.dumps(answer), _owner(user_id, key))
    await session.execute(update(tool_calls).where(*_this(user_id, key)).values(answer=sealed))


async def release_key(session: Session, user_id: str, key: str) -> None:
    """Nothing was run: the key may be used again."""
    await session.execute(delete(tool_calls).where(*_this(user_id, key), tool_calls.c.answer.is_(None)))


def expired_rows() -> Delete:
    """What is older than a day, of all users."""
    return delete(tool_calls).where(tool_calls.c.started_at < func.now() - _KEPT)


def _this(user_id: str, key: str) -> tuple[Any, Any]:
    return tool_calls.c.user_id == user_id, tool_calls.c.key == key


def _owner(user_id: str, key: str) -> SecretOwner:
    return SecretOwner(user_id, key, "answer")
