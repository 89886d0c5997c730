"""Tests that Toolscout never connects into its own network, with listeners on loopback that count connections."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app import __version__
from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.checks import Json, assert_problem
from tests.support.clients import TestUser, new_user
from tests.support.factories import make_database, make_settings, outbound_allow, tool
from tests.support.mcp_server import FakeMcpServer, Fault, Listener, gzip_bomb, hang, listener, oversized_result
from tests.support.urls import FORBIDDEN_URLS
from tests.support.wire_server import WireServer, create_certificate, http_response, running_wire_server

MAX_BYTES = 1_000_000
LANES = 8
"""Concurrent index runs of one user."""

PRIVATE_NAMES: dict[str, Sequence[str]] = {
    "loopback.example": ["127.0.0.1"],
    "loopback6.example": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "unspecified.example": ["0.0.0.0"],  # noqa: S104 nobody binds to it
    "private.example": ["192.168.1.10"],
    "metadata.example": ["169.254.169.254"],
    "shared.example": ["100.64.0.1"],
    "link-local.example": ["fe80::1%eth0"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "6to4.example": ["2002:7f00:1::"],
    "mixed.example": ["8.8.8.8", "127.0.0.1"],
    "mixed-reversed.example": ["127.0.0.1", "2606:4700::1111"],
    "localhost.localdomain": ["127.0.0.1"],
}


class FakeResolver:
    """A resolver whose addresses can be changed at any time."""

    def __init__(self) -> None:
        self.addresses: dict[str, Sequence[str]] = {**PRIVATE_NAMES, "public.example": ["8.8.8.8"]}
        self.next_addresses: dict[str, Sequence[str]] = {}
        """The addresses after the next lookup."""
        self.lookups: list[str] = []

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.lookups.append(host)
        if host not in self.addresses:
            raise OSError(f"{host} is not known here")
        now = self.addresses[host]
        self.addresses[host] = self.next_addresses.pop(host, now)
        return now


class PrivateService:
    """A service on loopback, over IPv4 and IPv6, that must never be connected to."""

    def __init__(self, ipv4: Listener, ipv6: Listener) -> None:
        self.port = ipv4.port
        self._listeners = ipv4, ipv6

    @property
    def connects(self) -> int:
        return sum(listener.connects for listener in self._listeners)

    def fill_port(self, url_template: str) -> str:
        return url_template.replace("{port}", str(self.port))


def listen_on_both_protocols() -> tuple[Listener, Listener]:
    while True:
        ipv4 = Listener("127.0.0.1", 0)
        with suppress(OSError):
            return ipv4, Listener("::1", ipv4.port)
        ipv4.close()


@pytest.fixture(scope="module")
def private_service() -> Iterator[PrivateService]:
    ipv4, ipv6 = listen_on_both_protocols()
    yield PrivateService(ipv4, ipv6)
    ipv4.close()
    ipv6.close()


@pytest.fixture(scope="module")
def resolver() -> FakeResolver:
    return FakeResolver()


@pytest.fixture(scope="module")
async def tls_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WireServer]:
    certificate = create_certificate("127.0.0.1", tmp_path_factory.mktemp("certificate"))
    async with running_wire_server(
        http_response(b"{}", Content_Type="application/json"), certificate.server_context()
    ) as server:
        yield server


@pytest.fixture(scope="module")
async def service(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    mcp_servers: dict[str, FakeMcpServer],
    resolver: FakeResolver,
    tls_server: WireServer,
) -> AsyncIterator[Container]:
    """A service that may connect to the fake servers: by address, and to the modern one also by host name."""
    listed = [outbound_allow(*mcp_servers.values()), f"files.internal:{mcp_servers['modern'].port}"]
    listed += [f"127.0.0.1:{tls_server.port}"]
    settings = make_settings(
        tmp_path_factory.mktemp("outbound"),
        outbound_allow=", ".join(listed),
        upstream_max_bytes=MAX_BYTES,
    )
    async with open_container(settings, make_database(postgres), resolver) as opened:
        yield opened


@pytest.fixture
async def user(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as created:
        yield created


@pytest.fixture(scope="module")
async def shared_user(service: Container) -> AsyncIterator[TestUser]:
    """A user for all tests whose requests are only rejected."""
    async with new_user(service) as created:
        yield created


@pytest.fixture(scope="module")
async def disabled_server(shared_user: TestUser) -> str:
    """A disabled server, so that its tools are not listed."""
    return await shared_user.add_server(transport="streamable_http", url="https://public.example", enabled=False)


def make_registration(url: str, **fields: Any) -> Json:
    return {"name": f"server-{uuid.uuid4().hex[:8]}", "transport": "streamable_http", "url": url, **fields}


async def set_url(
    service: Container, user: TestUser, server_id: str, url: str, transport: str = "streamable_http"
) -> None:
    """Set a URL in the database, as if it had been allowed once."""
    statement = """
        UPDATE mcp_servers SET url = %(url)s, transport = %(transport)s, config_version = config_version + 1
        WHERE id = %(id)s
    """
    async with service.database.transaction(user.id) as session:
        await session.rows(statement, {"url": url, "transport": transport, "id": server_id})


FORBIDDEN = FORBIDDEN_URLS + [f"https://{name}:{{port}}/mcp" for name in PRIVATE_NAMES]


@pytest.mark.parametrize("url_template", FORBIDDEN)
async def test_a_private_url_is_rejected_at_registration_and_at_update(
    shared_user: TestUser, disabled_server: str, private_service: PrivateService, url_template: str
) -> None:
    url = private_service.fill_port(url_template)
    assert_problem(await shared_user.http.post("/servers", json=make_registration(url)), 422, "url_not_allowed")
    assert_problem(
        await shared_user.http.patch(f"/servers/{disabled_server}", json={"url": url}), 422, "url_not_allowed"
    )
    assert (await shared_user.http.get(f"/servers/{disabled_server}")).json()["url"] == "https://public.example"
    assert private_service.connects == 0


@pytest.mark.parametrize(
    "url",
    ["https://public.example/mcp", "https://8.8.8.8", "https://[2606:4700::1111]:8443/", "https://unknown.example"],
)
async def test_a_public_url_is_accepted_at_registration_and_at_update(shared_user: TestUser, url: str) -> None:
    answer = await shared_user.http.post("/servers", json=make_registration(url, enabled=False))
    assert answer.status_code == 201, answer.text
    moved = await shared_user.http.patch(f"/servers/{answer.json()['id']}", json={"url": f"{url.rstrip('/')}/moved"})
    assert moved.status_code == 200, moved.text


ALLOWED_CAUSES = {"streamable_http": {"url_not_allowed"}, "sse": {"url_not_allowed", "protocol"}}
"""`protocol` if the SDK cannot parse the URL."""


async def test_a_stored_private_url_is_neither_listed_nor_called(
    service: Container, user: TestUser, private_service: PrivateService, mcp: FakeMcpServer
) -> None:
    """The check at registration only helps the user; the one that counts is made at each connection."""

    async def try_urls(lane: int) -> None:
        server_id = await user.add_tools(tool(f"probe_{lane}"), server=f"lane-{lane}")
        call = {"tool_key": (await user.tools())[f"probe_{lane}"]["id"]}
        for number, url_template in enumerate(sample[lane::LANES]):
            transport = "sse" if number % 2 else "streamable_http"
            await set_url(service, user, server_id, private_service.fill_port(url_template), transport)
            called = assert_problem(await user.http.post("/execute", json=call), 502, "SERVER_CONNECTION_ERROR")
            run = await user.reindex(server_id)
            causes = {called["cause"], run["error"]["cause"]}
            assert causes <= ALLOWED_CAUSES[transport], url_template
            assert run["state"] == "failed"
        await set_url(service, user, server_id, mcp.url)
        assert (await user.http.post("/execute", json=call)).status_code == 200, "the same server with an allowed URL"

    sample = FORBIDDEN[:: len(FORBIDDEN) // 24]
    mcp.tools = [tool(f"probe_{lane}") for lane in range(LANES)]
    await asyncio.gather(*(try_urls(lane) for lane in range(LANES)))
    assert private_service.connects == 0


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "017700000001", "0x7f000001", "0177.0.0.1", "127.1", "::1"]
)
def test_these_hosts_do_reach_loopback_without_the_guard(host: str) -> None:
    ipv4, ipv6 = listen_on_both_protocols()
    private_service = PrivateService(ipv4, ipv6)
    with socket.create_connection((host, private_service.port), timeout=5):
        assert private_service.connects == 1
    ipv4.close()
    ipv6.close()


async def test_a_host_that_resolves_to_a_private_address_after_registration_is_not_connected_to(
    user: TestUser, private_service: PrivateService, resolver: FakeResolver
) -> None:
    resolver.addresses["rebinding.example"] = ["8.8.8.8"]
    server_id = await user.add_server(
        transport="streamable_http", url=f"https://rebinding.example:{private_service.port}/mcp", enabled=False
    )
    for addresses in (["127.0.0.1"], ["::1"], ["8.8.8.8", "127.0.0.1"], ["10.0.0.1"]):
        resolver.addresses["rebinding.example"] = addresses
        run = await user.reindex(server_id)
        assert (run["state"], run["error"]["cause"]) == ("failed", "url_not_allowed")
    assert private_service.connects == 0


async def test_the_first_index_run_resolves_the_host_again(
    user: TestUser, private_service: PrivateService, resolver: FakeResolver
) -> None:
    """The address changes between the check and the connection, as with a short TTL."""
    resolver.addresses["changing.example"], resolver.next_addresses["changing.example"] = ["8.8.8.8"], ["127.0.0.1"]
    server_id = await user.add_server(
        transport="streamable_http", url=f"https://changing.example:{private_service.port}/mcp"
    )
    run = await user.reindex(server_id)
    assert (run["state"], run["error"]["cause"]) == ("failed", "url_not_allowed")
    assert private_service.connects == 0


async def test_an_allowed_host_is_reached_by_address_and_by_name(
    user: TestUser, mcp: FakeMcpServer, resolver: FakeResolver
) -> None:
    resolver.addresses["files.internal"] = ["127.0.0.1"]
    mcp.tools = [tool("read_file")]
    await user.connect(mcp, "by address")
    by_name = f"http://files.internal:{mcp.port}/mcp"
    server_id = await user.add_server("by name", transport="streamable_http", url=by_name)
    run = await user.reindex(server_id)
    assert run["state"] == "succeeded", run
    assert {request.headers["host"] for request in mcp.requests} == {
        f"127.0.0.1:{mcp.port}",
        f"files.internal:{mcp.port}",
    }


async def test_only_the_exact_allowed_host_and_port_is_reached(
    user: TestUser, mcp: FakeMcpServer, resolver: FakeResolver, private_service: PrivateService
) -> None:
    resolver.addresses |= {"files.internal": ["127.0.0.1"], "elsewhere.internal": ["127.0.0.1"]}
    for location in (
        f"127.0.0.1:{private_service.port}",
        f"files.internal:{private_service.port}",
        f"elsewhere.internal:{mcp.port}",
        f"localhost:{mcp.port}",
        f"127.0.0.2:{mcp.port}",
        f"127.1:{mcp.port}",
        f"[::1]:{mcp.port}",
        f"[::ffff:127.0.0.1]:{mcp.port}",
    ):
        for scheme in ("http", "https"):
            answer = await user.http.post("/servers", json=make_registration(f"{scheme}://{location}/mcp"))
            assert_problem(answer, 422, "url_not_allowed")
    assert private_service.connects == 0


async def test_a_session_keeps_its_first_address(user: TestUser, mcp: FakeMcpServer, resolver: FakeResolver) -> None:
    resolver.addresses["files.internal"] = ["127.0.0.1"]
    mcp.tools = [tool("read_file")]
    url = f"http://files.internal:{mcp.port}/mcp"
    server_id = await user.add_server(transport="streamable_http", url=url)
    assert (await user.reindex(server_id))["state"] == "succeeded"
    before = resolver.lookups.count("files.internal")
    with listener("::1", mcp.port) as elsewhere:
        resolver.addresses["files.internal"] = ["::1"]
        for _ in range(3):
            assert (await user.execute("read_file")).status_code == 200
        assert elsewhere.connects == 0
    assert resolver.lookups.count("files.internal") == before
    assert len(mcp.calls) == 3


REDIRECTS = [301, 302, 303, 307, 308]


@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirect_is_not_followed(
    user: TestUser, mcp: FakeMcpServer, sse_mcp: FakeMcpServer, private_service: PrivateService, status: int
) -> None:
    mcp.tools = [tool("read_file")]
    server_id = await user.connect(mcp)
    sse_id = await user.add_server("sse", transport="sse", url=sse_mcp.url, enabled=False)
    paths = {request.path for request in mcp.requests}
    for location in (f"http://127.0.0.1:{private_service.port}/mcp", f"{mcp.url}/", "https://public.example/mcp"):
        mcp.fault = Fault(RedirectResponse(location, status))
        called = await user.execute("read_file")
        assert assert_problem(called, 502, "SERVER_CONNECTION_ERROR")["cause"] == "redirect"
        run = await user.reindex(server_id)
        assert (run["state"], run["error"]["cause"]) == ("failed", "redirect")
        sse_mcp.fault = Fault(RedirectResponse(location, status))
        run = await user.reindex(sse_id)
        assert (run["state"], run["error"]["cause"]) == ("failed", "redirect")
    assert private_service.connects == 0
    assert {request.path for request in mcp.requests} == paths
    assert {request.path for request in sse_mcp.requests} == {"/sse"}
    mcp.fault = sse_mcp.fault = None
    assert (await user.execute("read_file")).status_code == 200
    assert (await user.reindex(sse_id))["state"] == "succeeded"


def sse_endpoint_event(url: str) -> Fault:
    """Send the first event of an SSE server, which says where to post messages."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def events() -> AsyncIterator[bytes]:
            yield f"event: endpoint\r\ndata: {url}\r\n\r\n".encode()
            await hang(scope, receive, send)

        await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)

    return Fault(answer, on={"GET"})


