"""Signs users in to their servers (OAuth) and gives each request to a server its access token.

A sign-in begins with `start`, which returns a link, and ends with `finish`, when the user's browser comes back with a
code. What happens in between is stored, so that another process can finish it.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import orjson

from app.audit.record import record_event
from app.auth.users import get_user
from app.catalog import servers
from app.catalog.server_copies import OPERATOR_NOT_CONNECTED
from app.catalog.servers import Server
from app.catalog.shared_servers import get_shared_server, update_sharing
from app.connections import oauth, repository
from app.connections.credential_source import CredentialSource
from app.connections.models import AuthorizationLink, Callback, PendingRequest, ServerConnection, SignInResult
from app.connections.oauth import ClientIdentity, GrantRefused
from app.connections.refresh import TokenRefresher
from app.connections.requests import limit_time, make_sender, request_challenge
from app.crypto import Sealer, SecretOwner
from app.db.engine import Database, Session
from app.db.tables import SHARED_OWNER
from app.errors import (
    AuthorizationRequired,
    ConfigurationError,
    Forbidden,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    ToolscoutError,
    UrlNotAllowed,
)
from app.mcp_client.pool import McpPool
from app.mcp_types import Endpoint
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.connections")

T = TypeVar("T")

CALLBACK_PATH = "/oauth/callback"
METADATA_PATH = "/oauth/client-metadata.json"

_LIFETIME = timedelta(minutes=10)
_MIN_LIFETIME = timedelta(minutes=3)
"""A link that lasts at least so long is returned again."""
_REVOKE_TIMEOUT_S = 5.0
_STATE_OWNER = SecretOwner("", "", "oauth_state")
_NO_PUBLIC_URL = "sign-in to servers needs TOOLSCOUT_PUBLIC_URL, the URL under which browsers reach Toolscout"

# RFC 6749, 4.1.2.1; others are passed on as `server_error`
_KNOWN_ERRORS: Mapping[str, str] = {
    "access_denied": "You have declined. Nothing was connected.",
    "invalid_scope": "The server does not grant the rights that it asks for. Nothing was connected.",
    "unauthorized_client": "The server does not accept Toolscout as a client. Ask the operator of Toolscout.",
    "invalid_request": "The server's sign-in did not understand the request. Nothing was connected.",
    "unsupported_response_type": "The server's sign-in does not support what is needed. Nothing was connected.",
    "temporarily_unavailable": "The server's sign-in is not available at the moment. Try again later.",
    "server_error": "The server's sign-in failed. Try again.",
    "expired": "This sign-in has expired or was used already. Start again.",
    "wrong_browser": "This sign-in was started in another browser. Start again in this one.",
    "wrong_issuer": "The answer does not come from the server's sign-in. Nothing was connected.",
    "token_refused": "The server's sign-in issued no token. Start again.",
    "server_changed": "The server's address was changed meanwhile. Start again.",
    "unreachable": "The server's sign-in cannot be reached. Try again later.",
}

EnqueueListing = Callable[[Session, str, str, str], Awaitable[None]]
"""Queues a run that lists a server's tools: the session, the user, the server and the actor."""


@dataclass(frozen=True)
class ConnectorConfig:
    base_url: str | None
    """The URL under which browsers reach us."""
    redirect_origins: frozenset[str]
    operator_clients: Mapping[str, Mapping[str, str]]

    @property
    def identity(self) -> ClientIdentity:
        if self.base_url is None:
            raise InvalidInput(_NO_PUBLIC_URL)
        is_public = self.base_url.startswith("https://")
        metadata_url = f"{self.base_url}{METADATA_PATH}" if is_public else None
        return ClientIdentity(f"{self.base_url}{CALLBACK_PATH}", metadata_url, self.operator_clients)

    def check_redirect(self, url: str | None) -> None:
        if url is None:
            return
        origin = _get_origin(url)
        own = None if self.base_url is None else _get_origin(self.base_url)
        if origin is None or (origin != own and origin not in self.redirect_origins):
            raise InvalidInput(
                "`redirect_url` must be an http(s) URL of an origin that the operator lists in "
                "TOOLSCOUT_REDIRECT_ORIGINS"
            )


