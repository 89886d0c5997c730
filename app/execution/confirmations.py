"""Confirmations of calls: a token that only the same call redeems, once.

The token is stored as a hash, and the call as an HMAC: a dump of the database neither confirms nor reveals a call.
"""

import hashlib
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Delete, delete, func, insert, select

from app.crypto import Sealer
from app.db.engine import Session
from app.db.tables import call_confirmations
from app.execution.models import ExecutionRequest

MAX_OPEN = 100
"""For each user. The oldest are deleted."""

_TTL = timedelta(minutes=10)
_TOKEN_BYTES = 32
_STATE_PREFIX = "toolscout-confirmation"


@dataclass(frozen=True)
class Confirmation:
    token: str
    expires_at: datetime


async def create_confirmation(session: Session, sealer: Sealer, user_id: str, call: bytes) -> Confirmation:
    token, c = secrets.token_urlsafe(_TOKEN_BYTES), call_confirmations.c
    values = {"user_id": user_id, "token_hash": _hash(token), "call": sealer.fingerprint(call)}
    statement = insert(call_confirmations).values(**values, expires_at=func.now() + _TTL).returning(c.expires_at)
    expires_at: datetime = (await session.execute(statement)).scalar_one()
    newest_first = select(c.token_hash).where(c.user_id == user_id).order_by(c.expires_at.desc(), c.token_hash)
    oldest = c.token_hash.in_(newest_first.offset(MAX_OPEN))
    await session.execute(delete(call_confirmations).where(c.user_id == user_id, oldest))
    return Confirmation(token, expires_at)


async def redeem_confirmation(session: Session, sealer: Sealer, user_id: str, token: str, call: bytes) -> bool:
    """Use the token up, and return whether it confirms this call. If it does not, the caller must roll back."""
    c = call_confirmations.c
    valid = c.user_id == user_id, c.token_hash == _hash(token), c.expires_at > func.now()
    confirmed = await session.scalar(delete(call_confirmations).where(*valid).returning(c.call))
    return confirmed is not None and sealer.matches_fingerprint(bytes(confirmed), call)


def expired_rows() -> Delete:
    """Build the statement that deletes the expired confirmations of all users."""
    return delete(call_confirmations).where(call_confirmations.c.expires_at < func.now())


def add_token_to_state(token: str, state: str | None) -> str:
    """Return the state for a client that repeats a confirmed call with its user's answers."""
    return ":".join((_STATE_PREFIX, token) if state is None else (_STATE_PREFIX, token, state))


def take_token_from_state(request: ExecutionRequest) -> ExecutionRequest:
    """Return the request with the token that its dialogue's state contains, and with the state of the server alone."""
    dialogue = request.dialogue
    if dialogue is None or dialogue.state is None:
        return request
    match dialogue.state.split(":", 2):
        case [prefix, token, *rest] if prefix == _STATE_PREFIX:
            return replace(
                request, confirmation_token=token, dialogue=replace(dialogue, state=rest[0] if rest else None)
            )
    return request


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