async def test_an_sse_server_cannot_direct_requests_to_another_host(
    service: Container, user: TestUser, sse_mcp: FakeMcpServer, private_service: PrivateService
) -> None:
    server_id = await user.add_tools(tool("read_file"))
    for location in (f"http://127.0.0.1:{private_service.port}/messages/", f"//x@127.0.0.1:{private_service.port}"):
        sse_mcp.fault = sse_endpoint_event(location)
        await set_url(service, user, server_id, sse_mcp.url, "sse")
        assert_problem(await user.execute("read_file", timeout_ms=1_500), 502, "SERVER_CONNECTION_ERROR")
    assert private_service.connects == 0
    assert {request.method for request in sse_mcp.requests} == {"GET"}
    sse_mcp.fault, sse_mcp.tools = None, [tool("read_file")]
    await set_url(service, user, server_id, sse_mcp.url, "sse")
    assert (await user.execute("read_file")).status_code == 200
    assert {request.path.partition("?")[0] for request in sse_mcp.requests} == {"/sse", "/messages/"}


async def test_an_untrusted_certificate_is_rejected(user: TestUser, tls_server: WireServer) -> None:
    url = f"https://127.0.0.1:{tls_server.port}/mcp"
    server_id = await user.add_server(transport="streamable_http", url=url, enabled=False)
    run = await user.reindex(server_id)
    assert (run["state"], run["error"]["cause"]) == ("failed", "tls")
    assert tls_server.names, "there must have been a TLS handshake, or the test shows nothing"
    assert tls_server.requests == []


