"""Reads the credentials of a request from its headers, and says what a request without valid ones should present."""

import re

from starlette.requests import HTTPConnection
from starlette.types import Scope

from app.api.mcp_paths import METADATA_PATH, is_mcp_path, list_resource_paths
from app.auth.credentials import Credentials
from app.auth.keys import hash_key
from app.auth.oidc.single_sign_on import SingleSignOn
from app.auth.oidc.tokens import is_token
from app.container import Container
from app.dependencies import get_base_url
from app.errors import BadRequest, ToolscoutError, Unauthenticated

# A proxy may join the values of a repeated header with commas. A key that the operator has chosen may contain a comma.
_JOINED = {
    "Authorization": re.compile(r",\s*bearer\s", re.IGNORECASE),
    "X-API-Key": re.compile(r",\s*ts_(?:user|service|admin)_"),
    "X-User-Id": re.compile(","),
}
_UNQUOTABLE = re.compile(r"[^ -!#-\[\]-~]")
_NAMES = {name.lower().encode(): name for name in _JOINED}


def read_credential_headers(scope: Scope) -> dict[str, str]:
    """Return the headers that say who calls.

    Refuse several values of one header: a proxy in front may have checked another than we use.
    """
    values: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = _NAMES.get(raw_name)
        if name is not None:
            value = raw_value.decode("latin-1")
            if name in values or _JOINED[name].search(value):
                raise BadRequest(f"the header {name} is sent more than once: send it once")
            values[name] = value
    return values


async def resolve_credentials(headers: dict[str, str], path: str, sso: SingleSignOn | None) -> Credentials:
    """Return the key, or the person whose token it is, in `Authorization` or `X-API-Key`, and the user in `X-User-Id`.

    A token is verified here, a key is looked up later. Raise `Unauthenticated` or `IdentityProviderDown`.
    """
    authorization, api_key = headers.get("Authorization"), headers.get("X-API-Key")
    if authorization is not None and api_key:
        raise BadRequest("send the key in Authorization or in X-API-Key, not in both")
    scheme, _, token = (authorization or "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else api_key
    if not key:
        wanted = "an API key" if sso is None else "an API key, or an access token of the identity provider"
        raise Unauthenticated(f"send {wanted}: `Authorization: Bearer …` or, with a key, `X-API-Key: …`")
    user_id = headers.get("X-User-Id")
    if sso is not None and key is not api_key and is_token(key):
        return Credentials(await sso.access_tokens.verify(key, list_resource_paths(path)), user_id)
    return Credentials(hash_key(key), user_id)


def add_challenge(error: ToolscoutError, scope: Scope, container: Container) -> None:
    """Let a 401 say where a client finds the authorization server (RFC 9728), if there is one."""
    if not isinstance(error, Unauthenticated) or container.sso is None:
        return
    parts = []
    if (url := get_base_url(HTTPConnection(scope), container.settings)) is not None:
        path = scope["path"] if is_mcp_path(scope["path"]) else ""
        parts.append(f'resource_metadata="{url}{METADATA_PATH}{path}"')
    if any(name in (b"authorization", b"x-api-key") for name, _ in scope["headers"]):
        parts.append(f'error="invalid_token", error_description="{_UNQUOTABLE.sub("", error.message)}"')
    error.challenge = "Bearer " + ", ".join(parts) if parts else "Bearer"
