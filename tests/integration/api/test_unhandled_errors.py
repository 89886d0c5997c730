"""An unexpected error is answered as a problem, and its cause is only in the log."""

import logging

import httpx
import pytest

from app.container import Container
from app.main import create_app


async def test_an_unexpected_error_is_a_problem_with_the_requests_id(
    container: Container, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(container)

    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("canary")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    with caplog.at_level(logging.ERROR, logger="toolscout.api"):
        async with httpx.AsyncClient(transport=transport, base_url="http://toolscout") as client:
            answer = await client.get("/boom")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal_error"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert "canary" not in answer.text
    assert "canary" in caplog.text
