"""Access to users' servers: gives each request the access token of the account that it uses."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from app.audit.record import record_event
from app.auth.users import get_user
from app.catalog import servers
from app.catalog.server_copies import OPERATOR_NOT_CONNECTED
from app.catalog.shared_servers import get_shared_server, update_sharing
from app.connections import oauth, repository
from app.connections.credential_source import CredentialSource
from app.connections.models import ServerConnection
from app.connections.refresh import TokenRefresher
from app.connections.requests import limit_time, make_sender
from app.crypto import Sealer
from app.db.engine import Database, Session
from app.db.tables import SHARED_OWNER
from app.errors import AuthorizationRequired, Forbidden, ServerUnreachable
from app.mcp_client.pool import McpPool
from app.mcp_types import Endpoint

T = TypeVar("T")


class ServerAccess:
    def __init__(
        self, database: Database, sealer: Sealer, mcp_pool: McpPool, credentials: CredentialSource | None
    ) -> None:
        """`credentials`: the operator's service that is asked for the headers of users who have not signed in here."""
        self._database = database
        self._sealer = sealer
        self._mcp_pool = mcp_pool
        self._credentials = credentials
        self._refresher = TokenRefresher(database, sealer, mcp_pool.guard, self._lose)

    @property
    def issues_credentials(self) -> bool:
        """Whether the operator's service may issue headers for the users' servers."""
        return self._credentials is not None

    async def aclose(self) -> None:
        await self._refresher.aclose()
        if self._credentials is not None:
            await self._credentials.aclose()

    async def get_endpoint(self, user_id: str, server_id: str, *, listing: bool = False) -> Endpoint:
        """Return what is needed to connect, with a fresh access token where there is an account.

        Raise `AuthorizationRequired` if the server needs a sign-in and has none. With `listing`, only if there was one
        that is lost: otherwise the server itself is asked.
        """
        async with self._database.transaction(user_id) as session:
            endpoint = await self.read_endpoint(session, user_id, server_id)
        return await self.authorize(endpoint, listing=listing)

    async def read_endpoint(self, session: Session, user_id: str, server_id: str) -> Endpoint:
        """Return the endpoint as it is stored, for `authorize`, which needs no open transaction."""
        return await servers.get_endpoint(session, self._sealer, user_id, server_id)

    async def authorize(self, endpoint: Endpoint, *, listing: bool = False) -> Endpoint:
        """Return the endpoint with a fresh access token, as `get_endpoint` does.

        Raise `Forbidden` for a copy of a shared server that its user may not use any more.
        """
        if endpoint.shared_id is not None:
            endpoint = await self._resolve_copy(endpoint, endpoint.shared_id)
        if endpoint.transport not in ("streamable_http", "sse"):
            return endpoint
        may_have_account = endpoint.signed_in or endpoint.needs_sign_in
        connection = await self._read_connection(endpoint) if may_have_account else None
        if connection is not None and connection.tokens is not None:
            with _demanding_sign_in(endpoint):
                return _add_token(endpoint, await self._refresher.get_fresh(connection))
        source = None if endpoint.uses_operator_account else self._credentials
        if source is not None and (issued := await source.authorize(endpoint)) is not None:
            return issued
        is_lost = connection is not None and connection.context is not None
        is_unknown = connection is None and endpoint.needs_sign_in and not listing and not endpoint.headers
        if is_lost or is_unknown:
            raise _require_sign_in(endpoint)
        return endpoint

    async def use(
        self, endpoint: Endpoint, operation: Callable[[Endpoint], Awaitable[T]], *, listing: bool = False
    ) -> T:
        """Run an operation on the server, once more with another token if the server rejects the first one.

        A server that rejects a request has not run it. Raise `AuthorizationRequired` if the user must sign in.
        """
        if endpoint.is_issued and self._credentials is not None:
            return await self._credentials.use(endpoint, operation)
        try:
            return await operation(endpoint)
        except AuthorizationRequired as error:
            needs_more = error.http_status == 403
            if needs_more or not (endpoint.credential_version or listing):
                await self._require_scope(endpoint, error.required_scope)
            if endpoint.uses_operator_account and (needs_more or not endpoint.credential_version):
                raise _require_sign_in(endpoint, more_rights=needs_more) from error
            if needs_more or not endpoint.credential_version:
                raise
        except ServerUnreachable as error:
            if error.http_status != 401 or endpoint.headers or not await self._offers_sign_in(endpoint):
                raise
            raise _require_sign_in(endpoint) from error
        return await operation(await self._replace_token(endpoint))

    async def _resolve_copy(self, copy: Endpoint, shared_id: str) -> Endpoint:
        """Check that the user may still use the shared server, and take what it alone knows from it."""
        async with self._database.transaction(copy.user_id) as session:
            user = await get_user(session, copy.user_id)
            created_at = (await servers.get_server(session, copy.user_id, copy.server_id)).created_at
        async with self._database.transaction(SHARED_OWNER) as session:
            shared = await get_shared_server(session, shared_id)
            source = await servers.get_endpoint(session, self._sealer, SHARED_OWNER, shared_id)
        if not shared.sharing.includes(user):
            raise Forbidden(f"the server {copy.server_name!r} is no longer shared with this user")
        is_operators = shared.sharing.credentials == "operator"
        if is_operators != copy.uses_operator_account:
            raise ServerUnreachable("not_ready", "this shared server has just been changed; try again in a moment")
        # programs are found by the name that the operator's file gives them
        name = source.server_name if copy.transport == "stdio" else copy.server_name
        # A copy that is deleted and created again has the same id, and its versions restart: other processes may still
        # have connections of the earlier one, maybe of a deleted user with the same id.
        version = copy.config_version + int(created_at.timestamp() * 1_000_000)
        if not is_operators:
            return replace(copy, server_name=name, config_version=version)
        # both versions only grow: a change of either needs a new connection
        version += source.config_version
        return replace(
            source,
            user_id=copy.user_id,
            server_id=copy.server_id,
            server_name=name,
            config_version=version,
            shared_id=shared_id,
            uses_operator_account=True,
        )

    async def _replace_token(self, endpoint: Endpoint) -> Endpoint:
        connection = await self._read_connection(endpoint)
        if connection is None or connection.tokens is None:
            raise _require_sign_in(endpoint)
        if connection.version == endpoint.credential_version:
            with _demanding_sign_in(endpoint):
                connection = await self._refresher.replace_rejected(connection)
        return _add_token(endpoint, connection)

    async def _read_connection(self, endpoint: Endpoint) -> ServerConnection | None:
        user_id, server_id = _get_account(endpoint)
        async with self._database.transaction(user_id) as session:
            return await repository.read_connection(session, self._sealer, user_id, server_id)

    async def _require_scope(self, endpoint: Endpoint, scope: str | None) -> None:
        user_id, server_id = _get_account(endpoint)
        async with self._database.transaction(user_id) as session:
            await repository.require_scope(session, user_id, server_id, scope)

    async def _offers_sign_in(self, endpoint: Endpoint) -> bool:
        try:
            async with limit_time():
                return await oauth.offers_sign_in(
                    make_sender(self._mcp_pool.guard, endpoint.user_id), endpoint.url or ""
                )
        except ServerUnreachable:
            return False

    async def _lose(self, connection: ServerConnection) -> None:
        """Mark an account whose tokens are no longer accepted: the user must sign in again."""
        user_id, server_id = connection.user_id, connection.server_id
        async with self._database.exclusive_transaction(user_id) as session:
            if await repository.drop_tokens(session, connection):
                await sign_out(session, user_id, server_id)
                await record_event(session, user_id, "system", "server.disconnect", server_id, outcome="token_refused")
                session.after_commit(self._mcp_pool.forget, user_id, server_id)


