"""Reads the credentials of a request from its headers."""

import re

from starlette.types import Scope

from app.auth.credentials import Credentials
from app.auth.keys import hash_key
from app.errors import BadRequest, Unauthenticated

# A proxy may join the values of a repeated header with commas. A key that the operator has chosen may contain a comma.
_JOINED = {
    "Authorization": re.compile(r",\s*bearer\s", re.IGNORECASE),
    "X-API-Key": re.compile(r",\s*ts_(?:user|service|admin)_"),
    "X-User-Id": re.compile(","),
}
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


def parse_credentials(headers: dict[str, str]) -> Credentials:
    """Return the key in `Authorization` or `X-API-Key`, and the user in `X-User-Id`."""
    authorization, api_key = headers.get("Authorization"), headers.get("X-API-Key")
    if authorization is not None and api_key:
        raise BadRequest("send the key in Authorization or in X-API-Key, not in both")
    scheme, _, token = (authorization or "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else api_key
    if not key:
        raise Unauthenticated("send an API key: `Authorization: Bearer …` or `X-API-Key: …`")
    return Credentials(hash_key(key), headers.get("X-User-Id"))
