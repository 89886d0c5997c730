"""A service whose operator issues the credentials: listings and calls send them, and nothing is sent without them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from app.container import Container
from tests.support.calls import assert_ok, connect_with_tools
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.credential_server import FakeCredentialServer, running_credential_server
from tests.support.factories import OpenService, outbound_allow
from tests.support.mcp_server import FakeMcpServer, Fault, status

CANARY = "canary-93bd-token"


@pytest.fixture
def credentials() -> Iterator[FakeCredentialServer]:
    with running_credential_server() as server:
        yield server


@asynccontextmanager
async def open_user(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> AsyncIterator[tuple[Container, TestUser]]:
    settings = credentials.settings(outbound_allow=outbound_allow(mcp), credential_timeout_s=30.0)
    async with open_service(**settings) as service, new_user(service) as user:
        yield service, user


def sent(mcp: FakeMcpServer, header: str, method: str) -> list[str | None]:
    return [each.headers.get(header) for each in mcp.requests if each.rpc_method == method]


async def test_listings_and_calls_send_the_issued_headers_and_no_answer_shows_them(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> None:
    credentials.headers[mcp.url] = {"Authorization": f"Bearer {CANARY}", "X-Team": "blue"}
    async with open_user(open_service, credentials, mcp) as (service, user):
        server_id = await connect_with_tools(user, mcp, "read")
        assert_ok(await user.execute("read"))
        assert set(sent(mcp, "authorization", "tools/list")) == {f"Bearer {CANARY}"}
        assert sent(mcp, "x-team", "tools/call") == ["blue"]
        [(body, _), *others] = credentials.requests
        assert (body["user_id"], body["server"]["id"], others) == (user.id, server_id, [])
        server = await user.http.get(f"/servers/{server_id}")
        assert (server.json()["header_names"], CANARY in server.text) == ([], False)
        async with service.database.system_transaction() as session:
            scopes = await session.rows("SELECT count(*) FROM public_listings")
        assert scopes == [(0,)]  # what a server lists for credentials is nobody else's


async def test_newer_headers_are_sent_on_the_connection_that_is_open(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> None:
    credentials.headers[mcp.url], credentials.expires_in = {"X-Key": "first"}, 1e-9
    async with open_user(open_service, credentials, mcp) as (_, user):
        await connect_with_tools(user, mcp, "read")
        handshakes = len(sent(mcp, "x-key", "server/discover"))
        credentials.headers[mcp.url] = {"X-Key": "second"}
        assert_ok(await user.execute("read"))
        assert sent(mcp, "x-key", "tools/call") == ["second"]
        assert len(sent(mcp, "x-key", "server/discover")) == handshakes


async def test_without_credentials_from_the_service_the_stored_headers_are_sent(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> None:
    async with open_user(open_service, credentials, mcp) as (_, user):
        await user.connect(mcp, headers={"X-Key": "stored"})
        assert set(sent(mcp, "x-key", "tools/list")) == {"stored"}


async def test_if_the_service_fails_nothing_is_sent_and_it_recovers(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> None:
    credentials.headers[mcp.url], credentials.expires_in = {"X-Key": "issued"}, 1e-9
    async with open_user(open_service, credentials, mcp) as (_, user):
        await connect_with_tools(user, mcp, "read")
        requests = len(mcp.requests)
        credentials.status = 500
        problem = assert_problem(await user.execute("read"), 502, "SERVER_CONNECTION_ERROR")
        assert problem["cause"] == "credentials"
        assert len(mcp.requests) == requests
        credentials.status = None
        assert_ok(await user.execute("read"))


async def test_rejected_headers_are_requested_again_and_the_call_runs_once(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> None:
    credentials.headers[mcp.url] = {"Authorization": "Bearer revoked"}
    async with open_user(open_service, credentials, mcp) as (_, user):
        await connect_with_tools(user, mcp, "read")
        credentials.headers[mcp.url] = {"Authorization": "Bearer newer"}
        mcp.fault = Fault(status(401, headers={"WWW-Authenticate": "Bearer"}), on=["tools/call"], times=1)
        assert_ok(await user.execute("read"))
        assert sent(mcp, "authorization", "tools/call") == ["Bearer revoked", "Bearer newer"]
        mcp.fault = Fault(status(401, headers={"WWW-Authenticate": "Bearer"}), on=["tools/call"])
        problem = assert_problem(await user.execute("read"), 502, "SERVER_CONNECTION_ERROR")
        assert problem["cause"] == "unauthorized"


async def test_withdrawn_headers_are_not_sent_on_the_connection_that_is_open(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> None:
    credentials.headers[mcp.url], credentials.expires_in = {"X-Key": "issued"}, 1e-9
    async with open_user(open_service, credentials, mcp) as (_, user):
        await connect_with_tools(user, mcp, "read")
        assert_ok(await user.execute("read"))
        del credentials.headers[mcp.url]
        assert_ok(await user.execute("read"))
        assert sent(mcp, "x-key", "tools/call") == ["issued", None]


async def test_newer_credentials_in_another_header_replace_the_older_ones(
    open_service: OpenService, credentials: FakeCredentialServer, mcp: FakeMcpServer
) -> None:
    credentials.headers[mcp.url], credentials.expires_in = {"X-Key": "first"}, 1e-9
    async with open_user(open_service, credentials, mcp) as (_, user):
        await connect_with_tools(user, mcp, "read")
        credentials.headers[mcp.url] = {"X-Token": "second"}
        assert_ok(await user.execute("read"))
        assert (sent(mcp, "x-key", "tools/call"), sent(mcp, "x-token", "tools/call")) == ([None], ["second"])
