"""`POST /discover` is answered without the framework, and by it if the request is unusual: with the same result."""

from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, open_client
from tests.support.factories import tool

BODIES = [
    b'{"query": "read a file"}',
    b' {"query": "read a file", "similarityThreshold": 0, "includeCoreTools": false}',
    b'{"messages": [{"role": "user", "content": "read a file"}], "format": "openai", "explain": true}',
    b'{"query": "read a file", "limit": 0}',
    b'{"query": "read a file", "limit": "8"}',
    b'{"query": "read a file", "limits": 8}',
    b'{"query": "read a file", "include_core_tools": true, "includeCoreTools": true}',
    b'{"query": "read a file", "limit": 123456789012345678901234567890}',
    b'{"query": "\\ud800"}',
    b'{"query": "\\u0000"}',
    b'{"query": NaN}',
    b"{}",
    b"[]",
    b"null",
    b"",
    b"{",
]
THE_FRAMEWORKS_WAY = {"anything": "1"}
"""A parameter that no route knows, and that is like none: the request takes the ordinary way."""


@pytest.fixture(autouse=True)
async def _tools(user: TestUser) -> None:
    await user.add_tools(tool("read_file", "Reads a file."), tool("send_mail", "Sends a mail."))


def without_what_differs(answer: httpx.Response) -> tuple[int, str, dict[str, Any]]:
    body = answer.json()
    for name in ("discovery_id", "search_duration_ms", "embedding_generated", "request_id"):
        body.pop(name, None)
    return answer.status_code, answer.headers["content-type"], body


@pytest.mark.parametrize("content_type", ["application/json", "application/vnd.api+json", "text/json", "text/plain"])
async def test_both_ways_give_the_same_result(user: TestUser, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    for body in BODIES:
        direct = await user.http.post("/discover", content=body, headers=headers)
        ordinary = await user.http.post("/discover", content=body, headers=headers, params=THE_FRAMEWORKS_WAY)
        assert without_what_differs(direct) == without_what_differs(ordinary), body


async def test_requests_of_both_ways_are_counted_under_the_same_route(user: TestUser, container: Container) -> None:
    counter = 'toolscout_requests_total{method="POST",route="/discover",status="200"}'

    def count_requests() -> float:
        lines = container.metrics.render().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(counter))

    before = count_requests()
    for params in ({}, THE_FRAMEWORKS_WAY):
        answer = await user.http.post("/discover", json={"query": "read a file"}, params=params)
        assert answer.status_code == 200
    assert count_requests() == before + 2


async def test_a_caller_without_permission_or_user_is_refused(
    user: TestUser, container: Container, admin: httpx.AsyncClient
) -> None:
    assert_problem(await admin.post("/discover", json={"query": "x"}), 400)
    async with open_client(container) as stranger:
        refused = await stranger.post("/discover", json={"query": "x"})
        assert_problem(refused, 401)
        assert refused.headers["www-authenticate"] == "Bearer"
    assert (await user.http.post("/discover", json={"query": "x"})).status_code == 200
