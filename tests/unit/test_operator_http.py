"""The HTTP clients of the services that the operator has configured."""

from collections.abc import Callable

import httpx2
import pytest

from app.operator_http import make_http_client


@pytest.mark.parametrize("error", [AttributeError, httpx2.ReadError])
async def test_a_connection_that_is_reset_at_once_is_an_error_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[str], Exception]
) -> None:
    async def fail(*_: object) -> httpx2.Response:
        raise error("'NoneType' object has no attribute 'getpeername'")

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", fail)
    async with make_http_client(1) as client:
        with pytest.raises(httpx2.TransportError):
            await client.get("http://127.0.0.1:1/")
