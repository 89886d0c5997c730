"""The OAuth flow of the MCP SDK's client, cut in two where the user's browser is.

The SDK's flow is one generator that waits for the browser. Ours begins in one request and ends in another, maybe in
another process. So `begin` runs the SDK's flow up to the redirect (discovery, choice of scopes, registration) and
returns what it has found out, and the other functions restore it. This is the only file that knows the SDK's client;
the methods of it that are not public are listed in a test.

The SDK's exceptions quote what servers have sent, which may be a secret: their texts are never passed on.
"""

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError, PKCEParameters
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls,
    create_oauth_metadata_request,
    extract_resource_metadata_from_www_auth,
    handle_protected_resource_response,
    issuers_match,
    union_scopes,
    validate_authorization_response_iss,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, ValidationError

from app.connections.models import OAuthContext, Tokens
from app.errors import InvalidInput, ServerUnreachable
from app.text.strict_json import Json

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]

_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_SCOPE = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]{1,16384}")
"""RFC 6749, 3.3."""
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")
_TEMPORARY_ERRORS = frozenset({"server_error", "temporarily_unavailable", "slow_down"})
_NO_SIGN_IN = (
    "this server offers no sign-in (OAuth): if it needs credentials, store them as headers of the server "
    "(PATCH /servers/{id} with `headers`)"
)


class GrantRefused(Exception):
    """The authorization server refuses the code or the refresh token for good. `code` is its word for it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class ClientIdentity:
    """Who we are to authorization servers."""

    redirect_uri: str
    metadata_url: str | None
    """The address of our client id metadata document, if it is public."""
    operator_clients: Mapping[str, Mapping[str, str]] = field(repr=False)
    """What the operator has registered, by issuer."""


@dataclass(frozen=True)
class SignIn:
    """A sign-in up to the redirect."""

    context: OAuthContext
    verifier: str = field(repr=False)
    authorization_url: str = field(repr=False)


class _Redirect(Exception):
    """The SDK's flow has come to the point at which the browser is sent to the authorization server."""

    def __init__(self, url: str) -> None:
        super().__init__("redirect")
        self.url = url


class _Storage:
    """What the SDK's flow starts with. Nothing is stored here: the caller stores the result."""

    def __init__(self, tokens: OAuthToken | None, client: OAuthClientInformationFull | None) -> None:
        self._tokens, self._client = tokens, client

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def make_client_metadata(redirect_uri: str, scope: str | None = None) -> OAuthClientMetadata:
    """Return how we describe ourselves to an authorization server."""
    is_local = redirect_uri.startswith("http://")
    return OAuthClientMetadata(
        redirect_uris=[AnyUrl(redirect_uri)],
        client_name="Toolscout",
        scope=scope,
        application_type="native" if is_local else "web",
    )


def describe_client(identity: ClientIdentity) -> Json:
    """Return our client id metadata document."""
    metadata = make_client_metadata(identity.redirect_uri).model_dump(mode="json", exclude_none=True)
    return metadata | {"client_id": identity.metadata_url, "token_endpoint_auth_method": "none"}


async def begin(
    send: Send,
    server_url: str,
    challenge: httpx2.Response,
    identity: ClientIdentity,
    state: str,
    previous: OAuthContext | None = None,
    granted_scope: str | None = None,
    required_scope: str | None = None,
) -> SignIn:
    """Run the flow up to the redirect.

    - `challenge` is the server's answer to a request without credentials.
    - `previous` is that of the account that is connected now, whose client is used again.
    - `required_scope` is what a call was refused for want of: it is asked for besides `granted_scope`.

    Raise `InvalidInput` if the server offers no sign-in, `ServerUnreachable` if its sign-in cannot be used.
    """
    # the SDK reads the scope that was granted from the token
    granted = OAuthToken(access_token="-", scope=granted_scope)  # noqa: S106 not a token
    provider = _make_provider(server_url, identity, _Storage(granted, _find_client(previous, identity, required_scope)))
    redirect_url = await _run_to_redirect(provider, send, _restate(challenge, required_scope), identity)
    with _translate_errors():
        metadata, client = _take_registration(provider)
        changes = {}
        if (scope := _choose_scope(identity, client, required_scope)) is not None:
            changes["scope"] = provider.context.client_metadata.scope = scope
        pkce = PKCEParameters.generate()
        changes |= {"state": state, "code_challenge": pkce.code_challenge}
        url = _change_parameters(redirect_url, str(metadata.authorization_endpoint), changes)
        return SignIn(_capture(provider, metadata, client, identity.redirect_uri), pkce.code_verifier, url)


