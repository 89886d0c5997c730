"""A user's MCP servers. Credentials go in and never come out."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson
from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from app.catalog.projects import remove_server_from_projects
from app.catalog.rules import rename_server_in_rules
from app.catalog.visibility import bump_catalog, lock_server, read_policy, recompute_visibility
from app.crypto import Sealer, SecretOwner
from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass, violated_constraint
from app.db.tables import mcp_servers
from app.errors import DISCONNECTIONS, ConfigurationError, Conflict, NotFound
from app.mcp_types import Endpoint, Transport

Status = Literal["connected", "disconnected", "error"]

# what a rule may ask for (the name), what hides (the switch, permissions, a failure) and what tags
_DECIDING = frozenset({"name", "enabled", "tags", "tool_permissions", "last_error"})


@dataclass(frozen=True)
class Server:
    id: str
    user_id: str
    name: str
    description: str
    transport: Transport
    url: str | None
    header_names: Sequence[str]
    tags: Sequence[str]
    tool_permissions: Mapping[str, bool]
    enabled: bool
    status: Status
    last_error: str | None
    last_cause: str | None
    config_version: int
    tool_count: int
    pending_count: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class NamedServer:
    id: str
    name: str


@dataclass(frozen=True)
class NewServer:
    name: str
    transport: Transport
    description: str = ""
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tags: Sequence[str] = ()
    enabled: bool = True
    tool_permissions: Mapping[str, bool] = field(default_factory=dict)
    """By tool name; `*` is for those that are not named. What is not permitted can be neither found nor run."""


def check_transport(transport: Transport, url: str | None) -> None:
    if transport in ("stdio", "push") and url is not None:
        raise ValueError(f"a {transport} server has no URL")
    if transport in ("streamable_http", "sse") and url is None:
        raise ValueError(f"a {transport} server needs a URL")


async def create_server(session: Session, sealer: Sealer, user_id: str, wanted: NewServer) -> Server:
    server_id = str(uuid.uuid4())
    values = {
        "user_id": user_id,
        "id": server_id,
        "name": wanted.name,
        "transport": wanted.transport,
        "description": wanted.description,
        "url": wanted.url,
        "tags": list(wanted.tags),
        "enabled": wanted.enabled,
        "tool_permissions": dict(wanted.tool_permissions),
        **_sealed(sealer, user_id, server_id, wanted.headers),
    }
    try:
        row = (await session.execute(insert(mcp_servers).values(**values).returning(mcp_servers))).one()
    except IntegrityError as error:
        if violated_constraint(error) != "mcp_servers_name":
            raise NotFound("there is no such user") from error
        raise Conflict(f"there is already a server named {wanted.name!r}") from error
    return _server(row)


async def get_server(session: Session, user_id: str, server_id: str) -> Server:
    row = (await session.execute(select(mcp_servers).where(*_this(user_id, server_id)))).one_or_none()
    if row is None:
        raise _missing()
    return _server(row)


async def list_servers(session: Session, user_id: str, page: PageRequest) -> Page[Server]:
    statement = select(mcp_servers).where(mcp_servers.c.user_id == user_id)
    return await fetch_page(session, statement, (mcp_servers.c.name, mcp_servers.c.id), page, _server)


async def list_server_names(session: Session, user_id: str) -> list[NamedServer]:
    """All of them by name, for choosing among them."""
    columns = mcp_servers.c.id, mcp_servers.c.name
    theirs = select(*columns).where(mcp_servers.c.user_id == user_id).order_by(mcp_servers.c.name)
    return [NamedServer(*row) for row in await session.execute(theirs)]


async def get_endpoint(session: Session, sealer: Sealer, user_id: str, server_id: str) -> Endpoint:
    """With the credentials opened: for connecting, never for showing."""
    row = (await session.execute(select(mcp_servers).where(*_this(user_id, server_id)))).one_or_none()
    if row is None:
        raise _missing()
    return Endpoint(
        user_id=user_id,
        server_id=server_id,
        server_name=row.name,
        config_version=row.config_version,
        transport=row.transport,
        url=row.url,
        headers=_opened(sealer, user_id, server_id, row.sealed_headers),
    )


async def record_contact(session: Session, user_id: str, server_id: str, config_version: int | None = None) -> None:
    """It answered as it should."""
    await _note_status(session, user_id, server_id, config_version, "connected", None, None)


async def record_failure(
    session: Session,
    user_id: str,
    server_id: str,
    cause: str,
    message: str,
    config_version: int | None = None,
) -> None:
    status: Status = "disconnected" if cause in DISCONNECTIONS else "error"
    await _note_status(session, user_id, server_id, config_version, status, cause, message)


async def _note_status(
    session: Session,
    user_id: str,
    server_id: str,
    config_version: int | None,
    status: Status,
    cause: str | None,
    message: str | None,
) -> None:
    """Writes only where it is news, and true of the server as it is configured now: nearly every call ends here."""
    known = mcp_servers.c.status, mcp_servers.c.last_cause, mcp_servers.c.last_error
    this = *_this(user_id, server_id), *_still(config_version)
    if await _is_old_news(session, known, this, (status, cause, message)):
        return
    await lock_server(session, user_id, server_id)
    # once more, since somebody else may have held the lock
    if await _is_old_news(session, known, this, (status, cause, message)):
        return
    values = {"status": status, "last_cause": cause, "last_error": message}
    await session.execute(update(mcp_servers).where(*this).values(**values))
    if (await read_policy(session)).find_failing:
        await bump_catalog(session, user_id)  # answers show it
    else:
        await recompute_visibility(session, user_id, server_id)


async def _is_old_news(session: Session, columns: Sequence[Any], this: Sequence[Any], news: tuple[Any, ...]) -> bool:
    known = (await session.execute(select(*columns).where(*this))).one_or_none()
    return known is None or tuple(known) == news


async def reseal_headers(session: Session, sealer: Sealer) -> tuple[int, int]:
    """With the current key, where a former one sealed them; how many of how many. Needs the system's scope."""
    columns = mcp_servers.c.user_id, mcp_servers.c.id, mcp_servers.c.sealed_headers
    sealed = mcp_servers.c.sealed_headers.is_not(None)
    # in one order, and beside whoever only refers to a server: others go on meanwhile
    statement = select(*columns).where(sealed).order_by(*columns[:2]).with_for_update(key_share=True)
    sealed_rows = (await session.execute(statement)).all()
    old = [row for row in sealed_rows if not sealer.is_current(row.sealed_headers)]
    for user_id, server_id, sealed in old:
        headers = _opened(sealer, user_id, server_id, sealed)
        values = _sealed(sealer, user_id, server_id, headers)
        await session.execute(update(mcp_servers).where(*_this(user_id, server_id)).values(**values))
    return len(old), len(sealed_rows)