async def test_proxies_from_the_environment_are_ignored(
    user: TestUser, mcp: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mcp.tools = [tool("read_file")]
    with listener() as proxy:
        for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        await user.connect(mcp)
        assert proxy.connects == 0


@pytest.mark.parametrize("stage", ["handshake", "listing"])
@pytest.mark.parametrize("kind", ["plain", "bomb", "unknown encoding"])
async def test_an_answer_that_is_too_large_has_a_clear_cause(
    user: TestUser, mcp: FakeMcpServer, kind: str, stage: str
) -> None:
    answers: dict[str, tuple[ASGIApp, str]] = {
        "plain": (oversized_result(megabytes=3), "too_large"),
        "bomb": (gzip_bomb(megabytes=20), "too_large"),
        "unknown encoding": (
            Response(b"x", headers={"Content-Encoding": "br"}, media_type="application/json"),
            "encoding",
        ),
    }
    mcp.tools = [tool("read_file")]
    server_id = await user.connect(mcp)
    answer, cause = answers[kind]
    mcp.fault = Fault(answer, on=() if stage == "handshake" else {"tools/list"})
    if stage == "handshake":
        await user.http.patch(f"/servers/{server_id}", json={"headers": {"X-Changed": "1"}})
    run = await user.reindex(server_id)
    assert (run["state"], run["error"]["cause"]) == ("failed", cause)
    assert (await user.tools()).keys() == {"read_file"}, "the tools indexed before stay"


async def test_a_result_that_is_too_large_has_an_unknown_outcome(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_file")]
    await user.connect(mcp)
    mcp.fault = Fault(gzip_bomb(megabytes=20), on={"tools/call"})
    problem = assert_problem(await user.execute("read_file"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "unknown"
    mcp.fault = None
    assert (await user.execute("read_file")).status_code == 200


CANARY = "canary-from-client"
CLIENT_HEADERS = {
    "Cookie": f"session={CANARY}",
    "X-Canary": CANARY,
    "X-Forwarded-For": "203.0.113.7",
    "Forwarded": f"for={CANARY}",
    "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Tracestate": f"canary={CANARY}",
    "Baggage": f"canary={CANARY}",
    "User-Agent": CANARY,
    "Accept-Language": CANARY,
    "Referer": f"https://{CANARY}.example",
    "Origin": f"https://{CANARY}.example",
    "Proxy-Authorization": CANARY,
    "Mcp-Session-Id": CANARY,
}
STORED_HEADERS = {"Authorization": "Bearer server-token", "X-Team": "blue"}
CALL_HEADERS = """
    accept accept-encoding authorization connection content-length content-type host user-agent x-team
""".split()
PROTOCOL_HEADERS = {
    "modern": ["mcp-method", "mcp-name", "mcp-protocol-version"],
    "legacy": ["mcp-protocol-version", "mcp-session-id"],
    "sse": [],
}


@pytest.mark.parametrize("kind", ["modern", "legacy", "sse"])
async def test_a_server_gets_our_headers_and_its_stored_headers_and_none_of_the_clients(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, sse_mcp: FakeMcpServer, kind: str
) -> None:
    server = {"modern": mcp, "legacy": legacy_mcp, "sse": sse_mcp}[kind]
    server.tools = [tool("read_file")]
    user.http.headers.update(CLIENT_HEADERS)
    await user.connect(server, headers=STORED_HEADERS)
    assert (await user.execute("read_file", {"path": "/"})).status_code == 200
    [*_, call] = [request for request in server.requests if request.rpc_method == "tools/call"]
    assert sorted(call.headers.keys()) == sorted(CALL_HEADERS + PROTOCOL_HEADERS[kind])
    for request in server.requests:
        sent = request.headers
        # only a request for a stream has one more header, against caches in between
        assert {*sent.keys()} <= {*CALL_HEADERS, *PROTOCOL_HEADERS[kind], "mcp-method", "cache-control"}
        assert (sent.getlist("authorization"), sent["x-team"]) == (["Bearer server-token"], "blue")
        assert sent["user-agent"] == f"toolscout/{__version__}"
        for secret in (CANARY, user.key, user.id, "203.0.113.7", "0af7651916cd43dd8448eb211c80319c"):
            assert secret not in f"{request.path} {sent} {request.body.decode()}"