class Connector:
    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        mcp_pool: McpPool,
        config: ConnectorConfig,
        credentials: CredentialSource | None = None,
    ) -> None:
        """`credentials`: the operator's service that is asked for the headers of users who have not signed in here."""
        self._database = database
        self._sealer = sealer
        self._mcp_pool = mcp_pool
        self.config = config
        self._credentials = credentials
        self._refresher = TokenRefresher(database, sealer, mcp_pool.guard, self._lose)
        self.enqueue_listing: EnqueueListing = _enqueue_nothing

    @property
    def issues_credentials(self) -> bool:
        """Whether the operator's service may issue headers for the users' servers."""
        return self._credentials is not None

    async def aclose(self) -> None:
        await self._refresher.aclose()
        if self._credentials is not None:
            await self._credentials.aclose()

    def describe_client(self) -> Json | None:
        """Return our client id metadata document; None if it could not be fetched."""
        is_known = self.config.base_url is not None and self.config.identity.metadata_url is not None
        return oauth.describe_client(self.config.identity) if is_known else None

    async def start(
        self,
        user_id: str,
        server_id: str,
        actor: str,
        redirect_url: str | None = None,
        *,
        browser: str | None = None,
    ) -> AuthorizationLink:
        """Begin a sign-in and return where the user's browser goes.

        `redirect_url`: where the browser is sent in the end. `browser`: a secret in a cookie of the browser that
        begins; then no other browser can finish.

        Raise `InvalidInput` if the server offers no sign-in, `ServerUnreachable` if its sign-in cannot be used.
        """
        identity = self.config.identity
        self.config.check_redirect(redirect_url)
        async with self._database.transaction(user_id) as session:
            server = await servers.get_server(session, user_id, server_id)
            servers.check_changes(server, ["headers"])
            connection = await repository.read_connection(session, self._sealer, user_id, server_id)
            required_scope = None if connection is None else connection.required_scope
            pending = await repository.find_request(
                session, self._sealer, user_id, server_id, redirect_url, actor, _MIN_LIFETIME
            )
        if browser is None and pending is not None and pending.is_for(server.url, required_scope):
            assert pending.expires_at is not None  # noqa: S101 it was stored
            return AuthorizationLink(pending.authorization_url, pending.expires_at)
        request_id = str(uuid.uuid4())
        sign_in = await self._begin(server, connection, identity, self._seal_state(user_id, server_id, request_id))
        request = PendingRequest(
            id=request_id,
            server_id=server_id,
            context=sign_in.context,
            verifier=sign_in.verifier,
            authorization_url=sign_in.authorization_url,
            required_scope=required_scope,
            redirect_url=redirect_url,
            browser=None if browser is None else hash_browser(browser),
            actor=actor,
        )
        async with self._database.transaction(user_id) as session:
            expires_at = await repository.insert_request(session, self._sealer, user_id, request, _LIFETIME)
        return AuthorizationLink(sign_in.authorization_url, expires_at)

    async def _begin(
        self, server: Server, connection: ServerConnection | None, identity: ClientIdentity, state: str
    ) -> oauth.SignIn:
        if server.url is None or server.transport == "push":
            raise InvalidInput(f"a {server.transport} server has no sign-in")
        guard = self._mcp_pool.guard
        is_connected = connection is not None and connection.tokens is not None
        async with limit_time():
            challenge = await request_challenge(guard, server.user_id, server.url, server.transport)
            sign_in = await oauth.begin(
                make_sender(guard, server.user_id),
                server.url,
                challenge,
                identity,
                state,
                # a client that was registered for an account that is lost may be lost, too
                previous=connection.context if connection is not None and is_connected else None,
                granted_scope=None if connection is None else connection.scope,
                required_scope=None if connection is None else connection.required_scope,
            )
        try:
            guard.parse_url(
                sign_in.authorization_url
            )  # only the browser opens it, but not as a script or in our network
        except UrlNotAllowed as error:
            raise ServerUnreachable(
                "url_not_allowed", f"the address of the server's sign-in: {error.message}"
            ) from error
        return sign_in

    async def finish(self, callback: Callback, browser: str | None = None) -> SignInResult:
        """End a sign-in: exchange the code for tokens, store them and queue a listing. Each works once.

        `browser`: the secret in the cookie of the browser that comes back. A failure is in the result.
        """
        try:
            user_id, server_id, request_id = self._open_state(callback.state)
            async with self._database.transaction(user_id) as session:
                request = await repository.take_request(session, self._sealer, user_id, request_id)
                server = None if request is None else await servers.get_server(session, user_id, server_id)
        except (ConfigurationError, ValueError, NotFound):
            request = server = None
        if request is None or server is None:
            return SignInResult(None, None, "expired", _KNOWN_ERRORS["expired"], None)
        error = _find_error(request, callback, browser)
        if error is None:
            error = await self._connect(server, request, callback.code or "")
        if error is not None:
            await self._audit_failure(server, request.actor, error)
        return self._report(server, request, error)

    async def _connect(self, server: Server, request: PendingRequest, code: str) -> str | None:
        """Return the word for what failed, or None."""
        if server.url is None or _get_origin(server.url) != _get_origin(request.context.server_url):
            return "server_changed"
        user_id, context = server.user_id, request.context
        try:
            async with limit_time():
                send = make_sender(self._mcp_pool.guard, user_id)
                tokens = await oauth.exchange_code(send, context, code, request.verifier)
        except GrantRefused:
            return "token_refused"
        except ServerUnreachable as error:
            extra = {"server_id": server.id, "cause": error.cause}
            logger.warning("sign-in failed", extra=extra)
            return "unreachable"
        try:
            async with self._database.exclusive_transaction(user_id) as session:
                await servers.set_signed_in(session, user_id, server.id, signed_in=True)
                current = await servers.get_server(session, user_id, server.id)
                if _get_origin(current.url or "") != _get_origin(context.server_url):
                    raise _ServerChanged  # rolls back
                await repository.store_connection(session, self._sealer, user_id, server.id, context, tokens)
                await self.enqueue_listing(session, user_id, server.id, request.actor)
                await record_event(session, user_id, request.actor, "server.connect", server.id)
                session.after_commit(self._mcp_pool.forget, user_id, server.id)
        except (_ServerChanged, NotFound):
            return "server_changed"
        return None

    def _report(self, server: Server, request: PendingRequest, error: str | None) -> SignInResult:
        message = f"You have signed in to {server.name}." if error is None else _KNOWN_ERRORS[error]
        url = request.redirect_url
        if url is not None:
            outcome = {"server_id": server.id, "status": "connected" if error is None else "failed"}
            outcome |= {} if error is None else {"error": error}
            base, hash_mark, fragment = url.partition("#")
            url = f"{base}{'&' if '?' in base else '?'}{urlencode(outcome)}{hash_mark}{fragment}"
        return SignInResult(server.id, server.name, error, message, url)

    async def disconnect(self, user_id: str, server_id: str, actor: str) -> None:
        """Remove the account, and revoke its tokens as far as the authorization server can be reached."""
        async with self._database.exclusive_transaction(user_id) as session:
            await servers.get_server(session, user_id, server_id)
            connection = await self.read_to_revoke(session, user_id, server_id)
            if not await repository.delete_connection(session, user_id, server_id):
                raise NotFound("nobody has signed in to this server")
            await _sign_out(session, user_id, server_id)
            await record_event(session, user_id, actor, "server.disconnect", server_id)
            session.after_commit(self._mcp_pool.forget, user_id, server_id)
        await self.revoke(connection)

    async def revoke(self, connection: ServerConnection | None) -> None:
        """Revoke the tokens of an account that was removed, as far as the authorization server can be reached."""
        if connection is None or connection.context is None or connection.tokens is None:
            return
        try:
            async with limit_time(_REVOKE_TIMEOUT_S):
                send = make_sender(self._mcp_pool.guard, connection.user_id)
                await oauth.revoke(send, connection.context, connection.tokens)
        except ServerUnreachable as error:
            logger.warning("tokens not revoked", extra={"server_id": connection.server_id, "cause": error.cause})

    async def read_to_revoke(self, session: Session, user_id: str, server_id: str) -> ServerConnection | None:
        """Return the account that is about to be removed; None if there is none, or it cannot be read."""
        try:
            return await repository.read_connection(session, self._sealer, user_id, server_id)
        except ConfigurationError:  # sealed with a key that is gone: it can still be deleted
            return None

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

    async def _resolve_copy(self, copy: Endpoint, shared_id: str) -> Endpoint:
        """Check that the user may still use the shared server, and take what it alone knows from it."""
        async with self._database.transaction(copy.user_id) as session:
            user = await get_user(session, copy.user_id)
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
        if not is_operators:
            return replace(copy, server_name=name)
        # both versions only grow: a change of either needs a new connection
        version = copy.config_version + source.config_version
        return replace(
            source,
            user_id=copy.user_id,
            server_id=copy.server_id,
            server_name=name,
            config_version=version,
            shared_id=shared_id,
            uses_operator_account=True,
        )

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
            raise AuthorizationRequired from error
        return await operation(await self._replace_token(endpoint))

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
                await _sign_out(session, user_id, server_id)
                await record_event(session, user_id, "system", "server.disconnect", server_id, outcome="token_refused")
                session.after_commit(self._mcp_pool.forget, user_id, server_id)

    async def _audit_failure(self, server: Server, actor: str, outcome: str) -> None:
        try:
            async with self._database.transaction(server.user_id) as session:
                await record_event(session, server.user_id, actor, "server.connect", server.id, outcome=outcome)
        except ToolscoutError:
            logger.exception("failed to audit a sign-in")

    def _seal_state(self, user_id: str, server_id: str, request_id: str) -> str:
        """Return the `state`: it names the request, so that the callback finds it without a search across users."""
        sealed = self._sealer.seal(orjson.dumps([user_id, server_id, request_id]), _STATE_OWNER)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def _open_state(self, state: str | None) -> tuple[str, str, str]:
        try:
            sealed = base64.urlsafe_b64decode(f"{state or ''}{'=' * (-len(state or '') % 4)}")
        except binascii.Error as error:
            raise ValueError("not a state") from error
        user_id, server_id, request_id = orjson.loads(self._sealer.open(sealed, _STATE_OWNER))
        return user_id, server_id, request_id


