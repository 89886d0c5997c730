"""Lists of tools that their servers declare public: fetched once, and shared by all users of the same URL.

Only requests without any credential take part. A server may mark a list as public by mistake; what it shows to a user
who has signed in, or who sends a header, is never stored for others. See docs/decisions/0037-public-listings.md.

One process at a time fetches a list: it holds a lease on the row. Others wait for its result, for a while.
"""

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, or_

from app.db.engine import Database, Session
from app.db.retention import Deletion
from app.db.tables import public_listings
from app.errors import QueryInterrupted, Unavailable
from app.indexing.schedule import MAX_TTL_S
from app.mcp_types import Endpoint, ToolList
from app.text.strict_json import canonical_json

Fetch = Callable[[], Awaitable[ToolList]]

MAX_BYTES = 1024 * 1024
"""A larger list is not shared: every user fetches it."""
MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""Of all lists. Beyond it no further list is shared until some have expired."""
LEASE_S = 10.0
"""After so long another process may fetch the list: this one may have crashed."""
WAIT_S = 15.0
"""How long a run waits for another one's list before it fetches the list itself. Longer than a lease."""
_PRIVATE_S = 300.0
"""How long it is remembered that a list is not shared, so that runs for it do not wait for each other."""
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0


@dataclass(frozen=True)
class _Found:
    """A stored list, or None if the server's list is not shared."""

    shared: ToolList | None


@dataclass(frozen=True)
class _Lease:
    token: str | None
    """None for a run that fetches the list without a lease."""
    at: datetime
    """By the database's clock. What the server changes after it may be missing from the list."""


def get_listing_key(endpoint: Endpoint) -> bytes | None:
    """Return the key of the list, or None if it may not be shared: without a URL, or with any credential."""
    if endpoint.transport not in ("streamable_http", "sse") or endpoint.headers or endpoint.credential_version:
        return None
    return hashlib.sha256(canonical_json([endpoint.transport, endpoint.url])).digest()


async def fetch_once(database: Database, endpoint: Endpoint, fetch: Fetch, *, fresh: bool) -> tuple[ToolList, bool]:
    """Return the tools of the server, and whether they are another run's list. `fresh` always asks the server.

    No transaction is open while it waits.
    """
    key = get_listing_key(endpoint)
    if key is None:
        return await fetch(), False
    deadline, pause_s = asyncio.get_running_loop().time() + WAIT_S, _FIRST_PAUSE_S
    while not fresh:
        found = await _read_or_lease(database, key)
        if isinstance(found, _Found):
            return (await fetch(), False) if found.shared is None else (found.shared, True)
        if isinstance(found, _Lease):
            return await _fetch_and_store(database, key, found, fetch), False
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    async with database.system_transaction() as session:
        [(now,)] = await session.rows(_NOW)
    return await _fetch_and_store(database, key, _Lease(None, now), fetch), False


async def invalidate(database: Database, endpoint: Endpoint, age_s: float) -> None:
    """The server has announced a change, `age_s` seconds ago: lists that were fetched before are not used any more."""
    key = get_listing_key(endpoint)
    if key is not None:
        async with database.system_transaction() as session:
            [(now,)] = await session.rows(_NOW)
            await session.rows(_INVALIDATE, {"key": key, "changed_at": now - timedelta(seconds=age_s)})


def expired_rows() -> list[Deletion]:
    columns = public_listings.c
    is_free = or_(columns.lease_until.is_(None), columns.lease_until < func.now())
    return [delete(public_listings).where(columns.expires_at < func.now(), is_free)]