async def offers_sign_in(send: Send, server_url: str) -> bool:
    """Return whether the server publishes that it is a protected resource (RFC 9728)."""
    for url in build_protected_resource_metadata_discovery_urls(None, server_url):
        with suppress(ServerUnreachable):
            if await handle_protected_resource_response(await send(create_oauth_metadata_request(url))) is not None:
                return True
    return False


def check_issuer(context: OAuthContext, iss: str | None) -> bool:
    """Return whether the answer comes from the authorization server that was asked (RFC 9207)."""
    try:
        validate_authorization_response_iss(iss, OAuthMetadata.model_validate(context.metadata))
    except OAuthFlowError:
        return False
    return True


async def exchange_code(send: Send, context: OAuthContext, code: str, verifier: str) -> Tokens:
    """Raise `GrantRefused`, or `ServerUnreachable` if there is no usable answer."""
    provider = _restore(context)
    with _translate_errors():
        request = await provider._exchange_token_authorization_code(code, verifier)
    response = await send(request)
    _check_refusal(response)
    with _translate_errors():
        await provider._handle_token_response(response)
    return _take_tokens(provider)


async def refresh(send: Send, context: OAuthContext, tokens: Tokens) -> Tokens:
    """Raise `GrantRefused`, or `ServerUnreachable` if there is no usable answer."""
    provider = _restore(context, tokens)
    with _translate_errors():
        request = await provider._refresh_token()
    response = await send(request)
    _check_refusal(response)
    with _translate_errors():
        if not await provider._handle_refresh_response(response):
            raise OAuthTokenError
    return _take_tokens(provider)


async def revoke(send: Send, context: OAuthContext, tokens: Tokens) -> bool:
    """Revoke both tokens (RFC 7009), as far as possible. Return whether the server has confirmed it."""
    provider = _restore(context, tokens)
    endpoint = context.metadata.get("revocation_endpoint")
    if endpoint is None:
        return False
    confirmed = True
    for token, hint in ((tokens.refresh_token, "refresh_token"), (tokens.access_token, "access_token")):
        if token is None:
            continue
        data = {"token": token, "token_type_hint": hint, "client_id": str(context.client["client_id"])}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            with _translate_errors():
                data, headers = provider.context.prepare_token_auth(data, headers)
                request = httpx2.Request("POST", endpoint, data=data, headers=headers)
            confirmed &= (await send(request)).status_code == 200
        except ServerUnreachable:
            confirmed = False
    return confirmed


async def _run_to_redirect(
    provider: OAuthClientProvider, send: Send, challenge: httpx2.Response, identity: ClientIdentity
) -> str:
    request = httpx2.Request("POST", provider.context.server_url)
    request.headers[MCP_PROTOCOL_VERSION_HEADER] = LATEST_PROTOCOL_VERSION  # so that `resource` is always sent
    # not `async_auth_flow`, which follows redirects
    flow = provider._auth_flow(request)
    await anext(flow)  # the request to the MCP server itself, to which `challenge` is the answer
    response = challenge
    try:
        while True:
            with _translate_errors():
                outgoing = await flow.asend(response)
            # without metadata the SDK guesses addresses of the first version of the specification
            if outgoing.method == "POST" and provider.context.oauth_metadata is None:
                raise InvalidInput(_NO_SIGN_IN)
            _use_operator_client(provider, identity)
            response = await send(outgoing)
    except _Redirect as redirect:
        if provider.context.oauth_metadata is None:
            raise InvalidInput(_NO_SIGN_IN) from None
        return redirect.url
    finally:
        await flow.aclose()