class _ServerChanged(Exception):
    pass


def _get_account(endpoint: Endpoint) -> tuple[str, str]:
    """Return the user and the server whose account a request to the endpoint uses."""
    if endpoint.uses_operator_account and endpoint.shared_id is not None:
        return SHARED_OWNER, endpoint.shared_id
    return endpoint.user_id, endpoint.server_id


async def _sign_out(session: Session, user_id: str, server_id: str) -> None:
    """Record that an account is gone; the members of a shared server must see it, too."""
    await servers.set_signed_in(session, user_id, server_id, signed_in=False)
    if user_id == SHARED_OWNER:
        await update_sharing(session, server_id)


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


def hash_browser(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _find_error(request: PendingRequest, callback: Callback, browser: str | None) -> str | None:
    """Return the word for what is wrong with a callback, or None."""
    if request.is_expired:
        return "expired"
    if request.browser is not None and not hmac.compare_digest(request.browser, hash_browser(browser or "")):
        return "wrong_browser"
    if not oauth.check_issuer(request.context, callback.iss):
        return "wrong_issuer"
    if callback.error is not None:
        return callback.error if callback.error in _KNOWN_ERRORS else "server_error"
    return None if callback.code else "invalid_request"


def _add_token(endpoint: Endpoint, connection: ServerConnection) -> Endpoint:
    assert connection.tokens is not None  # noqa: S101 the callers have checked it
    headers = {name: value for name, value in endpoint.headers.items() if name.lower() != "authorization"}
    headers["Authorization"] = f"Bearer {connection.tokens.access_token}"
    return replace(endpoint, headers=headers, credential_version=connection.version)


def _get_origin(url: str) -> str | None:
    """Return scheme, host and port in one form; None for what is no http(s) URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return None
    is_default = port in (None, {"http": 80, "https": 443}[parts.scheme])
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if is_default else f"{parts.scheme}://{host}:{port}"


async def _enqueue_nothing(_session: Session, _user_id: str, _server_id: str, _actor: str) -> None:
    """Until the container has built the queue."""
