"""Open the SDK's transport for a server: streamable HTTP, SSE or stdio."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from app import __version__
from app.errors import ServerUnreachable, UrlNotAllowed
from app.mcp_client.outcomes import on_request, on_response
from app.mcp_client.stderr_tail import StderrTail
from app.mcp_client.stdio_servers import StdioServerRegistry
from app.mcp_client.transport import GuardedTransport, SignIn
from app.mcp_client.url_guard import Guard
from app.mcp_types import Endpoint


@asynccontextmanager
async def open_transport(
    get_endpoint: Callable[[], Endpoint],
    guard: Guard,
    stdio_servers: StdioServerRegistry,
    stderr: StderrTail,
    *,
    connect_s: float,
    max_bytes: int,
) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
    """Yield the SDK's transport, not yet entered.

    - `get_endpoint` returns the endpoint with its newest access token, which each request sends.
    - `stderr` keeps the end of what a stdio server writes.
    """
    endpoint = get_endpoint()
    url = endpoint.url or ""

    def make_client(*_args: Any, **_kwargs: Any) -> httpx2.AsyncClient:
        return _make_http_client(get_endpoint, guard, connect_s, max_bytes)

    if endpoint.transport == "stdio":
        program = stdio_servers.get_program(endpoint.server_name, endpoint.user_id)
        command, *arguments = program.argv
        parameters = StdioServerParameters(command=command, args=arguments, env=dict(program.env))
        with stderr.capture() as stream:
            yield stdio_client(parameters, errlog=stream)
    elif endpoint.transport == "sse":
        yield sse_client(url, httpx_client_factory=make_client)
    else:
        async with make_client() as client:
            yield streamable_http_client(url, http_client=client, max_sse_event_size=max_bytes)


def _make_http_client(
    get_endpoint: Callable[[], Endpoint], guard: Guard, connect_s: float, max_bytes: int
) -> httpx2.AsyncClient:
    endpoint = get_endpoint()
    try:
        target = guard.parse_url(endpoint.url or "")
    except UrlNotAllowed as error:
        raise ServerUnreachable("url_not_allowed", error.message) from error
    is_sse = endpoint.transport == "sse"
    # Over SSE the response to a POST is only an acknowledgement, and the SDK ignores its status.
    response_hooks = [on_response] if is_sse else []
    headers = httpx2.Headers({"User-Agent": f"toolscout/{__version__}", "Accept-Encoding": "gzip"})
    headers.update(endpoint.headers)  # case-insensitive: the user's headers replace ours

    async def send_newest_token(request: httpx2.Request) -> None:
        newest = get_endpoint()
        if newest.credential_version:
            for name in endpoint.headers:
                request.headers.pop(name, None)  # a newer credential may use other headers
            request.headers.update(newest.headers)

    return httpx2.AsyncClient(
        transport=GuardedTransport(
            guard,
            target,
            endpoint.user_id,
            max_bytes,
            sse_url=endpoint.url if is_sse else None,
            get_sign_in=lambda: _get_sign_in(get_endpoint()),
        ),
        headers=headers,
        # A call may take long, and an event stream stays open: `Connection` sets a deadline for each request.
        timeout=httpx2.Timeout(None, connect=connect_s),
        event_hooks={"request": [on_request, send_newest_token], "response": response_hooks},
        trust_env=False,
    )


def _get_sign_in(endpoint: Endpoint) -> SignIn:
    if endpoint.credential_version:
        return "token"
    return "own_headers" if endpoint.has_own_credentials else "unknown"
