"""The sign-in of users to their servers (OAuth).

A sign-in begins with `start`, which returns a link, and ends with `finish`, when the user's browser comes back with a
code. What happens in between is stored, so that another process can finish it.
"""

import hashlib
import hmac
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlencode

from app.audit.record import record_event
from app.catalog import servers
from app.catalog.servers import Server
from app.connections import oauth, repository
from app.connections.access import sign_out
from app.connections.config import ConnectorConfig, get_origin
from app.connections.models import AuthorizationLink, Callback, PendingRequest, ServerConnection, SignInResult
from app.connections.oauth import ClientIdentity, GrantRefused
from app.connections.requests import limit_time, make_sender, request_challenge
from app.connections.state import open_state, seal_state
from app.crypto import Sealer
from app.db.engine import Database, Session
from app.db.tables import SHARED_OWNER
from app.errors import (
    ConfigurationError,
    InvalidInput,
    NotFound,
    RateLimited,
    ServerUnreachable,
    ToolscoutError,
    UrlNotAllowed,
)
from app.mcp_client.pool import McpPool
from app.text.strict_json import Json

logger = logging.getLogger("toolscout.connections")

_LIFETIME = timedelta(minutes=10)
_MIN_LIFETIME = timedelta(minutes=3)
"""A link that lasts at least so long is returned again."""
_REVOKE_TIMEOUT_S = 5.0
_MAX_STEPS = 2
"""Steps of one user's sign-ins that requests without a key take at the same time, in this process."""

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

_EXPIRED = SignInResult(None, None, "expired", _KNOWN_ERRORS["expired"], None)

EnqueueListing = Callable[[Session, str, str, str], Awaitable[None]]
"""Queues a run that lists a server's tools: the session, the user, the server and the actor."""


class SignInFlow:
    def __init__(self, database: Database, sealer: Sealer, mcp_pool: McpPool, config: ConnectorConfig) -> None:
        self._database = database
        self._sealer = sealer
        self._mcp_pool = mcp_pool
        self.config = config
        self._steps: Counter[str] = Counter()
        self.enqueue_listing: EnqueueListing = _enqueue_nothing

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
        sign_in = await self._begin(
            server, connection, identity, seal_state(self._sealer, user_id, server_id, request_id)
        )
        request = PendingRequest(
            id=request_id,
            server_id=server_id,
            context=sign_in.context,
            verifier=sign_in.verifier,
            authorization_url=sign_in.authorization_url,
            required_scope=required_scope,
            redirect_url=redirect_url,
            browser=None if browser is None else _hash_browser(browser),
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
            # only the browser opens it, but not as a script or in our network
            guard.parse_url(sign_in.authorization_url)
        except UrlNotAllowed as error:
            raise ServerUnreachable(
                "url_not_allowed", f"the address of the server's sign-in: {error.message}"
            ) from error
        return sign_in

    async def start_without_key(self, user_id: str, server_id: str, actor: str, *, browser: str) -> AuthorizationLink:
        """Begin a sign-in for a browser that has nothing but a link. Raise `RateLimited` as `finish` does."""
        with self._limit_steps(user_id):
            return await self.start(user_id, server_id, actor, browser=browser)

    async def finish(self, callback: Callback, browser: str | None = None) -> SignInResult:
        """End a sign-in: exchange the code for tokens, store them and queue a listing. Each works once.

        `browser`: the secret in the cookie of the browser that comes back. A failure is in the result, but for
        `RateLimited`, after which the same callback can be repeated.
        """
        try:
            user_id, server_id, request_id = open_state(self._sealer, callback.state)
        except (ConfigurationError, ValueError):
            return _EXPIRED
        with self._limit_steps(user_id):
            return await self._finish(user_id, server_id, request_id, callback, browser)

    @contextmanager
    def _limit_steps(self, user_id: str) -> Iterator[None]:
        """Requests without a key share few slots, and a server can make each of these last for seconds."""
        if self._steps[user_id] >= _MAX_STEPS:
            raise RateLimited("other sign-ins of this user are in progress; try again in a moment", retry_after_s=5)
        self._steps[user_id] += 1
        try:
            yield
        finally:
            self._steps[user_id] -= 1
            if not self._steps[user_id]:
                del self._steps[user_id]

    async def _finish(
        self, user_id: str, server_id: str, request_id: str, callback: Callback, browser: str | None
    ) -> SignInResult:
        try:
            async with self._database.transaction(user_id) as session:
                request = await repository.take_request(session, self._sealer, user_id, request_id)
                server = None if request is None else await servers.get_server(session, user_id, server_id)
        except (ConfigurationError, NotFound):
            request = server = None
        if request is None or server is None:
            return _EXPIRED
        error = _find_error(request, callback, browser)
        if error is None:
            error = await self._connect(server, request, callback.code or "")
        if error is not None:
            await self._audit_failure(server, request.actor, error)
        return self._report(server, request, error)

    async def _connect(self, server: Server, request: PendingRequest, code: str) -> str | None:
        """Return the word for what failed, or None."""
        if server.url is None or get_origin(server.url) != get_origin(request.context.server_url):
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
                if get_origin(current.url or "") != get_origin(context.server_url):
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
        return SignInResult(server.id, server.name, error, message, url, shared=server.user_id == SHARED_OWNER)

    async def disconnect(self, user_id: str, server_id: str, actor: str) -> None:
        """Remove the account, and revoke its tokens as far as the authorization server can be reached."""
        async with self._database.exclusive_transaction(user_id) as session:
            await servers.get_server(session, user_id, server_id)
            connection = await self.read_to_revoke(session, user_id, server_id)
            if not await repository.delete_connection(session, user_id, server_id):
                raise NotFound("nobody has signed in to this server")
            await sign_out(session, user_id, server_id)
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

    async def _audit_failure(self, server: Server, actor: str, outcome: str) -> None:
        try:
            async with self._database.transaction(server.user_id) as session:
                await record_event(session, server.user_id, actor, "server.connect", server.id, outcome=outcome)
        except ToolscoutError:
            logger.exception("failed to audit a sign-in")


class _ServerChanged(Exception):
    pass


def _hash_browser(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _find_error(request: PendingRequest, callback: Callback, browser: str | None) -> str | None:
    """Return the word for what is wrong with a callback, or None."""
    if request.is_expired:
        return "expired"
    if request.browser is not None and not hmac.compare_digest(request.browser, _hash_browser(browser or "")):
        return "wrong_browser"
    if not oauth.check_issuer(request.context, callback.iss):
        return "wrong_issuer"
    if callback.error is not None:
        return callback.error if callback.error in _KNOWN_ERRORS else "server_error"
    return None if callback.code else "invalid_request"


async def _enqueue_nothing(_session: Session, _user_id: str, _server_id: str, _actor: str) -> None:
    """Until the container has built the queue."""
