"""The link that a caller gets whose call needs a sign-in."""

import asyncio

from app.connections.connector import Connector
from app.connections.models import AuthorizationLink
from app.connections.tickets import Ticket, make_link
from app.crypto import Sealer
from app.errors import AuthorizationRequired, InvalidInput, ServerUnreachable

_TIMEOUT_S = 5.0


async def add_link(connector: Connector, sealer: Sealer, error: AuthorizationRequired, ticket: Ticket) -> None:
    """Add where the user signs in to an error that says that the user must.

    If the server's sign-in does not answer soon, the link is one of ours, which asks it again when it is opened.
    """
    try:
        link = await _begin(connector, sealer, ticket)
    except InvalidInput as reason:
        error.message = f"this server wants you to sign in, which is not possible: {reason.message}"
        return
    error.authorization_url, error.expires_at = link.authorization_url, link.expires_at


async def _begin(connector: Connector, sealer: Sealer, ticket: Ticket) -> AuthorizationLink:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await connector.start(ticket.user_id, ticket.server_id, ticket.actor)
    except (TimeoutError, ServerUnreachable):
        base_url = connector.config.base_url
        assert base_url is not None  # noqa: S101 `start` has checked it
        return make_link(sealer, base_url, ticket)