# read by itself: Citus takes no clock in a statement that writes
_NOW = "SELECT clock_timestamp()"
_IS_USABLE = "expires_at > clock_timestamp() AND (changed_at IS NULL OR fetched_at > changed_at)"
_READ = f"""
    SELECT CASE WHEN usable THEN tools END, usable, extract(epoch FROM expires_at - clock_timestamp()), leased
    FROM (SELECT *, {_IS_USABLE} AS usable, coalesce(lease_until > clock_timestamp(), false) AS leased
          FROM public_listings WHERE key = %(key)s) listing
"""
_LEASE = """
    INSERT INTO public_listings AS listing (key, lease_token, lease_until)
    VALUES (%(key)s, %(token)s, CAST(%(at)s AS timestamptz) + make_interval(secs => %(lease_s)s))
    ON CONFLICT (key) DO UPDATE SET lease_token = excluded.lease_token, lease_until = excluded.lease_until
    WHERE listing.lease_until IS NULL OR listing.lease_until < CAST(%(at)s AS timestamptz)
    RETURNING lease_token
"""
_STORE = """
    INSERT INTO public_listings AS listing (key, tools, size, fetched_at, expires_at)
    VALUES (%(key)s, %(tools)s, %(size)s, %(at)s, CAST(%(at)s AS timestamptz) + make_interval(secs => %(ttl_s)s))
    ON CONFLICT (key) DO UPDATE SET tools = excluded.tools, size = excluded.size,
           fetched_at = excluded.fetched_at, expires_at = excluded.expires_at
    WHERE listing.fetched_at IS NULL OR listing.fetched_at <= excluded.fetched_at
"""
_RELEASE = "UPDATE public_listings SET lease_until = NULL WHERE key = %(key)s AND lease_token = %(token)s"
_INVALIDATE = """
    UPDATE public_listings
    SET changed_at = %(changed_at)s WHERE key = %(key)s AND (changed_at IS NULL OR changed_at < %(changed_at)s)
"""
_TOTAL_BYTES = "SELECT coalesce(sum(size), 0) FROM public_listings"


async def _read_or_lease(database: Database, key: bytes) -> _Found | _Lease | None:
    """Return the stored list, or the lease to fetch it. None: another process is fetching it."""
    async with database.system_transaction() as session:
        [(now,)], stored = await session.pipeline([(_NOW, None), (_READ, {"key": key})])
        [(tools, usable, ttl_s, leased)] = stored or [(None, False, None, False)]
        if not usable:
            token = uuid.uuid4().hex
            values = {"key": key, "token": token, "at": now, "lease_s": LEASE_S}
            is_leased = not leased and await session.rows(_LEASE, values)
            return _Lease(token, now) if is_leased else None
    # parsing takes a while: without a connection, and off the event loop
    decoded = None if tools is None else await asyncio.to_thread(json.loads, tools)
    return _Found(None if decoded is None else ToolList(decoded, float(ttl_s), is_public=True))


async def _fetch_and_store(database: Database, key: bytes, lease: _Lease, fetch: Fetch) -> ToolList:
    try:
        listed = await fetch()
        values = await _encode(listed)
    except BaseException:
        if lease.token is not None:
            with suppress(Unavailable, QueryInterrupted):  # the lease expires by itself
                async with database.system_transaction() as session:
                    await session.rows(_RELEASE, {"key": key, "token": lease.token})
        raise
    async with database.system_transaction() as session:
        if values["size"] and await _has_no_room(session, values["size"]):
            values = _NOT_SHARED
        await session.rows(_STORE, {"key": key, "at": lease.at, **values})
        if lease.token is not None:
            await session.rows(_RELEASE, {"key": key, "token": lease.token})
    return listed


_NOT_SHARED: Mapping[str, Any] = {"tools": None, "size": 0, "ttl_s": _PRIVATE_S}


async def _has_no_room(session: Session, size: int) -> bool:
    [(total,)] = await session.rows(_TOTAL_BYTES)
    return int(total) + size > MAX_TOTAL_BYTES


async def _encode(listed: ToolList) -> Mapping[str, Any]:
    """Return the values to store: the list, or only that it is not shared."""
    if not listed.is_public or not listed.ttl_s:
        return _NOT_SHARED
    try:
        # Not orjson, which would write NaN as null: what is read again must be exactly what the server sent.
        tools = await asyncio.to_thread(lambda: json.dumps(listed.tools, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        return _NOT_SHARED
    if len(tools) > MAX_BYTES:
        return _NOT_SHARED
    return {"tools": tools, "size": len(tools), "ttl_s": min(listed.ttl_s, MAX_TTL_S)}
