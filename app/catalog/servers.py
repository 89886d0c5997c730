"""A user's MCP servers. Credentials are stored encrypted and never returned."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import orjson
from sqlalchemy import Row, Table, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from app.catalog.availability import Status, get_server_status
from app.catalog.projects import remove_server_from_projects
from app.catalog.rules import rename_server_in_rules
from app.catalog.visibility import bump_catalog, lock_server, read_policy, recompute_visibility
from app.crypto import Sealer, SecretOwner
from app.db.engine import Session
from app.db.pagination import Page, PageRequest, fetch_page
from app.db.rows import to_dataclass, violated_constraint
from app.db.tables import authorization_requests, mcp_servers, mcp_tools, server_connections
from app.errors import DISCONNECTIONS, AuthorizationRequired, ConfigurationError, Conflict, Forbidden, NotFound
from app.mcp_types import Endpoint, Transport

# visibility depends on these: rules match the name; the switch, permissions and errors hide; tools inherit the tags
_VISIBILITY_COLUMNS = frozenset({"name", "enabled", "tags", "tool_permissions", "last_error"})


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
    listed_at: datetime | None
    """When its tools were listed, or pushed, for the first time; null for servers of which an older version did it."""
    signed_in: bool
    """Whether Toolscout has an access token of the user for this server."""
    created_at: datetime
    updated_at: datetime
    shared_id: str | None
    """The shared server that this one is a member's copy of."""
    shared_version: int | None
    shared_credentials: str | None

    @property
    def shared(self) -> bool:
        return self.shared_id is not None


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
    """By tool name; `*` stands for all others. A tool that is not permitted can be neither found nor run."""


def check_transport(transport: Transport, url: str | None) -> None:
    if transport in ("stdio", "push") and url is not None:
        raise ValueError(f"a {transport} server has no URL")
    if transport in ("streamable_http", "sse") and url is None:
        raise ValueError(f"a {transport} server needs a URL")


async def insert_server(session: Session, sealer: Sealer, user_id: str, new_server: NewServer) -> Server:
    server_id = str(uuid.uuid4())
    values = {
        "user_id": user_id,
        "id": server_id,
        "name": new_server.name,
        "transport": new_server.transport,
        "description": new_server.description,
        "url": new_server.url,
        "tags": list(new_server.tags),
        "enabled": new_server.enabled,
        "tool_permissions": dict(new_server.tool_permissions),
        **_seal_headers(sealer, user_id, server_id, new_server.headers),
    }
    try:
        row = (await session.execute(insert(mcp_servers).values(**values).returning(mcp_servers))).one()
    except IntegrityError as error:
        if violated_constraint(error) != "mcp_servers_name":
            raise NotFound("there is no such user") from error
        raise Conflict(f"there is already a server named {new_server.name!r}") from error
    return _to_server(row)


async def get_server(session: Session, user_id: str, server_id: str) -> Server:
    server = await find_server(session, user_id, server_id)
    if server is None:
        raise _not_found()
    return server


async def find_server(session: Session, user_id: str, server_id: str) -> Server | None:
    row = (await session.execute(select(mcp_servers).where(*_by_id(user_id, server_id)))).one_or_none()
    return None if row is None else _to_server(row)


async def require_own_server(session: Session, user_id: str, server_id: str) -> Server:
    """Return a server that its user may change. Raise `Forbidden` for a member's copy of a shared server."""
    server = await get_server(session, user_id, server_id)
    check_changes(server, ["all"])
    return server


async def require_own_servers(session: Session, user_id: str, tool_ids: Collection[str]) -> None:
    """Raise `Forbidden` if one of the tools belongs to a member's copy of a shared server."""
    owned = mcp_tools.c.user_id == user_id, mcp_tools.c.id.in_(tool_ids)
    server_ids = (await session.scalars(select(mcp_tools.c.server_id).where(*owned).distinct())).all()
    for server_id in sorted(server_ids):
        await require_own_server(session, user_id, server_id)


def check_changes(server: Server, fields: Collection[str]) -> None:
    """Raise `Forbidden` unless the user may change these fields: of a shared server, only headers of one's own."""
    if not server.shared or (set(fields) <= {"headers"} and server.shared_credentials == "member"):
        return
    if set(fields) <= {"headers"}:
        raise Forbidden(f"calls of the shared server {server.name!r} use the administrator's credentials")
    raise Forbidden(
        f"the server {server.name!r} is shared: an administrator manages it; you can switch, tag and pin its tools"
    )


