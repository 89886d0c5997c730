"""Stores accounts at users' servers, and sign-ins that have begun. Everything secret is sealed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Column, Delete, Row, Table, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from app.connections.models import OAuthContext, PendingRequest, ServerConnection, Tokens
from app.crypto import Sealer, SecretOwner
from app.db.engine import Session
from app.db.tables import authorization_requests, server_connections
from app.errors import ConfigurationError, NotFound
from app.text.strict_json import Json

MAX_PENDING = 20
"""Sign-ins of one user that wait for a browser at the same time; older ones are dropped."""

_CONTEXT, _TOKENS, _REQUEST = "oauth_context", "oauth_tokens", "oauth_request"

_connections, _requests = server_connections.c, authorization_requests.c


async def read_connection(session: Session, sealer: Sealer, user_id: str, server_id: str) -> ServerConnection | None:
    statement = select(server_connections, func.now().label("now")).where(*_by_server(user_id, server_id))
    row = (await session.execute(statement)).one_or_none()
    return None if row is None else _to_connection(sealer, row)


async def store_connection(
    session: Session, sealer: Sealer, user_id: str, server_id: str, context: OAuthContext, tokens: Tokens
) -> None:
    """Store a new account in place of an earlier one. What a call was refused for want of has been asked for."""
    values = {
        "sealed_context": _seal(sealer, user_id, server_id, _CONTEXT, asdict(context)),
        "issuer": context.issuer,
        "resource": context.resource,
        "required_scope": None,
        **_token_values(sealer, user_id, server_id, tokens),
    }
    statement = insert(server_connections).values(user_id=user_id, server_id=server_id, **values)
    new = {name: statement.excluded[name] for name in values}
    replaced = {**new, "version": _connections.version + 1}
    await session.execute(
        statement.on_conflict_do_update(index_elements=[_connections.user_id, _connections.server_id], set_=replaced)
    )


async def require_scope(session: Session, user_id: str, server_id: str, scope: str | None) -> None:
    """Remember that a call was refused for want of a sign-in, or of more rights: the next sign-in asks for them."""
    statement = insert(server_connections).values(user_id=user_id, server_id=server_id, required_scope=scope)
    kept = func.coalesce(statement.excluded.required_scope, _connections.required_scope)
    keys = [_connections.user_id, _connections.server_id]
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_={"required_scope": kept}))


async def wants_sign_in(session: Session, user_id: str, server_id: str) -> bool:
    """Return whether calls were refused for want of a sign-in, whatever the server says when it is listed."""
    wanting = *_by_server(user_id, server_id), _connections.sealed_tokens.is_(None)
    return await session.scalar(select(_connections.server_id).where(*wanting)) is not None


async def claim_refresh(session: Session, connection: ServerConnection, lease: timedelta) -> bool:
    """Claim the right to refresh this version of the token. Return False if another process has it."""
    is_free = or_(_connections.lease_until.is_(None), _connections.lease_until < func.now())
    statement = update(server_connections).where(*_by_version(connection), is_free)
    return (await session.execute(statement.values(lease_until=func.now() + lease))).rowcount == 1


async def release_refresh(session: Session, connection: ServerConnection) -> None:
    await session.execute(update(server_connections).where(*_by_version(connection)).values(lease_until=None))


async def replace_tokens(session: Session, sealer: Sealer, connection: ServerConnection, tokens: Tokens) -> bool:
    """Store refreshed tokens, unless the account was connected again or removed meanwhile."""
    values = _token_values(sealer, connection.user_id, connection.server_id, tokens)
    statement = update(server_connections).where(*_by_version(connection))
    return (await session.execute(statement.values(**values, version=_connections.version + 1))).rowcount == 1


async def drop_tokens(session: Session, connection: ServerConnection) -> bool:
    """Remove tokens that the authorization server no longer accepts, unless there are newer ones."""
    values = {"sealed_tokens": None, "expires_at": None, "lease_until": None, "version": _connections.version + 1}
    return (
        await session.execute(update(server_connections).where(*_by_version(connection)).values(values))
    ).rowcount == 1


async def delete_connection(session: Session, user_id: str, server_id: str) -> bool:
    """Delete the account and the sign-ins that have begun. Return whether there was an account."""
    pending = _requests.user_id == user_id, _requests.server_id == server_id
    await session.execute(delete(authorization_requests).where(*pending))
    return (await session.execute(delete(server_connections).where(*_by_server(user_id, server_id)))).rowcount == 1


async def insert_request(
    session: Session, sealer: Sealer, user_id: str, request: PendingRequest, lifetime: timedelta
) -> datetime:
    """Store a sign-in that has begun, and return when it expires. Drop the user's oldest ones beyond the limit."""
    secrets = {
        "context": asdict(request.context),
        "verifier": request.verifier,
        "authorization_url": request.authorization_url,
        "required_scope": request.required_scope,
    }
    statement = insert(authorization_requests).values(
        user_id=user_id,
        id=request.id,
        server_id=request.server_id,
        sealed=_seal(sealer, user_id, request.id, _REQUEST, secrets),
        redirect_url=request.redirect_url,
        browser=request.browser,
        actor=request.actor,
        expires_at=func.now() + lifetime,
    )
    try:
        expires_at: datetime = await session.scalar(statement.returning(_requests.expires_at))
    except IntegrityError as error:
        raise NotFound("there is no such server") from error
    own = _requests.user_id == user_id
    kept = select(_requests.id).where(own).order_by(_requests.created_at.desc(), _requests.id).limit(MAX_PENDING)
    await session.execute(delete(authorization_requests).where(own, _requests.id.not_in(kept)))
    return expires_at


