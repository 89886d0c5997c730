"""API keys, shown once and stored as their SHA-256: they are long and random, a slow hash would protect no better."""

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Row, func, insert, or_, select, text, update
from sqlalchemy.exc import IntegrityError

from app.auth.users import get_user
from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass
from app.db.tables import api_keys
from app.errors import InvalidInput, NotFound, Unauthenticated

KeyKind = Literal["user", "service", "admin"]

_SHOWN_CHARACTERS = 6


@dataclass(frozen=True)
class ApiKey:
    id: str
    kind: KeyKind
    name: str | None
    prefix: str
    user_id: str | None
    project_id: str | None
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime


@dataclass(frozen=True)
class NewKey:
    """What to make."""

    kind: KeyKind
    name: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    expires_at: datetime | None = None


async def create_key(session: Session, wanted: NewKey) -> tuple[ApiKey, str]:
    """The key itself is known here and never again."""
    if (wanted.kind == "user") != (wanted.user_id is not None):
        raise InvalidInput("a user key needs `user_id`; service and admin keys take none")
    if wanted.project_id is not None and wanted.kind != "user":
        raise InvalidInput("only a user key can be bound to a project, which is one user's")
    if wanted.user_id is not None:
        await get_user(session, wanted.user_id)
    secret = f"ts_{wanted.kind}_{secrets.token_urlsafe(32)}"
    statement = insert(api_keys).values(
        id=str(uuid.uuid4()),
        kind=wanted.kind,
        name=wanted.name,
        prefix=secret[: len(f"ts_{wanted.kind}_") + _SHOWN_CHARACTERS],
        key_hash=hash_key(secret),
        user_id=wanted.user_id,
        project_id=wanted.project_id,
        expires_at=wanted.expires_at,
    )
    try:
        row = (await session.execute(statement.returning(api_keys))).one()
    except IntegrityError as error:
        raise NotFound("there is no such user" if wanted.project_id is None else "there is no such project") from error
    return _api_key(row), secret


async def list_keys(session: Session, page: PageRequest) -> Page[ApiKey]:
    return await fetch_page(session, select(api_keys), (api_keys.c.id, api_keys.c.id), page, _api_key)


async def get_key(session: Session, key_id: str) -> ApiKey:
    row = (await session.execute(select(api_keys).where(api_keys.c.id == key_id))).one_or_none()
    if row is None:
        raise NotFound("there is no such key")
    return _api_key(row)


async def revoke_key(session: Session, key_id: str) -> ApiKey:
    """The row stays, so that whoever looks can see that there was such a key and when it ended."""
    statement = (
        update(api_keys)
        .where(api_keys.c.id == key_id)
        .values(revoked_at=func.coalesce(api_keys.c.revoked_at, func.now()))
        .returning(api_keys)
    )
    row = (await session.execute(statement)).one_or_none()
    if row is None:
        raise NotFound("there is no such key")
    return _api_key(row)


async def admin_key_exists(session: Session) -> bool:
    statement = select(api_keys.c.id).where(api_keys.c.kind == "admin", api_keys.c.revoked_at.is_(None)).limit(1)
    return (await session.execute(statement)).first() is not None


async def get_active_key(session: Session, digest: bytes) -> ApiKey:
    row = (await session.execute(select(api_keys).where(api_keys.c.key_hash == digest))).one_or_none()
    if (
        row is None
        or row.revoked_at is not None
        or (row.expires_at is not None and row.expires_at <= datetime.now(UTC))
    ):
        raise Unauthenticated("the API key is unknown, expired or revoked")
    # to the minute is near enough, and spares a write for every request
    long_unused = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < text("now() - interval '1 minute'"))
    await session.execute(update(api_keys).where(api_keys.c.id == row.id, long_unused).values(last_used_at=func.now()))
    return _api_key(row)


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _api_key(row: Row[Any]) -> ApiKey:
    return to_dataclass(ApiKey, row)