async def list_servers(session: Session, user_id: str, page: PageRequest) -> Page[Server]:
    statement = select(mcp_servers).where(mcp_servers.c.user_id == user_id)
    return await fetch_page(session, statement, (mcp_servers.c.name, mcp_servers.c.id), page, _to_server)


async def list_server_names(session: Session, user_id: str) -> list[NamedServer]:
    """Return ids and names of all servers of the user, by name."""
    columns = mcp_servers.c.id, mcp_servers.c.name
    statement = select(*columns).where(mcp_servers.c.user_id == user_id).order_by(mcp_servers.c.name)
    return [NamedServer(*row) for row in await session.execute(statement)]


async def get_endpoint(session: Session, sealer: Sealer, user_id: str, server_id: str) -> Endpoint:
    """Return what is needed to connect, with decrypted credentials. Never show it to a caller."""
    row = (await session.execute(select(mcp_servers).where(*_by_id(user_id, server_id)))).one_or_none()
    if row is None:
        raise _not_found()
    return Endpoint(
        user_id=user_id,
        server_id=server_id,
        server_name=row.name,
        config_version=row.config_version,
        transport=row.transport,
        url=row.url,
        headers=_open_headers(sealer, user_id, server_id, row.sealed_headers),
        signed_in=row.signed_in,
        needs_sign_in=get_server_status(row.transport, row.status, row.last_cause) == "needs_authorization",
        shared_id=row.shared_id,
        uses_operator_account=row.shared_credentials == "operator",
    )


async def record_contact(session: Session, user_id: str, server_id: str, config_version: int | None = None) -> None:
    """Record that the server answered as it should."""
    await _update_status(session, user_id, server_id, config_version, "connected", None, None)


async def record_listing(session: Session, user_id: str, server_id: str) -> None:
    """Record that the server's tools have been listed: those that appear from now on are new."""
    first = *_by_id(user_id, server_id), mcp_servers.c.listed_at.is_(None)
    await session.execute(update(mcp_servers).where(*first).values(listed_at=func.now()))


async def record_failure(
    session: Session,
    user_id: str,
    server_id: str,
    cause: str,
    message: str,
    config_version: int | None = None,
) -> None:
    """Record why the server could not be used. `cause` is one stable word, `message` a text for people."""
    status: Status = "disconnected" if cause in DISCONNECTIONS else "error"
    await _update_status(session, user_id, server_id, config_version, status, cause, message)


async def set_signed_in(session: Session, user_id: str, server_id: str, *, signed_in: bool) -> None:
    """Record that the user has signed in to the server or out of it. All connections to it begin again."""
    await lock_server(session, user_id, server_id)
    required = AuthorizationRequired()
    status = (
        {"status": "disconnected", "last_cause": None, "last_error": None}
        if signed_in
        else {"status": "error", "last_cause": required.cause, "last_error": required.message}
    )
    values = {**status, "signed_in": signed_in, "config_version": mcp_servers.c.config_version + 1}
    if (await session.execute(update(mcp_servers).where(*_by_id(user_id, server_id)).values(**values))).rowcount == 0:
        raise _not_found()
    await recompute_visibility(session, user_id, server_id)


async def _update_status(
    session: Session,
    user_id: str,
    server_id: str,
    config_version: int | None,
    status: Status,
    cause: str | None,
    message: str | None,
) -> None:
    """Write only if something changes: nearly every call of a tool ends here.

    With `config_version`, nothing is written if the server has been reconfigured since.
    """
    server: tuple[Any, ...] = _by_id(user_id, server_id)
    if config_version is not None:
        server = *server, mcp_servers.c.config_version == config_version
    values = {"status": status, "last_cause": cause, "last_error": message}
    if not await _would_change(session, server, values):
        return
    await lock_server(session, user_id, server_id)
    # check again: another transaction may have held the lock, and written the same
    if not await _would_change(session, server, values):
        return
    await session.execute(update(mcp_servers).where(*server).values(**values))
    if (await read_policy(session)).find_failing:
        await bump_catalog(session, user_id)  # cached definitions hold the status
    else:
        await recompute_visibility(session, user_id, server_id)