async def find_request(
    session: Session,
    sealer: Sealer,
    user_id: str,
    server_id: str,
    redirect_url: str | None,
    actor: str,
    min_lifetime: timedelta,
) -> PendingRequest | None:
    """Return the newest sign-in that has begun for the same actor outside of a browser, and can still be used."""
    statement = select(authorization_requests).where(
        _requests.user_id == user_id,
        _requests.server_id == server_id,
        _requests.actor == actor,
        _requests.browser.is_(None),
        _requests.redirect_url.is_not_distinct_from(redirect_url),
        _requests.expires_at > func.now() + min_lifetime,
    )
    row = (await session.execute(statement.order_by(_requests.expires_at.desc()).limit(1))).one_or_none()
    return None if row is None else _to_request(sealer, row, is_expired=False)


async def take_request(session: Session, sealer: Sealer, user_id: str, request_id: str) -> PendingRequest | None:
    """Return a sign-in and delete it, so that it is used once."""
    statement = delete(authorization_requests).where(_requests.user_id == user_id, _requests.id == request_id)
    row = (await session.execute(statement.returning(authorization_requests))).one_or_none()
    if row is None:
        return None
    return _to_request(sealer, row, is_expired=row.expires_at < await session.scalar(select(func.now())))


def expired_rows() -> Delete:
    """Build the statement that deletes expired sign-ins of all users."""
    return delete(authorization_requests).where(_requests.expires_at < func.now())


async def reseal_connections(session: Session, sealer: Sealer) -> tuple[int, int]:
    """Seal again what was sealed with a former key. Needs a system transaction.

    Return how many values were resealed, and how many there are.
    """
    resealed = total = 0
    for table, column, owner in _sealed_columns():
        statement = select(table).where(column.is_not(None)).order_by(*table.primary_key.columns)
        for row in (await session.execute(statement)).all():
            total += 1
            sealed = bytes(row._mapping[column.name])
            if not sealer.is_current(sealed):
                values = {column.name: sealer.seal(sealer.open(sealed, owner(row)), owner(row))}
                key = [each == row._mapping[each.name] for each in table.primary_key.columns]
                # what somebody has changed meanwhile is sealed with the current key already
                await session.execute(update(table).where(*key, column == sealed).values(**values))
                resealed += 1
    return resealed, total