async def sign_out(session: Session, user_id: str, server_id: str) -> None:
    """Record that an account is gone; the members of a shared server must see it, too."""
    await servers.set_signed_in(session, user_id, server_id, signed_in=False)
    if user_id == SHARED_OWNER:
        await update_sharing(session, server_id)


def _get_account(endpoint: Endpoint) -> tuple[str, str]:
    """Return the user and the server whose account a request to the endpoint uses."""
    if endpoint.uses_operator_account and endpoint.shared_id is not None:
        return SHARED_OWNER, endpoint.shared_id
    return endpoint.user_id, endpoint.server_id


def _require_sign_in(endpoint: Endpoint, *, more_rights: bool = False) -> ServerUnreachable:
    """A member cannot sign in with the operator's account."""
    if endpoint.uses_operator_account:
        how = "again: the call needs more rights" if more_rights else "first"
        return ServerUnreachable(OPERATOR_NOT_CONNECTED, f"an administrator must sign in to this shared server {how}")
    return AuthorizationRequired()


@contextmanager
def _demanding_sign_in(endpoint: Endpoint) -> Iterator[None]:
    """Say who must sign in if the account is lost."""
    try:
        yield
    except AuthorizationRequired as error:
        raise _require_sign_in(endpoint) from error


def _add_token(endpoint: Endpoint, connection: ServerConnection) -> Endpoint:
    assert connection.tokens is not None  # noqa: S101 the callers have checked it
    headers = {name: value for name, value in endpoint.headers.items() if name.lower() != "authorization"}
    headers["Authorization"] = f"Bearer {connection.tokens.access_token}"
    return replace(endpoint, headers=headers, credential_version=connection.version)