async def _would_change(session: Session, server: Sequence[Any], values: Mapping[str, Any]) -> bool:
    columns = [mcp_servers.c[name] for name in values]
    stored = (await session.execute(select(*columns).where(*server))).one_or_none()
    return stored is not None and tuple(stored) != tuple(values.values())


async def reseal_headers(session: Session, sealer: Sealer) -> tuple[int, int]:
    """Seal headers again that were sealed with a former key. Needs a system transaction.

    Return how many were resealed, and how many there are.
    """
    columns = mcp_servers.c.user_id, mcp_servers.c.id, mcp_servers.c.sealed_headers
    statement = select(*columns).where(mcp_servers.c.sealed_headers.is_not(None)).order_by(*columns[:2])
    sealed_rows = (await session.execute(statement)).all()
    old = [row for row in sealed_rows if not sealer.is_current(row.sealed_headers)]
    for user_id, server_id, sealed in old:
        headers = _open_headers(sealer, user_id, server_id, sealed)
        values = _seal_headers(sealer, user_id, server_id, headers)
        # headers that somebody has changed meanwhile are sealed with the current key already
        unchanged = *_by_id(user_id, server_id), mcp_servers.c.sealed_headers == sealed
        await session.execute(update(mcp_servers).where(*unchanged).values(**values))
    return len(old), len(sealed_rows)


async def count_undecryptable(session: Session, sealer: Sealer) -> tuple[int, int]:
    """Return how many stored credentials cannot be decrypted, and how many there are. Needs a system transaction."""
    columns = mcp_servers.c.user_id, mcp_servers.c.id, mcp_servers.c.sealed_headers
    rows = (await session.execute(select(*columns).where(mcp_servers.c.sealed_headers.is_not(None)))).all()
    broken = 0
    for row in rows:
        try:
            _open_headers(sealer, *row)
        except ConfigurationError:
            broken += 1
    return broken, len(rows)


async def find_server_by_name(session: Session, user_id: str, name: str) -> Server:
    named = mcp_servers.c.user_id == user_id, mcp_servers.c.name == name
    row = (await session.execute(select(mcp_servers).where(*named))).one_or_none()
    if row is None:
        raise NotFound(f"there is no server named {name!r}")
    return _to_server(row)


async def list_server_ids(session: Session, user_id: str) -> list[str]:
    statement = select(mcp_servers.c.id).where(mcp_servers.c.user_id == user_id).order_by(mcp_servers.c.name)
    return list((await session.scalars(statement)).all())


async def list_copy_ids(session: Session, user_id: str) -> set[str]:
    """Return the ids of the user's copies of shared servers."""
    copies = mcp_servers.c.user_id == user_id, mcp_servers.c.shared_id.is_not(None)
    return set((await session.scalars(select(mcp_servers.c.id).where(*copies))).all())


async def count_own_servers(session: Session, user_id: str) -> int:
    """Return how many servers the user has, without copies of shared ones."""
    own = mcp_servers.c.user_id == user_id, mcp_servers.c.shared_id.is_(None)
    return int(await session.scalar(select(func.count()).select_from(mcp_servers).where(*own)))


async def count_servers(session: Session, user_id: str, server_ids: Collection[str]) -> int:
    """Return how many of these ids are servers of the user."""
    owned = mcp_servers.c.user_id == user_id, mcp_servers.c.id.in_(server_ids)
    return int(await session.scalar(select(func.count()).select_from(mcp_servers).where(*owned)))


async def update_server(
    session: Session, sealer: Sealer, user_id: str, server_id: str, changes: Mapping[str, Any]
) -> Server:
    """Raise `Forbidden` for a shared server, of which a member can change its own headers alone."""
    check_changes(await get_server(session, user_id, server_id), changes.keys())
    return await write_server(session, sealer, user_id, server_id, changes)


