"""The `state` parameter of a sign-in: a sealed reference to the stored request."""

import base64
import binascii

import orjson

from app.crypto import Sealer, SecretOwner

_STATE_OWNER = SecretOwner("", "", "oauth_state")


def seal_state(sealer: Sealer, user_id: str, server_id: str, request_id: str) -> str:
    """Return the `state`: it names the request, so that the callback finds it without a search across users."""
    sealed = sealer.seal(orjson.dumps([user_id, server_id, request_id]), _STATE_OWNER)
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def open_state(sealer: Sealer, state: str | None) -> tuple[str, str, str]:
    try:
        sealed = base64.urlsafe_b64decode(f"{state or ''}{'=' * (-len(state or '') % 4)}")
    except binascii.Error as error:
        raise ValueError("not a state") from error
    user_id, server_id, request_id = orjson.loads(sealer.open(sealed, _STATE_OWNER))
    return user_id, server_id, request_id
