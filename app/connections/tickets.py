"""Links with which a user's browser begins a sign-in to a server, without an API key.

A link costs nothing to make: the server is asked how to sign in only when somebody opens it. Its ticket is sealed,
names one user and one server, serves no other purpose, and expires.
"""

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import orjson

from app.connections.models import AuthorizationLink
from app.crypto import Sealer, SecretOwner
from app.errors import ConfigurationError, InvalidInput

START_PATH = "/oauth/start"
LINK_LIFETIME = timedelta(hours=1)
_PURPOSE = SecretOwner("", "", "sign-in ticket")
_MAX_TICKET = 2_000


@dataclass(frozen=True)
class Ticket:
    user_id: str
    server_id: str
    actor: str
    """Whose request the link was made for."""


def make_link(sealer: Sealer, base_url: str, ticket: Ticket) -> AuthorizationLink:
    expires_at = datetime.now(UTC).replace(microsecond=0) + LINK_LIFETIME
    fields = [ticket.user_id, ticket.server_id, ticket.actor, int(expires_at.timestamp())]
    sealed = sealer.seal(orjson.dumps(fields), _PURPOSE)
    text = base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()
    return AuthorizationLink(f"{base_url}{START_PATH}?{urlencode({'ticket': text})}", expires_at)


def open_ticket(sealer: Sealer, text: str) -> Ticket:
    """Raise `InvalidInput` unless the ticket was made here and is still valid."""
    try:
        if len(text) > _MAX_TICKET:
            raise ValueError("longer than any ticket")
        sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        user_id, server_id, actor, expires_at = orjson.loads(sealer.open(sealed, _PURPOSE))
    except (binascii.Error, ValueError, ConfigurationError):
        raise InvalidInput("this link is not complete: copy all of it, or ask for a new one") from None
    if datetime.now(UTC).timestamp() >= expires_at:
        raise InvalidInput("this link has expired: ask for a new one where you got it")
    return Ticket(user_id, server_id, actor)
