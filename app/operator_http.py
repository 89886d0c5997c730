"""HTTP clients of the services that the operator has configured: the cloud, the registry, the identity provider.

Their addresses are trusted, so that they may be private ones. Their answers are limited in size, redirects are not
followed, and each caller sets a deadline for a whole request.
"""

import httpx2

from app import __version__

JSON_BODY = {"Content-Type": "application/json"}
"""The headers of a request with a body."""


class AnswerTooLarge(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit // 1024} KiB")


def make_http_client(max_connections: int, key: str | None = None) -> httpx2.AsyncClient:
    """Return a client for JSON, without a timeout of its own. `key` is sent as a bearer token."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # the size limit counts what is received
        "User-Agent": f"toolscout/{__version__}",
    }
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    transport = _Transport(trust_env=False, limits=limits)
    return httpx2.AsyncClient(
        headers=headers, timeout=None, follow_redirects=False, trust_env=False, transport=transport
    )


class _Transport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request. A connection that the server resets as soon as it is made has no socket any more when anyio
        asks it for its address: a failure to connect, not of ours."""
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            raise httpx2.ConnectError("the connection was reset", request=request) from error


async def read_answer(response: httpx2.Response, max_bytes: int) -> bytes:
    """Return the body of a streamed response. Raise `AnswerTooLarge`."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise AnswerTooLarge(max_bytes)
    return bytes(body)
