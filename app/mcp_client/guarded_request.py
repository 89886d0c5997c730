"""Single HTTP requests to other hosts than a user's server, such as its authorization server.

Each goes through the same guarded transport as a session, pinned to the target of its own URL: metadata that one server
publishes cannot direct us into our own network.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from app import __version__
from app.errors import ServerUnreachable, UrlNotAllowed
from app.mcp_client.transport import Exchange, GuardedTransport, current_exchange
from app.mcp_client.url_guard import Guard


async def send_guarded(
    guard: Guard, user_id: str, request: httpx2.Request, *, max_bytes: int, read_body: bool = True
) -> httpx2.Response:
    """Send the request and return the answer, whatever its status. Redirects are not followed.

    Raise `ServerUnreachable` if there is no usable answer. The caller sets the deadline. `user_id`: the user whose
    share of the look-ups it takes. Without `read_body`, only the status and the headers are of use.
    """
    try:
        target = guard.parse_url(str(request.url))
    except UrlNotAllowed as error:
        raise ServerUnreachable("url_not_allowed", error.message) from error
    request.headers["User-Agent"] = f"toolscout/{__version__}"
    request.headers.setdefault("Accept", "application/json")
    transport = GuardedTransport(guard, target, user_id, max_bytes)
    async with _track_exchange() as exchange, httpx2.AsyncClient(transport=transport, trust_env=False) as client:
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            # the transport answers 503 for a request that failed
            if exchange.failure is not None and response.status_code != exchange.status:
                raise exchange.failure
            if read_body:
                await response.aread()
        except httpx2.StreamError:
            raise exchange.failure or ServerUnreachable("closed", "the connection was lost") from None
        finally:
            await response.aclose()
    return response


@asynccontextmanager
async def _track_exchange() -> AsyncIterator[Exchange]:
    exchange = Exchange()
    token = current_exchange.set(exchange)
    try:
        yield exchange
    finally:
        current_exchange.reset(token)
