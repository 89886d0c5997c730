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
    return httpx2.AsyncClient(
        headers=headers,
        timeout=None,
        follow_redirects=False,
        trust_env=False,
        limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
    )


async def read_answer(response: httpx2.Response, max_bytes: int) -> bytes:
    """Return the body of a streamed response. Raise `AnswerTooLarge`."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise AnswerTooLarge(max_bytes)
    return bytes(body)