def _take_registration(provider: OAuthClientProvider) -> tuple[OAuthMetadata, OAuthClientInformationFull]:
    """Return what the flow has found out about the authorization server, and our client there."""
    metadata, client = provider.context.oauth_metadata, provider.context.client_info
    assert metadata is not None  # noqa: S101 `_run_to_redirect` has checked it
    assert client is not None  # noqa: S101 the SDK has registered it
    _check_pkce(metadata)
    _complete_client(client, metadata)
    return metadata, client


def _change_parameters(url: str, endpoint: str, changes: Mapping[str, str]) -> str:
    """Return the SDK's authorization URL with other parameters. The SDK appends its own with `?` to any endpoint."""
    parameters = {**dict(parse_qsl(url[len(endpoint) + 1 :])), **changes}
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"


def _capture(
    provider: OAuthClientProvider, metadata: OAuthMetadata, client: OAuthClientInformationFull, redirect_uri: str
) -> OAuthContext:
    """Return the state of the SDK's flow, from which `_restore` continues it."""
    resource_metadata = provider.context.protected_resource_metadata
    return OAuthContext(
        server_url=provider.context.server_url,
        redirect_uri=redirect_uri,
        issuer=str(metadata.issuer),
        resource=provider.context.get_resource_url(),
        scope=provider.context.client_metadata.scope,
        metadata=metadata.model_dump(mode="json", exclude_none=True),
        resource_metadata=None
        if resource_metadata is None
        else resource_metadata.model_dump(mode="json", exclude_none=True),
        client=client.model_dump(mode="json", exclude_none=True),
    )


def _find_client(
    previous: OAuthContext | None, identity: ClientIdentity, required_scope: str | None
) -> OAuthClientInformationFull | None:
    """Return the client of an earlier sign-in, if it can be used for this one.

    It was registered for one callback and, with some servers, for the scopes that were known then. Its secret may have
    expired.
    """
    if previous is None or previous.redirect_uri != identity.redirect_uri:
        return None
    client = OAuthClientInformationFull.model_validate(previous.client)
    has_expired = 0 < (client.client_secret_expires_at or 0) < time.time()
    has_scope = client.scope is None or set((required_scope or "").split()) <= set(client.scope.split())
    return client if has_scope and not has_expired else None


def _use_operator_client(provider: OAuthClientProvider, identity: ClientIdentity) -> None:
    """Use the operator's client for the issuer, as soon as the issuer is known."""
    context, issuer = provider.context, provider._expected_issuer()
    if (client := _find_operator_client(identity, issuer)) is not None:
        members = {name: value for name, value in client.items() if name != "scope"}
        context.client_info = OAuthClientInformationFull.model_validate(members | {"issuer": issuer})


def _find_operator_client(identity: ClientIdentity, issuer: str | None) -> Mapping[str, str] | None:
    if issuer is None:
        return None
    return next((client for known, client in identity.operator_clients.items() if issuers_match(known, issuer)), None)


def _choose_scope(
    identity: ClientIdentity, client: OAuthClientInformationFull, required_scope: str | None
) -> str | None:
    """Return the scope that the operator has set for the issuer; None: that of the SDK's choice."""
    own = _find_operator_client(identity, client.issuer)
    return None if own is None or "scope" not in own else union_scopes(own["scope"], required_scope)


def _complete_client(client: OAuthClientInformationFull, metadata: OAuthMetadata) -> None:
    """Choose how to send the client's secret, where neither registration nor operator has said it."""
    if client.client_secret is not None and client.token_endpoint_auth_method is None:
        supported = metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
        uses_basic = "client_secret_basic" in supported
        client.token_endpoint_auth_method = "client_secret_basic" if uses_basic else "client_secret_post"


def _check_pkce(metadata: OAuthMetadata) -> None:
    methods = metadata.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        raise ServerUnreachable("sign_in", "the server's sign-in does not support PKCE with S256, and is not safe")


