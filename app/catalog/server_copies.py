"""A member's copy of a shared server: a server of its own, which follows the source and which the member cannot change.

So everything that works on servers works on copies: rules, projects, switches, tags, search and row-level security.
"""

import uuid
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sqlalchemy import func, insert, select, update

from app.catalog.servers import Server, find_server, remove_server, write_server
from app.catalog.shared_servers import SharedServer
from app.catalog.visibility import bump_catalog, lock_user
from app.crypto import Sealer
from app.db.engine import Session
from app.db.tables import mcp_servers
from app.errors import AUTHORIZATION_REQUIRED

_MAX_NAME = 128
OPERATOR_NOT_CONNECTED = "operator_credentials"


def get_copy_id(shared_id: str, user_id: str) -> str:
    """Return the id of the user's copy. It never changes, so that a user who comes back finds the same tool keys."""
    return str(uuid.uuid5(uuid.UUID(shared_id), user_id))


async def write_copy(session: Session, sealer: Sealer, user_id: str, shared: SharedServer) -> Server | None:
    """Create the user's copy or bring it up to date. Return None if it is up to date already.

    Lock the user first: the name that is chosen must still be free when the copy is written.
    """
    await lock_user(session, user_id)
    copy_id = get_copy_id(shared.server.id, user_id)
    copy = await find_server(session, user_id, copy_id)
    if copy is not None and (copy.shared_version or 0) >= shared.version:
        return None
    values = await _list_values(session, user_id, copy_id, shared)
    if copy is None:
        await session.execute(insert(mcp_servers).values(user_id=user_id, id=copy_id, **values))
        await write_source_status(session, user_id, copy_id, shared)
        await bump_catalog(session, user_id)
        return await find_server(session, user_id, copy_id)
    changes = {name: value for name, value in values.items() if getattr(copy, name) != value}
    written = await write_server(session, sealer, user_id, copy_id, changes)
    has_moved = bool({"url", "transport", "shared_credentials"} & changes.keys())
    if has_moved or not has_own_credentials(written):
        await write_source_status(session, user_id, copy_id, shared)
    return await find_server(session, user_id, copy_id)


def has_own_credentials(copy: Server) -> bool:
    """Whether calls of the copy use headers or an account of the member's own."""
    return copy.shared_credentials == "member" and (bool(copy.header_names) or copy.signed_in)


async def remove_copy(session: Session, user_id: str, shared_id: str) -> str | None:
    """Delete the user's copy and return its id; None if there is none."""
    await lock_user(session, user_id)
    copy_id = get_copy_id(shared_id, user_id)
    if await find_server(session, user_id, copy_id) is None:
        return None
    await remove_server(session, user_id, copy_id)
    return copy_id


async def _list_values(session: Session, user_id: str, copy_id: str, shared: SharedServer) -> dict[str, Any]:
    source, credentials = shared.server, shared.sharing.credentials
    return {
        "name": await _choose_name(session, user_id, copy_id, source.name),
        "description": source.description,
        "transport": source.transport,
        # path and query may hold the operator's key
        "url": _remove_path(source.url) if credentials == "operator" else source.url,
        "tags": list(source.tags),
        "tool_permissions": dict(source.tool_permissions),
        "enabled": source.enabled,
        "shared_id": source.id,
        "shared_version": shared.version,
        "shared_credentials": credentials,
    }


async def _choose_name(session: Session, user_id: str, copy_id: str, wanted: str) -> str:
    """Return the source's name, with a suffix if another server of the user has it."""
    others = mcp_servers.c.user_id == user_id, mcp_servers.c.id != copy_id
    taken = set((await session.scalars(select(mcp_servers.c.name).where(*others))).all())
    name, number = wanted, 1
    while name in taken:
        suffix = "-shared" if number == 1 else f"-shared-{number}"
        name, number = wanted[: _MAX_NAME - len(suffix)] + suffix, number + 1
    return name


def _remove_path(url: str | None) -> str | None:
    return None if url is None else urlunsplit((*urlsplit(url)[:2], "/", "", ""))


async def write_source_status(session: Session, user_id: str, copy_id: str, shared: SharedServer) -> None:
    """Let a copy without credentials of the member's own show what is known of the source."""
    copied = mcp_servers.c.user_id == user_id, mcp_servers.c.id == copy_id
    await session.execute(update(mcp_servers).where(*copied).values(**_get_status(shared), updated_at=func.now()))


def _get_status(shared: SharedServer) -> dict[str, Any]:
    source = shared.server
    needs_sign_in = source.status == "needs_authorization"
    if shared.sharing.credentials == "member" and (needs_sign_in or source.header_names or source.signed_in):
        message = (
            "this shared server needs an account or headers of your own: POST /servers/{id}/connect, "
            "PUT /servers/{id}/credentials, or Connect in the console"
        )
        return {"status": "error", "last_cause": AUTHORIZATION_REQUIRED, "last_error": message}
    if needs_sign_in:
        message = "an administrator must sign in to this shared server first"
        return {"status": "error", "last_cause": OPERATOR_NOT_CONNECTED, "last_error": message}
    stored = "disconnected" if source.status == "push" else source.status
    return {"status": stored, "last_cause": source.last_cause, "last_error": source.last_error}