async def write_server(
    session: Session, sealer: Sealer, user_id: str, server_id: str, changes: Mapping[str, Any]
) -> Server:
    """Change a server without a check of who manages it."""
    values = dict(changes)
    before = await lock_server(session, user_id, server_id)
    has_moved = "url" in values and not await _has_origin(session, user_id, server_id, values["url"])
    if has_moved:
        # credentials must not be sent to another host than they were given for
        values.setdefault("headers", {})
    if has_moved or _has_authorization(values.get("headers")):  # a header replaces the token of a sign-in
        await session.execute(delete(server_connections).where(*_by_server(server_connections, user_id, server_id)))
        pending = _by_server(authorization_requests, user_id, server_id)
        await session.execute(delete(authorization_requests).where(*pending))
        values["signed_in"] = False
    if "headers" in values:
        values |= _seal_headers(sealer, user_id, server_id, values.pop("headers"))
    if {"url", "transport", "sealed_headers"} & values.keys():
        not_yet_contacted = {"status": "disconnected", "last_error": None, "last_cause": None}
        values |= {"config_version": mcp_servers.c.config_version + 1, **not_yet_contacted}
    statement = update(mcp_servers).where(*_by_id(user_id, server_id)).values(**values, updated_at=func.now())
    try:
        row = (await session.execute(statement.returning(mcp_servers))).one_or_none()
    except IntegrityError as error:
        raise Conflict(f"there is already a server named {changes.get('name')!r}") from error
    if row is None:
        raise _not_found()
    if before is not None and before.name != row.name:
        await rename_server_in_rules(session, user_id, before.name, row.name)
    if _VISIBILITY_COLUMNS & values.keys():
        await recompute_visibility(session, user_id, server_id)
    elif "description" in values:
        await bump_catalog(session, user_id)  # cached lists of servers hold the description
    return _to_server(row)


async def delete_server(session: Session, user_id: str, server_id: str) -> None:
    """Raise `Forbidden` for a shared server."""
    await require_own_server(session, user_id, server_id)
    await remove_server(session, user_id, server_id)


async def remove_server(session: Session, user_id: str, server_id: str) -> None:
    """Delete a server without a check of who manages it."""
    await lock_server(session, user_id, server_id)
    if (await session.execute(delete(mcp_servers).where(*_by_id(user_id, server_id)))).rowcount == 0:
        raise _not_found()
    await remove_server_from_projects(session, user_id, server_id)


async def get_server_owner(session: Session, server_id: str) -> str:
    """Return the user of a server, for administrators who name no user. Needs a system transaction."""
    user_id = await session.scalar(select(mcp_servers.c.user_id).where(mcp_servers.c.id == server_id))
    if user_id is None:
        raise _not_found()
    return str(user_id)


async def _has_origin(session: Session, user_id: str, server_id: str, url: str | None) -> bool:
    stored_url = await session.scalar(select(mcp_servers.c.url).where(*_by_id(user_id, server_id)))
    return _get_origin(stored_url) == _get_origin(url)


def _get_origin(url: str | None) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.hostname, parts.port


def _by_id(user_id: str, server_id: str) -> tuple[Any, Any]:
    return mcp_servers.c.user_id == user_id, mcp_servers.c.id == server_id


def _has_authorization(headers: Mapping[str, str] | None) -> bool:
    return any(name.lower() == "authorization" for name in headers or {})


def _by_server(table: Table, user_id: str, server_id: str) -> tuple[Any, Any]:
    """Return the condition for the rows of a server in another table."""
    return table.c.user_id == user_id, table.c.server_id == server_id


def _seal_headers(sealer: Sealer, user_id: str, server_id: str, headers: Mapping[str, str] | None) -> dict[str, Any]:
    if not headers:
        return {"sealed_headers": None, "header_names": []}
    sealed = sealer.seal(orjson.dumps(dict(headers)), SecretOwner(user_id, server_id, "headers"))
    return {"sealed_headers": sealed, "header_names": sorted(headers)}


def _open_headers(sealer: Sealer, user_id: str, server_id: str, sealed: bytes | None) -> dict[str, str]:
    if sealed is None:
        return {}
    headers: dict[str, str] = orjson.loads(sealer.open(sealed, SecretOwner(user_id, server_id, "headers")))
    return headers


def _not_found() -> NotFound:
    return NotFound("there is no such server")


def _to_server(row: Row[Any]) -> Server:
    server = to_dataclass(Server, row)
    return replace(server, status=get_server_status(server.transport, server.status, server.last_cause))
