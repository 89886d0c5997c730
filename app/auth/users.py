"""Users: the tenants. A user's id is the one that the chat backend uses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError

from app.audit.record import record_event
from app.db.engine import Session
from app.db.notifications import Channel, notify
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.pipeline import Rows, Statement
from app.db.rows import to_dataclass
from app.db.tables import SHARED_OWNER, core_tools, users, waiting_users
from app.errors import Conflict, InvalidInput, NotFound

USER_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@:|+=~-]{0,127}$"
_USER_ID = re.compile(USER_ID_PATTERN)


@dataclass(frozen=True)
class User:
    id: str
    name: str | None
    settings: Mapping[str, Any]
    discovery_enabled: bool
    discovery_pinned: bool
    """Whether `discovery_enabled` was set for this user; see `auth.rollout`."""
    catalog_version: int
    """Increases with every change to what the user can see. Read with every request, so that replicas agree."""
    examples_version: int
    """Increases with every change to what is learnt from the user's outcomes; 0: nothing is learnt yet."""
    tool_count: int
    ann: bool
    calibration: Mapping[str, Any] | None
    """The user's own values of the chance that any tool fits (`embeddings.calibration.UserCalibration`)."""
    adaptation: Mapping[str, Any]
    """What the user's outcomes say about that chance (`usage.adaptation.CutEvidence`)."""
    groups: Sequence[str]
    """Sorted, as the identity provider named them last."""
    created_at: datetime


_SELECT_USER = f"SELECT {', '.join(field.name for field in fields(User))} FROM users WHERE id = %(user_id)s"


def select_user(user_id: str) -> Statement:
    """Return the statement that finds the user; `read_user` reads its answer."""
    return _SELECT_USER, {"user_id": user_id}


def read_user(rows: Rows) -> User | None:
    return User(*rows[0]) if rows else None


def is_user_id(text: str) -> bool:
    return _USER_ID.fullmatch(text) is not None


async def insert_user(session: Session, user_id: str, name: str | None) -> User:
    try:
        row = (await session.execute(insert(users).values(id=user_id, name=name).returning(users))).one()
    except IntegrityError as error:
        raise Conflict(f"there is already a user {user_id!r}") from error
    await notify(session, Channel.SHARED_SERVERS)  # those for everyone are now for this user, too
    return _to_user(row)


async def ensure_user(session: Session, user_id: str, actor: str) -> User:
    """Return the user, and create it if a service or admin key names it for the first time."""
    if not is_user_id(user_id):
        raise InvalidInput(
            "a user id is 1 to 128 letters, digits or . _ @ : | + = ~ - and begins with a letter or digit"
        )
    statement = upsert(users).values(id=user_id).on_conflict_do_nothing().returning(users.c.id)
    if await session.scalar(statement) is not None:
        await record_event(session, user_id, actor, "user.create", user_id)
        await notify(session, Channel.SHARED_SERVERS)
    return await get_user(session, user_id)


async def ensure_shared_owner(session: Session) -> None:
    """Create the owner of shared servers unless it exists. Needs a system transaction."""
    await session.execute(upsert(users).values(id=SHARED_OWNER).on_conflict_do_nothing())


async def get_account(session: Session, user_id: str) -> User:
    """Return a user that administrators manage, which the owner of shared servers is not."""
    _refuse_shared_owner(user_id)
    return await get_user(session, user_id)


async def lock_account(session: Session, user_id: str) -> None:
    """Keep a user that administrators manage until the transaction ends. Raise `NotFound` if there is none."""
    _refuse_shared_owner(user_id)
    statement = select(users.c.id).where(users.c.id == user_id).with_for_update(read=True, key_share=True)
    if await session.scalar(statement) is None:
        raise _not_found()


async def get_user(session: Session, user_id: str) -> User:
    row = (await session.execute(select(users).where(users.c.id == user_id))).one_or_none()
    if row is None:
        raise _not_found()
    return _to_user(row)


