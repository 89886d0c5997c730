"""An MCP server that wants OAuth: the SDK's own server as a resource server of an authorization server."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import httpx
import jwt
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.service import free_port
from tests.support.oidc_provider import RESOURCE_SERVER

Json = dict[str, Any]
ALGORITHMS = ["RS256", "ES256", "EdDSA"]


class Issuer(Protocol):
    """What the server needs to know of its authorization server."""

    @property
    def url(self) -> str: ...


@dataclass
class ProtectedServer:
    """The server and what it has seen. Tests may change the attributes at any time."""

    provider: Issuer
    port: int
    calls: list[tuple[str, str]] = field(default_factory=list)
    """The account and the tool of each call that ran."""
    tokens: list[str] = field(default_factory=list)
    """The credentials of all requests, in order; an empty one for a request without."""
    scopes_of_tools: dict[str, str] = field(default_factory=lambda: {"delete_note": "tools:write"})
    """A call of such a tool needs this scope beside that of the server."""
    challenge: str | None = None
    """Replaces the header `WWW-Authenticate`."""
    metadata: Json = field(default_factory=dict)
    """Replaces members of the protected resource metadata."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Forget what was seen, and undo the changes."""
        fresh = ProtectedServer(self.provider, self.port)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def accepts(self, token: str) -> bool:
        """Present the token, and return whether the server lets it pass."""
        return httpx.post(self.url, json={}, headers={"Authorization": f"Bearer {token}"}).status_code != 401

    async def verify_token(self, token: str) -> AccessToken | None:
        claims = await asyncio.to_thread(self._read_jwt if token.count(".") == 2 else self._introspect, token)
        if claims is None:
            return None
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims.get("scope", "").split(),
            expires_at=claims["exp"],
            resource=next((each for each in audiences if each == self.url), audiences[0]),
            subject=claims["sub"],
        )

    def _read_jwt(self, token: str) -> Json | None:
        try:
            key = jwt.PyJWKClient(f"{self.provider.url}/jwks").get_signing_key_from_jwt(token)
            claims: Json = jwt.decode(token, key, ALGORITHMS, audience=self.url, issuer=self.provider.url)
        except jwt.PyJWTError:
            return None
        return claims

    def _introspect(self, token: str) -> Json | None:
        credentials = (RESOURCE_SERVER["client_id"], RESOURCE_SERVER["client_secret"])
        answer = httpx.post(f"{self.provider.url}/token/introspection", data={"token": token}, auth=credentials)
        claims: Json = answer.json()
        return claims if claims.get("active") else None

    def add_call(self, tool: str) -> str:
        token = get_access_token()
        assert token is not None
        assert token.subject is not None
        self.calls.append((token.subject, tool))
        return token.subject


@contextmanager
def running_protected_server(provider: Issuer) -> Iterator[ProtectedServer]:
    server = ProtectedServer(provider, free_port())
    with running_app(_Front(server, _make_app(server)), server.port):
        yield server


def _make_app(server: ProtectedServer) -> ASGIApp:
    settings = {
        "issuer_url": server.provider.url,  # as a string: an `AnyHttpUrl` gets a slash that the issuer does not have
        "resource_server_url": server.url,
        "required_scopes": ["tools:read"],
        "validate_token_resource": True,
    }
    mcp = MCPServer("notes", auth=AuthSettings.model_validate(settings), token_verifier=server)

    @mcp.tool()
    def list_notes() -> str:
        """List the notes of the account."""
        return f"the notes of {server.add_call('list_notes')}"

    @mcp.tool()
    def add_note(text: str) -> str:
        """Write a new note with this text."""
        return f"{server.add_call('add_note')} noted {len(text)} characters"

    @mcp.tool()
    def delete_note(name: str) -> str:
        """Delete the note of this name for good."""
        return f"{server.add_call('delete_note')} deleted {name}"

    return mcp.streamable_http_app()


class _Front:
    """Records the credentials, and asks for the scope of a single tool, for which the SDK has no setting."""

    def __init__(self, server: ProtectedServer, app: ASGIApp) -> None:
        self._server = server
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] != "/mcp":
            await self._describe(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self._server.tokens.append(token)
        if missing := self._find_missing_scope(body, token):
            await self._refuse(missing)(scope, receive, send)
            return
        unread = [body]

        async def receive_again() -> Message:
            return {"type": "http.request", "body": unread.pop()} if unread else await receive()

        await self._app(scope, receive_again, self._with_challenge(send))

    async def _describe(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the SDK's metadata, and with the members that the test replaces."""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app)) as http:
            answer = await http.get(f"http://{self._server.address}{scope['path']}")
        if answer.status_code == 200 and self._server.metadata:
            await JSONResponse(answer.json() | self._server.metadata)(scope, receive, send)
        else:
            await Response(answer.content, answer.status_code, dict(answer.headers))(scope, receive, send)

    def _find_missing_scope(self, body: bytes, token: str) -> str | None:
        message = json.loads(body) if body else {}
        needed = self._server.scopes_of_tools.get((message.get("params") or {}).get("name", ""))
        scopes = read_claims(token).get("scope", "").split()  # the server checks the signature
        return needed if message.get("method") == "tools/call" and needed not in scopes else None

    def _refuse(self, scope: str) -> ASGIApp:
        metadata = f"http://{self._server.address}/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer error="insufficient_scope", scope="{scope}", resource_metadata="{metadata}"'
        return JSONResponse({"error": "insufficient_scope"}, 403, {"WWW-Authenticate": challenge})

    def _with_challenge(self, send: Send) -> Send:
        async def send_changed(message: Message) -> None:
            if message.get("status") == 401 and self._server.challenge is not None:
                headers = [header for header in message["headers"] if header[0] != b"www-authenticate"]
                headers.append((b"www-authenticate", self._server.challenge.encode()))
                message = {**message, "headers": headers}
            await send(message)

        return send_changed


def read_claims(token: str) -> Json:
    """Read the claims of a JWT without a look at its signature. Other tokens have none."""
    if token.count(".") != 2:
        return {}
    claims: Json = jwt.decode(token, options={"verify_signature": False})
    return claims


@contextmanager
def running_app(app: ASGIApp, port: int) -> Iterator[None]:
    """Serve an application on loopback from a thread of its own."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, ws="none", log_config=None, proxy_headers=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="protected-server", daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
