"""The one ASGI layer around the application: what every request passes, in this order.

1. A request id, metrics and the access log; a span's parent; CORS where it is configured.
2. Health and metrics endpoints go straight to the application.
3. The key, the token or the console's session is read from the headers, and its caller looked up: before the body is
   read.
4. A slot of the user. A request without a valid key gets a slot of another, small pool, and its body is not read.
5. The user's rate limit.
6. The body, with a limit of its size and a deadline.

The application finds the caller, or the error that stopped it, with `get_admitted_caller`: every interface renders it
in its own form.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.mcp_paths import METADATA_PATH
from app.api.middleware.body_limit import MAX_UNKNOWN_BYTES, has_body, hide_body, read_body, replay_body
from app.api.middleware.concurrency_limit import ConcurrencyLimit
from app.api.middleware.credentials import add_challenge, read_credential_headers, resolve_credentials
from app.api.middleware.request_log import record_request
from app.api.problems import problem_response
from app.auth.credentials import Credentials
from app.auth.permissions import Caller, Permission
from app.container import Container
from app.dependencies import ADMISSION
from app.errors import ClientDisconnected, InvalidInput, NotFound, ToolscoutError, Unauthenticated
from app.observability.logging import request_id, request_started
from app.observability.tracing import join_trace

logger = logging.getLogger("toolscout.api")

CORS_OPTIONS: dict[str, Any] = {
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "expose_headers": ["Mcp-Session-Id", "Retry-After", "X-Request-Id", "WWW-Authenticate"],
}
SIGN_IN_PATH = "/console/sign-in"

_EXEMPT_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_OPEN_PATHS = ("/docs", "/console/static/", "/oauth/", SIGN_IN_PATH, METADATA_PATH)
"""They need no key; one that is sent is not looked up."""
_CONSOLE = "/console"
_RESPONSE = "toolscout.response"
_CLIENT_CLOSED_REQUEST = 499

_MAX_KNOWN = 20_000
_UNKNOWN_LOOKUPS = 2
"""Keys that this process has not seen yet are looked up by so many at a time: strangers who invent keys take few of
the database's connections."""
_MAX_WAITING_LOOKUPS = 1_000
_UNKNOWN_BODY_S = 5.0

ReadSession = Callable[[Scope, Container], Credentials | None]


@dataclass(frozen=True)
class _Principal:
    """Whose slots and whose rate a request takes."""

    slot_owner: str
    rated_user: str | None
    """None for an administrator, who has no rate limit, and for a key that names no user."""


@dataclass(frozen=True)
class DirectRoute:
    """A route that is answered without the framework, unless there is something unusual about the request."""

    method: str
    path: str
    answer: Callable[[Scope, bytes, Caller, Container], Awaitable[Response | None]]
    """Takes the body, the caller and the container. None: the framework shall answer."""


class _Response:
    """Watches what is sent: adds the headers that every response has, and remembers the status."""

    __slots__ = ("_draining", "_identifier", "_send", "status")

    def __init__(self, send: Send, identifier: str, draining: asyncio.Event) -> None:
        self._send, self._identifier, self._draining = send, identifier, draining
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self._identifier.encode())]
            if self._draining.is_set():
                # A client that keeps a connection until it is closed may send its next request then, and lose it.
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)


