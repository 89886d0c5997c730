"""An authorization server on loopback that can be made to misbehave. The real ones are in `oidc_provider.py`.

Tokens are opaque: a `ProtectedServer` asks the introspection endpoint about them.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bench.service import free_port
from tests.support.protected_server import running_app

Json = dict[str, Any]


@dataclass(frozen=True)
class Grant:
    client_id: str
    scope: str
    resource: str
    challenge: str = ""
    redirect_uri: str = ""
    expires_at: float = 0.0


@dataclass
class AuthorizationServer:
    """Tests may change its attributes at any time."""

    port: int
    account: str = "ada"
    expires_in: int | None = 3600
    metadata: Json = field(default_factory=dict)
    """Replaces members of the metadata; None removes one."""
    faults: dict[str, ASGIApp] = field(default_factory=dict)
    """What answers on a path in place of the server."""
    resource_metadata: Json = field(default_factory=dict)
    """What is served at `/resource`, for an MCP server whose challenge names it."""
    on_token: Callable[[Json], Json] = lambda answer: answer
    """Changes the answer of the token endpoint."""

    requests: list[tuple[str, Json]] = field(default_factory=list)
    """The path and the parameters of each request."""
    clients: dict[str, Json] = field(default_factory=dict)
    codes: dict[str, Grant] = field(default_factory=dict)
    refresh_tokens: dict[str, Grant] = field(default_factory=dict)
    access_tokens: dict[str, Grant] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    """Everything that must stay secret: codes, tokens, verifiers, client secrets."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def find_requests(self, path: str, **parameters: str) -> list[Json]:
        return [sent for asked, sent in self.requests if asked == path and parameters.items() <= sent.items()]

    def approve(self, authorization_url: str, **changes: str | None) -> str:
        """Consent as the user, and return the address to which the browser is sent back. `changes`: its parameters."""
        asked = dict(parse_qsl(urlsplit(authorization_url).query))
        assert asked["redirect_uri"] in self.clients[asked["client_id"]]["redirect_uris"]
        assert asked["code_challenge_method"] == "S256"
        code = self._issue()
        self.codes[code] = Grant(
            asked["client_id"],
            asked.get("scope", ""),
            asked["resource"],
            asked["code_challenge"],
            asked["redirect_uri"],
        )
        answer = {"code": code, "state": asked["state"], "iss": self.url} | changes
        return f"{asked['redirect_uri']}?{urlencode({name: value for name, value in answer.items() if value})}"

    def deny(self, authorization_url: str) -> str:
        asked = dict(parse_qsl(urlsplit(authorization_url).query))
        answer = {"error": "access_denied", "state": asked["state"], "iss": self.url}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def end_tokens(self) -> None:
        """Let the MCP server reject the access tokens from now on, though they have not expired."""
        self.access_tokens.clear()

    def app(self) -> Starlette:
        paths = {"/reg": self._register, "/token": self._token, "/revoke": self._revoke}
        routes = [Route(path, self._guarded(path, answer), methods=["POST"]) for path, answer in paths.items()]
        routes.append(Route("/token/introspection", self._introspect, methods=["POST"]))
        documents = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")
        routes += [Route(path, self._guarded(path, self._describe)) for path in documents]
        routes.append(Route("/resource", self._guarded("/resource", lambda _: JSONResponse(self.resource_metadata))))
        return Starlette(routes=routes)

    def _guarded(self, path: str, answer: Callable[[Json], Response]) -> Callable[..., Any]:
        async def handle(request: Request) -> Response:
            is_json = "json" in request.headers.get("content-type", "")
            body = await request.json() if is_json else dict(parse_qsl((await request.body()).decode()))
            basic = request.headers.get("authorization", "").removeprefix("Basic ")
            if basic:
                body["client_id"], _, body["client_secret"] = base64.b64decode(basic).decode().partition(":")
            self.requests.append((path, body))
            fault = self.faults.get(path)
            return answer(body) if fault is None else _Fault(fault)

        return handle

    def _describe(self, _: Json) -> Response:
        metadata = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/reg",
            "revocation_endpoint": f"{self.url}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        } | self.metadata
        return JSONResponse({name: value for name, value in metadata.items() if value is not None})

    def _register(self, body: Json) -> Response:
        client = {**body, "client_id": f"client-{len(self.clients)}", "client_secret": self._issue()}
        client["token_endpoint_auth_method"] = "client_secret_basic"
        self.clients[client["client_id"]] = client
        return JSONResponse(client, 201)

    def _token(self, body: Json) -> Response:
        client = self.clients.get(body.get("client_id", ""))
        if client is None or client.get("client_secret") != body.get("client_secret"):
            return JSONResponse({"error": "invalid_client"}, 401)
        if body["grant_type"] == "authorization_code":
            self.secrets.add(body["code_verifier"])
            grant = self.codes.pop(body["code"], None)
            digest = hashlib.sha256(body["code_verifier"].encode()).digest()
            is_proven = grant is not None and grant.challenge == base64.urlsafe_b64encode(digest).decode().rstrip("=")
            is_valid = is_proven and grant is not None and grant.redirect_uri == body["redirect_uri"]
        else:
            grant = self.refresh_tokens.pop(body["refresh_token"], None)
            is_valid = grant is not None
        if not is_valid or grant is None or grant.resource != body["resource"]:
            return JSONResponse({"error": "invalid_grant", "error_description": body.get("code", "")}, 400)
        return JSONResponse(self.on_token(self._grant_tokens(grant)))

    def _grant_tokens(self, grant: Grant) -> Json:
        access_token, refresh_token = self._issue(), self._issue()
        lifetime_s = 3600 if self.expires_in is None else self.expires_in
        self.access_tokens[access_token] = Grant(
            grant.client_id, grant.scope, grant.resource, expires_at=time.time() + lifetime_s
        )
        self.refresh_tokens[refresh_token] = grant
        answer: Json = {"access_token": access_token, "token_type": "bearer", "refresh_token": refresh_token}
        return answer if self.expires_in is None else answer | {"expires_in": self.expires_in}

    def _revoke(self, body: Json) -> Response:
        self.access_tokens.pop(body["token"], None)
        self.refresh_tokens.pop(body["token"], None)
        return Response(status_code=200)

    async def _introspect(self, request: Request) -> Response:
        token = dict(parse_qsl((await request.body()).decode()))["token"]
        grant = self.access_tokens.get(token)
        if grant is None or grant.expires_at < time.time():
            return JSONResponse({"active": False})
        claims = {"active": True, "aud": grant.resource, "client_id": grant.client_id, "scope": grant.scope}
        return JSONResponse(claims | {"exp": int(grant.expires_at) + 1, "sub": self.account})

    def _issue(self) -> str:
        secret = secrets.token_urlsafe(24)
        self.secrets.add(secret)
        return secret


class _Fault(Response):
    """A response that lets an ASGI application answer."""

    def __init__(self, answer: ASGIApp) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


@contextmanager
def running_authorization_server() -> Iterator[AuthorizationServer]:
    server = AuthorizationServer(free_port())
    with running_app(server.app(), server.port):
        yield server
