"""API keys. A key is shown once, and only its SHA-256 is stored.

Keys are long and random, so that a slow password hash would protect them no better.
"""

import hashlib
import secrets
import uuid
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Row, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from app.auth.users import lock_account
from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.pipeline import Rows, Statement
from app.db.rows import to_dataclass
from app.db.tables import api_keys, projects
from app.errors import InvalidInput, NotFound, Unauthenticated

KeyKind = Literal["user", "service", "admin"]

_PREFIX_CHARACTERS = 6


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
    kind: KeyKind
    name: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    expires_at: datetime | None = None


_SELECT_KEY = f"SELECT {', '.join(field.name for field in fields(ApiKey))} FROM api_keys WHERE key_hash = %(digest)s"


async def insert_key(session: Session, new_key: NewKey) -> tuple[ApiKey, str]:
    """Return the key's record and the key itself, which cannot be read again."""
    if (new_key.kind == "user") != (new_key.user_id is not None):
        raise InvalidInput("a user key needs `user_id`; service and admin keys take none")
    if new_key.project_id is not None and new_key.kind != "user":
        raise InvalidInput("only a user key can be bound to a project, since a project belongs to one user")
    if new_key.user_id is not None:
        await lock_account(session, new_key.user_id)
        await _lock_project(session, new_key.user_id, new_key.project_id)
    secret = f"ts_{new_key.kind}_{secrets.token_urlsafe(32)}"
    statement = insert(api_keys).values(
        id=str(uuid.uuid4()),
        kind=new_key.kind,
        name=new_key.name,
        prefix=secret[: len(f"ts_{new_key.kind}_") + _PREFIX_CHARACTERS],
        key_hash=hash_key(secret),
        user_id=new_key.user_id,
        project_id=new_key.project_id,
        expires_at=new_key.expires_at,
    )
    try:
        row = (await session.execute(statement.returning(api_keys))).one()
    except IntegrityError as error:
        raise NotFound("there is no such project") from error
    return _to_api_key(row), secret


async def _lock_project(session: Session, user_id: str, project_id: str | None) -> None:
    """Keep the project that a key is bound to until the transaction ends. Raise `NotFound` if there is none."""
    if project_id is not None:
        project = projects.c.user_id == user_id, projects.c.id == project_id
        statement = select(projects.c.id).where(*project).with_for_update(read=True, key_share=True)
        if await session.scalar(statement) is None:
            raise NotFound("there is no such project")


async def list_keys(session: Session, page: PageRequest) -> Page[ApiKey]:
    return await fetch_page(session, select(api_keys), (api_keys.c.id, api_keys.c.id), page, _to_api_key)


async def count_active_keys(session: Session, user_id: str) -> int:
    """Return how many keys of the user are neither revoked nor expired."""
    k = api_keys.c
    active = k.user_id == user_id, k.revoked_at.is_(None), or_(k.expires_at.is_(None), k.expires_at > func.now())
    return int(await session.scalar(select(func.count()).select_from(api_keys).where(*active)))


async def get_key(session: Session, key_id: str) -> ApiKey:
    row = (await session.execute(select(api_keys).where(api_keys.c.id == key_id))).one_or_none()
    if row is None:
        raise _not_found()
    return _to_api_key(row)


async def revoke_key(session: Session, key_id: str) -> ApiKey:
    """Mark a key as revoked. The row stays, as a record of when the key ended. Revoking twice changes nothing."""
    is_active = api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None)
    await session.execute(update(api_keys).where(*is_active).values(revoked_at=func.now()))
    return await get_key(session, key_id)


async def delete_keys(session: Session, user_id: str, project_id: str | None = None) -> list[str]:
    """Delete the keys of a user, or those that are bound to a project, and return the ids of those not revoked.

    In a database on one node, foreign keys would. Without this, a key of a deleted user would be valid again for the
    next user of that id. The caller has locked the user or the project, for which no key can be made meanwhile.
    """
    owner = [api_keys.c.user_id == user_id]
    if project_id is not None:
        owner.append(api_keys.c.project_id == project_id)
    statement = delete(api_keys).where(*owner).returning(api_keys.c.id, api_keys.c.revoked_at)
    return [row.id for row in await session.execute(statement) if row.revoked_at is None]


async def admin_key_exists(session: Session) -> bool:
    statement = select(api_keys.c.id).where(api_keys.c.kind == "admin", api_keys.c.revoked_at.is_(None)).limit(1)
    return (await session.execute(statement)).first() is not None


def select_key(digest: bytes) -> Statement:
    """Return the statement that finds the key with this hash; `read_active_key` reads its answer."""
    return _SELECT_KEY, {"digest": digest}


def read_active_key(rows: Rows) -> ApiKey:
    """Return the key, or raise `Unauthenticated` if it is not valid now."""
    if rows:
        key = ApiKey(*rows[0])
        if key.revoked_at is None and (key.expires_at is None or key.expires_at > datetime.now(UTC)):
            return key
    raise Unauthenticated("the API key is unknown, expired or revoked")


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _not_found() -> NotFound:
    return NotFound("there is no such key")


def _to_api_key(row: Row[Any]) -> ApiKey:
    return to_dataclass(ApiKey, row)