class RequestPipeline:
    def __init__(
        self,
        app: ASGIApp,
        get_container: Callable[[], Container],
        read_session: ReadSession,
        list_paths: Callable[[], Iterable[str]],
        direct_routes: Iterable[DirectRoute] = (),
    ) -> None:
        """
        - `get_container` returns the current one, because a reload replaces it.
        - `read_session` returns the credentials in the console's cookie, or None.
        - `list_paths` lists the paths of all routes.
        """
        self._app = app
        self._get_container = get_container
        self._read_session = read_session
        self._direct_routes = {(route.method, route.path): route for route in direct_routes}
        self._served = frozenset(_first_segment(path) for path in list_paths())
        container = get_container()
        self._metrics = container.metrics
        self._limit = ConcurrencyLimit(lambda: get_container().settings.max_in_flight, container.metrics)
        self._principals: LRUCache[Credentials, _Principal] = LRUCache(_MAX_KNOWN)
        """The keys that were valid a moment ago. Each request looks its key up all the same."""
        self._unknown_lookups = asyncio.Semaphore(_UNKNOWN_LOOKUPS)
        self._waiting_lookups = 0
        origins = container.settings.allowed_origins
        self._handle: ASGIApp = (
            CORSMiddleware(self._answer, allow_origins=origins, **CORS_OPTIONS) if origins else self._answer
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        container = self._get_container()
        identifier = uuid.uuid4().hex
        token = request_id.set(identifier)
        started = time.perf_counter()
        request_started.set(started)
        if container.tracing.enabled:
            join_trace(scope)
        response = scope[_RESPONSE] = _Response(send, identifier, container.draining)
        status = 500
        try:
            await self._handle(scope, receive, response.send)
            status = response.status or _CLIENT_CLOSED_REQUEST
        finally:
            record_request(self._metrics, scope, status, time.perf_counter() - started)
            request_id.reset(token)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The boundary of the HTTP interface: no unexpected error reaches the server or the caller."""
        try:
            await self._admit(scope, receive, send)
        except ClientDisconnected:
            return
        except ToolscoutError as error:
            await problem_response(error)(scope, receive, send)
        except Exception:
            logger.exception("unexpected error")
            if scope[_RESPONSE].status is not None:
                raise
            unexpected = ToolscoutError("unexpected error; the log has it under this request's id")
            await problem_response(unexpected)(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, container = scope["path"], self._get_container()
        if path in _EXEMPT_PATHS:
            await self._app(scope, hide_body(receive), send)
            return
        if "\0" in path or b"%00" in scope["query_string"]:
            raise InvalidInput("the address holds a NUL character")
        if path.startswith(_OPEN_PATHS):
            await self._serve_open(scope, receive, send, container)
            return
        try:
            credentials = await self._read_credentials(scope, container)
            caller = None if credentials in self._principals else await self._look_up_unknown(container, credentials)
        except ToolscoutError as error:
            with self._limit.unknown_slot():
                add_challenge(error, scope, container)
                scope[ADMISSION] = error
                await self._app(scope, hide_body(receive), send)
            return
        await self._serve_known(scope, receive, send, container, credentials, caller)

    async def _serve_open(self, scope: Scope, receive: Receive, send: Send, container: Container) -> None:
        read_credential_headers(scope)  # refuses repeated ones
        if not (has_body(scope) and scope["path"] == SIGN_IN_PATH):
            with self._limit.unknown_slot():
                await self._app(scope, hide_body(receive), send)
            return
        timeout_s = min(_UNKNOWN_BODY_S, container.settings.body_timeout_s)
        # not in a slot: people who sign in must not wait for strangers who send half a form
        body = await read_body(scope, receive, timeout_s, MAX_UNKNOWN_BYTES)
        with self._limit.unknown_slot():
            async with self._unknown_lookups:
                await self._app(scope, replay_body(body, receive), send)

    async def _read_credentials(self, scope: Scope, container: Container) -> Credentials:
        if _first_segment(scope["path"]) not in self._served:
            raise NotFound("there is no such path")  # not worth a look-up; the application says it in its own words
        headers = read_credential_headers(scope)
        if not scope["path"].startswith(_CONSOLE):
            return await resolve_credentials(headers, scope["path"], container.sso)
        if (credentials := self._read_session(scope, container)) is None:
            raise Unauthenticated("sign in first")
        return credentials

    async def _look_up_unknown(self, container: Container, credentials: Credentials) -> Caller:
        if self._waiting_lookups >= _MAX_WAITING_LOOKUPS:
            raise self._limit.refuse_overload()
        self._waiting_lookups += 1
        try:
            async with self._unknown_lookups:
                caller = await container.authenticator.authenticate_credentials(credentials)
        finally:
            self._waiting_lookups -= 1
        self._principals[credentials] = _identify(caller)
        return caller

    async def _serve_known(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        container: Container,
        credentials: Credentials,
        caller: Caller | None,
    ) -> None:
        principal = self._principals[credentials]
        with self._limit.slot(principal.slot_owner):
            try:
                caller = await self._look_up_known(container, credentials, principal, caller)
            except ToolscoutError as error:
                if isinstance(error, Unauthenticated):
                    self._principals.pop(credentials, None)  # revoked or expired
                add_challenge(error, scope, container)
                scope[ADMISSION] = error
                await self._app(scope, hide_body(receive), send)
                return
            scope[ADMISSION] = caller
            if has_body(scope):
                body = await read_body(scope, receive, container.settings.body_timeout_s)
                response = await self._answer_directly(scope, body, caller, container)
                if response is not None:
                    await response(scope, receive, send)
                    return
                receive = replay_body(body, receive)
            await self._app(scope, receive, send)

    async def _look_up_known(
        self, container: Container, credentials: Credentials, principal: _Principal, caller: Caller | None
    ) -> Caller:
        """Take a token of the rate limit and look the key up, unless `caller` was just looked up.

        Both in a slot of the user, so that neither the requests that are refused nor those that a search in memory
        answers at once take time from other users.
        """
        if principal.rated_user is None:
            return caller or await container.authenticator.authenticate_credentials(credentials)
        async with container.searcher.scheduler.slot(principal.rated_user):
            container.rate_limiter.acquire(principal.rated_user)
            return caller or await container.authenticator.authenticate_credentials(credentials)

    async def _answer_directly(
        self, scope: Scope, body: bytes, caller: Caller, container: Container
    ) -> Response | None:
        route = self._direct_routes.get((scope["method"], scope["path"]))
        if route is None:
            return None
        scope["route"] = route  # for the log, as the framework does it
        return await route.answer(scope, body, caller, container)


def _first_segment(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else path


def _identify(caller: Caller) -> _Principal:
    if caller.user is None:
        return _Principal(caller.actor, None)
    is_admin = caller.has_permission(Permission.ADMINISTER)
    return _Principal(f"user {caller.user.id}", None if is_admin else caller.user.id)
