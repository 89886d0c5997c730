"""Credentials of the operator's own service: requested once, kept until they expire, and never replaced by none."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from app.connections.credential_source import CredentialSource
from app.errors import AuthorizationRequired, ServerUnreachable
from app.mcp_types import Endpoint
from tests.support.credential_server import CREDENTIAL_KEY, FakeCredentialServer, running_credential_server

CANARY = "canary-77aa-token"
URL = "https://mcp.example.com/mcp"
HEADERS = {"Authorization": f"Bearer {CANARY}"}
ENDPOINT = Endpoint("alice", "server-1", "github", 1, "streamable_http", URL)


@pytest.fixture
def service() -> Iterator[FakeCredentialServer]:
    with running_credential_server() as server:
        server.headers[URL] = HEADERS
        yield server


@pytest.fixture
async def source(service: FakeCredentialServer) -> AsyncIterator[CredentialSource]:
    opened = CredentialSource(service.url, CREDENTIAL_KEY, timeout_s=30)
    yield opened
    await opened.aclose()


async def test_the_service_is_asked_for_a_user_and_a_server_with_its_key(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    issued = await source.get_headers(ENDPOINT)
    assert issued.headers == HEADERS
    [(body, headers)] = service.requests
    assert body == {"user_id": "alice", "server": {"id": "server-1", "name": "github", "url": URL}}
    assert headers["authorization"] == f"Bearer {CREDENTIAL_KEY}"


async def test_headers_are_kept_for_one_user_one_server_and_one_address(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    first = await source.get_headers(ENDPOINT)
    assert await source.get_headers(ENDPOINT) is first
    assert len(service.requests) == 1
    for other in (
        replace(ENDPOINT, user_id="bob"),
        replace(ENDPOINT, server_id="server-2"),
        replace(ENDPOINT, url="https://elsewhere.example.com/mcp"),
    ):
        asked = len(service.requests)
        await source.get_headers(other)
        assert len(service.requests) == asked + 1


async def test_headers_are_requested_again_when_they_expire_and_have_a_higher_version(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    service.expires_in = 1e-9
    first = await source.get_headers(ENDPOINT)
    service.headers[URL] = {"Authorization": "Bearer newer"}
    second = await source.get_headers(ENDPOINT)
    assert second.headers == {"Authorization": "Bearer newer"}
    assert second.version > first.version


async def test_headers_without_an_expiry_are_kept_for_a_while(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    service.expires_in = None
    await source.get_headers(ENDPOINT)
    await source.get_headers(ENDPOINT)
    assert len(service.requests) == 1


async def test_an_operation_that_the_server_rejects_is_repeated_once_with_newer_headers(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    sent: list[str] = []

    async def call(endpoint: Endpoint) -> str:
        sent.append(endpoint.headers["Authorization"])
        if len(sent) == 1:
            raise AuthorizationRequired(http_status=401)
        return "done"

    endpoint = await source.authorize(ENDPOINT)
    assert endpoint is not None
    service.headers[URL] = {"Authorization": "Bearer newer"}
    assert await source.use(endpoint, call) == "done"
    assert sent == [f"Bearer {CANARY}", "Bearer newer"]


async def test_headers_that_stay_rejected_are_a_failure_without_a_sign_in(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    calls: list[Endpoint] = []

    async def call(endpoint: Endpoint) -> None:
        calls.append(endpoint)
        raise AuthorizationRequired(http_status=401)

    endpoint = await source.authorize(ENDPOINT)
    assert endpoint is not None
    with pytest.raises(ServerUnreachable) as caught:
        await source.use(endpoint, call)
    assert (type(caught.value), caught.value.cause) == (ServerUnreachable, "unauthorized")
    assert (len(calls), len(service.requests)) == (1, 2)


async def test_issued_headers_replace_stored_ones_of_the_same_name_and_keep_others(source: CredentialSource) -> None:
    stored = replace(ENDPOINT, headers={"authorization": "Bearer stored", "X-Team": "blue"})
    endpoint = await source.authorize(stored)
    assert endpoint is not None
    assert dict(endpoint.headers) == {**HEADERS, "X-Team": "blue"}
    assert endpoint.is_issued


async def test_callers_at_the_same_time_share_one_request_even_if_the_first_leaves(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    service.gate.clear()
    callers = [asyncio.create_task(source.get_headers(ENDPOINT)) for _ in range(5)]
    async with asyncio.timeout(30):
        while not service.requests:  # noqa: ASYNC110 the service runs in another thread
            await asyncio.sleep(0.005)
    callers[0].cancel()
    service.gate.set()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [result.headers for result in results[1:] if not isinstance(result, BaseException)] == [HEADERS] * 4
    assert len(service.requests) == 1


async def test_no_credentials_are_an_answer_that_is_kept_for_a_short_while(
    source: CredentialSource, service: FakeCredentialServer
) -> None:
    service.headers.clear()
    issued = await source.get_headers(ENDPOINT)
    assert (issued.headers, issued.version) == ({}, 0)
    await source.get_headers(ENDPOINT)
    assert len(service.requests) == 1


BAD_ANSWERS = [
    b"",
    b"canary-77aa-token",
    b"[]",
    b'{"headers": []}',
    b'{"headers": {}}',
    b'{"token": "canary-77aa-token"}',
    b'{"headers": {"Host": "canary-77aa-token"}}',
    b'{"headers": {"a b": "canary-77aa-token"}}',
    b'{"headers": {"X-Key": "canary-77aa-token\\n"}}',
    b'{"headers": {"X-Key": 7}}',
    b'{"headers": {"X-Key": "canary-77aa-token"}, "expires_in": 0}',
    b'{"headers": {"X-Key": "canary-77aa-token"}, "expires_in": "1h"}',
    b'{"headers": {"X-Key": "canary-77aa-token"}, "expires_in": true}',
    b'{"headers": {"X-Key": "' + b"x" * 300_000 + b'"}}',
]


@pytest.mark.parametrize("content", BAD_ANSWERS, ids=lambda content: content[:60].decode())
async def test_an_answer_that_is_not_headers_is_a_failure_that_quotes_nothing(
    source: CredentialSource, service: FakeCredentialServer, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    service.content = content or b" "
    with caplog.at_level(logging.DEBUG), pytest.raises(ServerUnreachable) as caught:
        await source.get_headers(ENDPOINT)
    assert caught.value.cause == "credentials"
    assert caught.value.retryable
    assert CANARY not in f"{caught.value.message}{caught.value.__cause__}{caplog.text}"
    service.content = None
    assert (await source.get_headers(ENDPOINT)).headers == HEADERS


@pytest.mark.parametrize("status", [302, 307, 400, 401, 403, 500, 503])
async def test_another_status_is_a_failure_and_a_redirect_is_not_followed(
    source: CredentialSource, service: FakeCredentialServer, status: int
) -> None:
    service.status = status
    with pytest.raises(ServerUnreachable) as caught:
        await source.get_headers(ENDPOINT)
    assert (caught.value.cause, len(service.requests)) == ("credentials", 1)


async def test_a_service_that_hangs_or_is_gone_is_a_failure(service: FakeCredentialServer) -> None:
    service.gate.clear()
    hanging = CredentialSource(service.url, None, timeout_s=0.2)
    gone = CredentialSource("http://127.0.0.1:9", None, timeout_s=10)
    for source in (hanging, gone):
        with pytest.raises(ServerUnreachable) as caught:
            await source.get_headers(ENDPOINT)
        assert caught.value.cause == "credentials"
        await source.aclose()


async def test_headers_are_in_no_repr(source: CredentialSource) -> None:
    assert CANARY not in repr(await source.get_headers(ENDPOINT))