async def list_users(session: Session, page: PageRequest) -> Page[User]:
    statement = select(users).where(users.c.id != SHARED_OWNER)
    return await fetch_page(session, statement, (users.c.id, users.c.id), page, _to_user)


async def update_user(session: Session, user_id: str, changes: Mapping[str, Any]) -> User:
    _refuse_shared_owner(user_id)
    if not changes:
        return await get_user(session, user_id)
    statement = update(users).where(users.c.id == user_id).values(**changes).returning(users)
    row = (await session.execute(statement)).one_or_none()
    if row is None:
        raise _not_found()
    return _to_user(row)


async def change_groups(session: Session, user_id: str, groups: Sequence[str], actor: str) -> User:
    """Store the groups that the identity provider names."""
    user = await update_user(session, user_id, {"groups": list(groups)})
    await record_event(session, user_id, actor, "user.groups", user_id)
    await notify(session, Channel.SHARED_SERVERS)
    return user


Version = Literal["catalog_version", "examples_version"]

LOCK_USER = "SELECT 1 FROM users WHERE id = %(user_id)s FOR NO KEY UPDATE"
DRAW_VERSION = "SELECT nextval('catalog_versions')"
_RAISE_VERSION = "UPDATE users SET {name} = %(version)s WHERE id = %(user_id)s"
RAISE_CATALOG_VERSION = _RAISE_VERSION.format(name="catalog_version")
RAISE_OLDER_VERSIONS = """
    UPDATE users SET catalog_version = %(version)s WHERE catalog_version > %(above)s AND catalog_version < %(version)s
"""
LIST_NEWER_VERSIONS = "SELECT id FROM users WHERE catalog_version > %(version)s ORDER BY id"


async def raise_version(session: Session, user_id: str, name: Version) -> bool:
    """Give one of the user's versions a new, higher value. Return False if there is no such user.

    The value is drawn while the user's row is locked: otherwise, of two transactions the one that commits first could
    have the higher value. It is drawn before the update, because Citus draws none in one.
    """
    found, [(version,)] = await session.pipeline([(LOCK_USER, {"user_id": user_id}), (DRAW_VERSION, None)])
    if found:
        await session.rows(_RAISE_VERSION.format(name=name), {"version": version, "user_id": user_id})
    return bool(found)


async def raise_all_catalog_versions(session: Session) -> None:
    """Give every user's catalogue a new, higher version. Needs a system transaction."""
    version = -1
    for _ in range(2):  # again, for those whose catalogue has changed since the value was drawn
        above, [(version,)] = version, await session.rows(DRAW_VERSION)
        await session.rows(RAISE_OLDER_VERSIONS, {"above": above, "version": version})
    # and those whose catalogue has changed meanwhile
    for (user_id,) in await session.rows(LIST_NEWER_VERSIONS, {"version": version}):
        await raise_version(session, user_id, "catalog_version")


async def delete_user(session: Session, user_id: str) -> None:
    """Delete the user. Foreign keys delete its servers, tools, vectors and runs; the caller deletes its keys."""
    _refuse_shared_owner(user_id)
    # Lock the user before the delete cascades to its servers. Other writers lock in the same order (see
    # `catalog.visibility.lock_server`); the opposite order could deadlock.
    await session.execute(select(users.c.id).where(users.c.id == user_id).with_for_update())
    deleted = await session.execute(delete(users).where(users.c.id == user_id))
    if deleted.rowcount == 0:
        raise _not_found()
    # without a foreign key, since rows for everyone belong to no user
    await session.execute(delete(core_tools).where(core_tools.c.user_id == user_id))
    await session.execute(delete(waiting_users).where(waiting_users.c.user_id == user_id))


def _refuse_shared_owner(user_id: str) -> None:
    if user_id == SHARED_OWNER:
        raise _not_found()


def _not_found() -> NotFound:
    return NotFound("there is no such user")


def _to_user(row: Row[Any]) -> User:
    return to_dataclass(User, row)