async def count_undecryptable_accounts(session: Session, sealer: Sealer) -> tuple[int, int]:
    """Return how many sealed values cannot be decrypted, and how many there are. Needs a system transaction."""
    broken = total = 0
    for table, column, owner in _sealed_columns():
        for row in (await session.execute(select(table).where(column.is_not(None)))).all():
            total += 1
            broken += 1
            with suppress(ConfigurationError):
                sealer.open(bytes(row._mapping[column.name]), owner(row))
                broken -= 1
    return broken, total


def _sealed_columns() -> Iterator[tuple[Table, Column[Any], Callable[[Row[Any]], SecretOwner]]]:
    def own_server(field: str) -> Callable[[Row[Any]], SecretOwner]:
        return lambda row: SecretOwner(row.user_id, row.server_id, field)

    yield server_connections, _connections.sealed_context, own_server(_CONTEXT)
    yield server_connections, _connections.sealed_tokens, own_server(_TOKENS)
    yield authorization_requests, _requests.sealed, lambda row: SecretOwner(row.user_id, row.id, _REQUEST)


def _token_values(sealer: Sealer, user_id: str, server_id: str, tokens: Tokens) -> Json:
    lifetime = None if tokens.expires_in is None else timedelta(seconds=min(tokens.expires_in, _MAX_LIFETIME_S))
    return {
        "sealed_tokens": _seal(sealer, user_id, server_id, _TOKENS, asdict(tokens)),
        "scope": tokens.scope,
        "expires_at": None if lifetime is None else func.now() + lifetime,
        "refreshed_at": func.now(),
        "lease_until": None,
    }


_MAX_LIFETIME_S = 10 * 365 * 86_400
"""Of an access token, whatever the server says: a timestamp has an end."""


def _to_connection(sealer: Sealer, row: Row[Any]) -> ServerConnection:
    context = _open(sealer, row.user_id, row.server_id, _CONTEXT, row.sealed_context)
    tokens = _open(sealer, row.user_id, row.server_id, _TOKENS, row.sealed_tokens)
    return ServerConnection(
        user_id=row.user_id,
        server_id=row.server_id,
        version=row.version,
        context=None if context is None else OAuthContext(**context),
        tokens=None if tokens is None else Tokens(**tokens),
        scope=row.scope,
        required_scope=row.required_scope,
        expires_at=row.expires_at,
        refreshed_at=row.refreshed_at,
        now=row.now,
    )


def _to_request(sealer: Sealer, row: Row[Any], *, is_expired: bool) -> PendingRequest:
    secrets = _open(sealer, row.user_id, row.id, _REQUEST, row.sealed)
    assert secrets is not None  # noqa: S101 the column is not null
    return PendingRequest(
        id=row.id,
        server_id=row.server_id,
        context=OAuthContext(**secrets["context"]),
        verifier=secrets["verifier"],
        authorization_url=secrets["authorization_url"],
        required_scope=secrets["required_scope"],
        redirect_url=row.redirect_url,
        browser=row.browser,
        actor=row.actor,
        expires_at=row.expires_at,
        is_expired=is_expired,
    )


def _seal(sealer: Sealer, user_id: str, record_id: str, field: str, value: Json) -> bytes:
    return sealer.seal(orjson.dumps(value), SecretOwner(user_id, record_id, field))


def _open(sealer: Sealer, user_id: str, record_id: str, field: str, sealed: bytes | None) -> Json | None:
    if sealed is None:
        return None
    value: Json = orjson.loads(sealer.open(bytes(sealed), SecretOwner(user_id, record_id, field)))
    return value


def _by_server(user_id: str, server_id: str) -> tuple[Any, Any]:
    return _connections.user_id == user_id, _connections.server_id == server_id


def _by_version(connection: ServerConnection) -> tuple[Any, ...]:
    """Return the condition for the row with this token.

    Versions restart when an account is removed and connected again, but no two tokens are of the same time.
    """
    is_same = _connections.version == connection.version, _connections.refreshed_at == connection.refreshed_at
    return *_by_server(connection.user_id, connection.server_id), *is_same