def _restate(challenge: httpx2.Response, required_scope: str | None) -> httpx2.Response:
    """Return the challenge as the SDK understands it: a 401, or a 403 that asks for more rights.

    A server may answer a request without credentials, and ask for a sign-in only when a tool is called.
    """
    if required_scope is None:
        header = challenge.headers.get("www-authenticate")
        # as bytes: the server's text need not be ASCII
        return httpx2.Response(401, headers={} if header is None else {b"WWW-Authenticate": header.encode()})
    header = f'Bearer error="insufficient_scope", scope="{required_scope}"'
    rejected = httpx2.Response(401, headers=challenge.headers)
    if (address := extract_resource_metadata_from_www_auth(rejected)) is not None:
        header += f', resource_metadata="{address}"'
    return httpx2.Response(403, headers={b"WWW-Authenticate": header.encode()})


def _make_provider(server_url: str, identity: ClientIdentity, storage: _Storage) -> OAuthClientProvider:
    async def redirect(url: str) -> None:
        raise _Redirect(url)

    async def wait_for_callback() -> AuthorizationCodeResult:
        raise NotImplementedError  # `redirect` has ended the flow

    metadata = make_client_metadata(identity.redirect_uri)
    return OAuthClientProvider(server_url, metadata, storage, redirect, wait_for_callback, identity.metadata_url)


def _restore(context: OAuthContext, tokens: Tokens | None = None) -> OAuthClientProvider:
    """Return the SDK's flow as it was after the redirect."""
    provider = OAuthClientProvider(
        context.server_url, make_client_metadata(context.redirect_uri, context.scope), _Storage(None, None)
    )
    restored = provider.context
    restored.protocol_version = LATEST_PROTOCOL_VERSION
    restored.oauth_metadata = OAuthMetadata.model_validate(context.metadata)
    restored.client_info = OAuthClientInformationFull.model_validate(context.client)
    if context.resource_metadata is not None:
        restored.protected_resource_metadata = ProtectedResourceMetadata.model_validate(context.resource_metadata)
    if tokens is not None:
        restored.current_tokens = OAuthToken(
            access_token=tokens.access_token, refresh_token=tokens.refresh_token, scope=tokens.scope
        )
    return provider


def _take_tokens(provider: OAuthClientProvider) -> Tokens:
    issued = provider.context.current_tokens
    assert issued is not None  # noqa: S101 the SDK has accepted the answer
    if not _TOKEN.fullmatch(issued.access_token):
        raise _unusable("the server's sign-in has issued a token that cannot be sent")
    expires_in = None if issued.expires_in is None else max(issued.expires_in, 0)
    scope = issued.scope if issued.scope is not None and _SCOPE.fullmatch(issued.scope) else None
    return Tokens(issued.access_token, issued.refresh_token, scope, expires_in)


def _check_refusal(response: httpx2.Response) -> None:
    """Raise `GrantRefused` if the answer is an OAuth error that will not pass; some servers send it with status 200."""
    if response.status_code >= 500 or response.status_code == 429:
        raise _unusable(f"the server's sign-in answered with status {response.status_code}")
    try:
        body: Any = response.json()
    except (ValueError, RecursionError):
        return
    code = body.get("error") if isinstance(body, dict) else None
    if isinstance(code, str) and code not in _TEMPORARY_ERRORS:
        raise GrantRefused(code if _ERROR_CODE.fullmatch(code) else "invalid_grant")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """The SDK's boundary. `from None`: its exceptions quote what servers have sent."""
    try:
        yield
    except OAuthRegistrationError:
        raise _unusable(
            "the server's sign-in does not accept Toolscout as a client: ask the operator to register one there and "
            "to set it in TOOLSCOUT_OAUTH_CLIENTS"
        ) from None
    except OAuthTokenError:
        raise _unusable("the server's sign-in did not answer with a usable token") from None
    except (OAuthFlowError, ValidationError, ValueError):
        raise _unusable(
            "the server's sign-in cannot be used: its metadata cannot be read, or is not about this server"
        ) from None


def _unusable(message: str) -> ServerUnreachable:
    return ServerUnreachable("sign_in", message)