async def count_undecryptable(session: Session, sealer: Sealer) -> tuple[int, int]:
    """Of how many stored credentials. Needs the system's scope."""
    columns = mcp_servers.c.user_id, mcp_servers.c.id, mcp_servers.c.sealed_headers
    rows = (await session.execute(select(*columns).where(mcp_servers.c.sealed_headers.is_not(None)))).all()
    broken = 0
    for row in rows:
        try:
            _opened(sealer, *row)
        except ConfigurationError:
            broken += 1
    return broken, len(rows)


async def find_server_by_name(session: Session, user_id: str, name: str) -> Server:
    this = mcp_servers.c.user_id == user_id, mcp_servers.c.name == name
    row = (await session.execute(select(mcp_servers).where(*this))).one_or_none()
    if row is None:
        raise NotFound(f"there is no server named {name!r}")
    return _server(row)


async def list_server_ids(session: Session, user_id: str) -> list[str]:
    statement = select(mcp_servers.c.id).where(mcp_servers.c.user_id == user_id).order_by(mcp_servers.c.name)
    return list((await session.scalars(statement)).all())


async def count_servers(session: Session, user_id: str, server_ids: Collection[str]) -> int:
    """Return how many of these ids are servers of the user."""
    owned = mcp_servers.c.user_id == user_id, mcp_servers.c.id.in_(server_ids)
    return int(await session.scalar(select(func.count()).select_from(mcp_servers).where(*owned)))


async def update_server(
    session: Session, sealer: Sealer, user_id: str, server_id: str, changes: Mapping[str, Any]
) -> Server:
    values = dict(changes)
    before = await lock_server(session, user_id, server_id)
    if "url" in values and not await _same_origin(session, user_id, server_id, values["url"]):
        values.setdefault("headers", {})  # a credential is for the host that it was given for
    if "headers" in values:
        values |= _sealed(sealer, user_id, server_id, values.pop("headers"))
    if {"url", "transport", "sealed_headers"} & values.keys():
        nothing_known = {"status": "disconnected", "last_error": None, "last_cause": None}
        values |= {"config_version": mcp_servers.c.config_version + 1, **nothing_known}
    statement = update(mcp_servers).where(*_this(user_id, server_id)).values(**values, updated_at=func.now())
    try:
        row = (await session.execute(statement.returning(mcp_servers))).one_or_none()
    except IntegrityError as error:
        raise Conflict(f"there is already a server named {changes.get('name')!r}") from error
    if row is None:
        raise _missing()
    if before is not None and before.name != row.name:
        await rename_server_in_rules(session, user_id, before.name, row.name)
    if _DECIDING & values.keys():
        await recompute_visibility(session, user_id, server_id)
    return _server(row)


async def delete_server(session: Session, user_id: str, server_id: str) -> None:
    await lock_server(session, user_id, server_id)
    if (await session.execute(delete(mcp_servers).where(*_this(user_id, server_id)))).rowcount == 0:
        raise _missing()
    await remove_server_from_projects(session, user_id, server_id)


async def get_server_owner(session: Session, server_id: str) -> str:
    """For administrators, whom the id alone tells the server: needs the system's scope."""
    user_id = await session.scalar(select(mcp_servers.c.user_id).where(mcp_servers.c.id == server_id))
    if user_id is None:
        raise _missing()
    return str(user_id)


async def _same_origin(session: Session, user_id: str, server_id: str, url: str | None) -> bool:
    before = await session.scalar(select(mcp_servers.c.url).where(*_this(user_id, server_id)))
    return _origin(before) == _origin(url)


def _origin(url: str | None) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.hostname, parts.port


def _this(user_id: str, server_id: str) -> tuple[Any, Any]:
    return mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id


def _sealed(sealer: Sealer, user_id: str, server_id: str, headers: Mapping[str, str] | None) -> dict[str, Any]:
    if not headers:
        return {"sealed_headers": None, "header_names": []}
    sealed = sealer.seal(orjson.dumps(dict(headers)), SecretOwner(user_id, server_id, "headers"))
    return {"sealed_headers": sealed, "header_names": sorted(headers)}


def _opened(sealer: Sealer, user_id: str, server_id: str, sealed: bytes | None) -> dict[str, str]:
    if sealed is None:
        return {}
    headers: dict[str, str] = orjson.loads(sealer.open(sealed, SecretOwner(user_id, server_id, "headers")))
    return headers


def _still(config_version: int | None) -> tuple[Any, ...]:
    return () if config_version is None else (mcp_servers.c.config_version == config_version,)


def _missing() -> NotFound:
    return NotFound("there is no such server")


def _server(row: Row[Any]) -> Server:
    return to_dataclass(Server, row)
