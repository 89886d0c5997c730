"""Never your network: through every door and at every stage, with listeners on loopback that count who connects."""

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
from tests.conftest import TestUser, allowing, make_database, make_settings, new_user, tool
from tests.support.checks import Json, assert_problem
from tests.support.mcp_server import FakeMcpServer, Fault, Listener, gzip_bomb, hang, listener, oversized
from tests.support.urls import SPELLINGS
from tests.support.wire_server import WireServer, create_certificate, http_response, running_wire_server

ENOUGH_BYTES = 1_000_000
LANES = 8
"""A user's runs that go on at once."""

INSIDE_NAMES: dict[str, Sequence[str]] = {
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
    "mixed-the-other-way.example": ["127.0.0.1", "2606:4700::1111"],
    "localhost.localdomain": ["127.0.0.1"],
}


class Names:
    """A resolver whose answers can be changed at any time."""

    def __init__(self) -> None:
        self.known: dict[str, Sequence[str]] = {**INSIDE_NAMES, "public.example": ["8.8.8.8"]}
        self.later: dict[str, Sequence[str]] = {}
        """What is true after the next look-up."""
        self.asked: list[str] = []

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.known:
            raise OSError(f"{host} is not known here")
        now = self.known[host]
        self.known[host] = self.later.pop(host, now)
        return now


class Inside:
    """A service in our own network, on both of its addresses, that no one may reach."""

    def __init__(self, four: Listener, six: Listener) -> None:
        self.port = four.port
        self._listeners = four, six

    @property
    def connects(self) -> int:
        return sum(each.connects for each in self._listeners)

    def spelled(self, spelling: str) -> str:
        return spelling.replace("{port}", str(self.port))


def free_on_both() -> tuple[Listener, Listener]:
    while True:
        four = Listener("127.0.0.1", 0)
        with suppress(OSError):
            return four, Listener("::1", four.port)
        four.close()


@pytest.fixture(scope="module")
def inside() -> Iterator[Inside]:
    four, six = free_on_both()
    yield Inside(four, six)
    four.close()
    six.close()


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


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
    names: Names,
    tls_server: WireServer,
) -> AsyncIterator[Container]:
    """Knows names, and is allowed to connect to the fakes: by address, and to the modern one also by a name."""
    listed = [allowing(*mcp_servers.values()), f"files.internal:{mcp_servers['modern'].port}"]
    listed += [f"127.0.0.1:{tls_server.port}"]
    settings = make_settings(
        tmp_path_factory.mktemp("outbound"),
        outbound_allow=", ".join(listed),
        upstream_max_bytes=ENOUGH_BYTES,
    )
    async with open_container(settings, make_database(postgres), names) as opened:
        yield opened


@pytest.fixture
async def user(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as made:
        yield made


@pytest.fixture(scope="module")
async def somebody(service: Container) -> AsyncIterator[TestUser]:
    """One for all who only ask and are refused."""
    async with new_user(service) as made:
        yield made


@pytest.fixture(scope="module")
async def some_server(somebody: TestUser) -> str:
    """Switched off, so that nobody asks it for tools."""
    return await somebody.add_server(transport="streamable_http", url="https://public.example", enabled=False)


def registration(url: str, **fields: Any) -> Json:
    return {"name": f"server-{uuid.uuid4().hex[:8]}", "transport": "streamable_http", "url": url, **fields}


async def move(
    service: Container, user: TestUser, server_id: str, url: str, transport: str = "streamable_http"
) -> None:
    """As if it had been allowed once."""
    statement = """
        UPDATE mcp_servers SET url = %(url)s, transport = %(transport)s, config_version = config_version + 1
        WHERE id = %(id)s
    """
    async with service.database.transaction(user.id) as session:
        await session.rows(statement, {"url": url, "transport": transport, "id": server_id})


FORBIDDEN = SPELLINGS + [f"https://{name}:{{port}}/mcp" for name in INSIDE_NAMES]


@pytest.mark.parametrize("spelling", FORBIDDEN)
async def test_a_server_inside_can_be_neither_registered_nor_moved_to(
    somebody: TestUser, some_server: str, inside: Inside, spelling: str
) -> None:
    url = inside.spelled(spelling)
    assert_problem(await somebody.http.post("/servers", json=registration(url)), 422, "url_not_allowed")
    assert_problem(await somebody.http.patch(f"/servers/{some_server}", json={"url": url}), 422, "url_not_allowed")
    assert (await somebody.http.get(f"/servers/{some_server}")).json()["url"] == "https://public.example"
    assert inside.connects == 0


@pytest.mark.parametrize(
    "url",
    ["https://public.example/mcp", "https://8.8.8.8", "https://[2606:4700::1111]:8443/", "https://unknown.example"],
)
async def test_a_public_server_can_be_registered_and_moved_to(somebody: TestUser, url: str) -> None:
    answer = await somebody.http.post("/servers", json=registration(url, enabled=False))
    assert answer.status_code == 201, answer.text
    moved = await somebody.http.patch(f"/servers/{answer.json()['id']}", json={"url": f"{url.rstrip('/')}/moved"})
    assert moved.status_code == 200, moved.text


REFUSALS = {"streamable_http": {"url_not_allowed"}, "sse": {"url_not_allowed", "protocol"}}
"""The latter where the SDK cannot even read the URL."""


async def test_a_row_that_leads_inside_is_neither_listed_nor_called(
    service: Container, user: TestUser, inside: Inside, mcp: FakeMcpServer
) -> None:
    """The check before a URL is stored is a courtesy: the one that counts is made each time that we connect."""

    async def one_after_another(lane: int) -> None:
        server_id = await user.add_tools(tool(f"probe_{lane}"), server=f"lane-{lane}")
        call = {"tool_key": (await user.tools())[f"probe_{lane}"]["id"]}
        for number, spelling in enumerate(some[lane::LANES]):
            transport = "sse" if number % 2 else "streamable_http"
            await move(service, user, server_id, inside.spelled(spelling), transport)
            called = assert_problem(await user.http.post("/execute", json=call), 502, "SERVER_CONNECTION_ERROR")
            run = await user.reindex(server_id)
            causes = {called["cause"], run["error"]["cause"]}
            assert causes <= REFUSALS[transport], spelling
            assert run["state"] == "failed"
        await move(service, user, server_id, mcp.url)
        assert (await user.http.post("/execute", json=call)).status_code == 200, (
            "the twin: the same row, a listed place"
        )

    some = FORBIDDEN[:: len(FORBIDDEN) // 24]
    mcp.tools = [tool(f"probe_{lane}") for lane in range(LANES)]
    await asyncio.gather(*(one_after_another(lane) for lane in range(LANES)))
    assert inside.connects == 0


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "017700000001", "0x7f000001", "0177.0.0.1", "127.1", "::1"]
)
def test_these_spellings_do_lead_inside_where_nobody_looks(host: str) -> None:
    four, six = free_on_both()
    inside = Inside(four, six)
    with socket.create_connection((host, inside.port), timeout=5):
        assert inside.connects == 1
    four.close()
    six.close()


async def test_a_name_that_changes_its_address_after_registration_is_not_followed_inside(
    user: TestUser, inside: Inside, names: Names
) -> None:
    names.known["rebinding.example"] = ["8.8.8.8"]
    server_id = await user.add_server(
        transport="streamable_http", url=f"https://rebinding.example:{inside.port}/mcp", enabled=False
    )
    for addresses in (["127.0.0.1"], ["::1"], ["8.8.8.8", "127.0.0.1"], ["10.0.0.1"]):
        names.known["rebinding.example"] = addresses
        run = await user.reindex(server_id)
        assert (run["state"], run["error"]["cause"]) == ("failed", "url_not_allowed")
    assert inside.connects == 0


async def test_a_run_that_starts_with_the_registration_looks_the_name_up_again(
    user: TestUser, inside: Inside, names: Names
) -> None:
    """The answer changes between the check and the connection, as short-lived records do."""
    names.known["fickle.example"], names.later["fickle.example"] = ["8.8.8.8"], ["127.0.0.1"]
    server_id = await user.add_server(transport="streamable_http", url=f"https://fickle.example:{inside.port}/mcp")
    run = await user.reindex(server_id)
    assert (run["state"], run["error"]["cause"]) == ("failed", "url_not_allowed")
    assert inside.connects == 0


async def test_a_listed_place_is_reached_by_its_address_and_by_its_name(
    user: TestUser, mcp: FakeMcpServer, names: Names
) -> None:
    names.known["files.internal"] = ["127.0.0.1"]
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


async def test_nothing_but_exactly_the_listed_place_is_reached(
    user: TestUser, mcp: FakeMcpServer, names: Names, inside: Inside
) -> None:
    names.known |= {"files.internal": ["127.0.0.1"], "elsewhere.internal": ["127.0.0.1"]}
    for place in (
        f"127.0.0.1:{inside.port}",
        f"files.internal:{inside.port}",
        f"elsewhere.internal:{mcp.port}",
        f"localhost:{mcp.port}",
        f"127.0.0.2:{mcp.port}",
        f"127.1:{mcp.port}",
        f"[::1]:{mcp.port}",
        f"[::ffff:127.0.0.1]:{mcp.port}",
    ):
        for scheme in ("http", "https"):
            answer = await user.http.post("/servers", json=registration(f"{scheme}://{place}/mcp"))
            assert_problem(answer, 422, "url_not_allowed")
    assert inside.connects == 0


async def test_a_session_stays_at_the_address_that_it_began_with(
    user: TestUser, mcp: FakeMcpServer, names: Names
) -> None:
    names.known["files.internal"] = ["127.0.0.1"]
    mcp.tools = [tool("read_file")]
    url = f"http://files.internal:{mcp.port}/mcp"
    server_id = await user.add_server(transport="streamable_http", url=url)
    assert (await user.reindex(server_id))["state"] == "succeeded"
    before = names.asked.count("files.internal")
    with listener("::1", mcp.port) as elsewhere:
        names.known["files.internal"] = ["::1"]
        for _ in range(3):
            assert (await user.execute("read_file")).status_code == 200
        assert elsewhere.connects == 0
    assert names.asked.count("files.internal") == before
    assert len(mcp.calls) == 3


REDIRECTS = [301, 302, 303, 307, 308]


@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirect_is_not_followed(
    user: TestUser, mcp: FakeMcpServer, sse_mcp: FakeMcpServer, inside: Inside, status: int
) -> None:
    mcp.tools = [tool("read_file")]
    server_id = await user.connect(mcp)
    sse_id = await user.add_server("sse", transport="sse", url=sse_mcp.url, enabled=False)
    paths = {request.path for request in mcp.requests}
    for place in (f"http://127.0.0.1:{inside.port}/mcp", f"{mcp.url}/", "https://public.example/mcp"):
        mcp.fault = Fault(RedirectResponse(place, status))
        called = await user.execute("read_file")
        assert assert_problem(called, 502, "SERVER_CONNECTION_ERROR")["cause"] == "redirect"
        run = await user.reindex(server_id)
        assert (run["state"], run["error"]["cause"]) == ("failed", "redirect")
        sse_mcp.fault = Fault(RedirectResponse(place, status))
        run = await user.reindex(sse_id)
        assert (run["state"], run["error"]["cause"]) == ("failed", "redirect")
    assert inside.connects == 0
    assert {request.path for request in mcp.requests} == paths
    assert {request.path for request in sse_mcp.requests} == {"/sse"}
    mcp.fault = sse_mcp.fault = None
    assert (await user.execute("read_file")).status_code == 200
    assert (await user.reindex(sse_id))["state"] == "succeeded"


def naming_endpoint(url: str) -> Fault:
    """What an SSE server says first: where its messages are to be sent."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def events() -> AsyncIterator[bytes]:
            yield f"event: endpoint\r\ndata: {url}\r\n\r\n".encode()
            await hang(scope, receive, send)

        await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)

    return Fault(answer, on={"GET"})


async def test_an_sse_server_cannot_send_us_elsewhere(
    service: Container, user: TestUser, sse_mcp: FakeMcpServer, inside: Inside
) -> None:
    server_id = await user.add_tools(tool("read_file"))
    for place in (f"http://127.0.0.1:{inside.port}/messages/", f"//x@127.0.0.1:{inside.port}"):
        sse_mcp.fault = naming_endpoint(place)
        await move(service, user, server_id, sse_mcp.url, "sse")
        assert_problem(await user.execute("read_file", timeout_ms=1_500), 502, "SERVER_CONNECTION_ERROR")
    assert inside.connects == 0
    assert {request.method for request in sse_mcp.requests} == {"GET"}
    sse_mcp.fault, sse_mcp.tools = None, [tool("read_file")]
    await move(service, user, server_id, sse_mcp.url, "sse")
    assert (await user.execute("read_file")).status_code == 200
    assert {request.path.partition("?")[0] for request in sse_mcp.requests} == {"/sse", "/messages/"}


async def test_a_certificate_that_nobody_vouches_for_is_not_taken(user: TestUser, tls_server: WireServer) -> None:
    url = f"https://127.0.0.1:{tls_server.port}/mcp"
    server_id = await user.add_server(transport="streamable_http", url=url, enabled=False)
    run = await user.reindex(server_id)
    assert (run["state"], run["error"]["cause"]) == ("failed", "tls")
    assert tls_server.names, "there must have been a handshake, or the test shows nothing"
    assert tls_server.requests == []


async def test_no_proxy_of_the_environment_is_used(
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
async def test_an_answer_that_is_too_much_is_a_clear_cause(
    user: TestUser, mcp: FakeMcpServer, kind: str, stage: str
) -> None:
    answers: dict[str, tuple[ASGIApp, str]] = {
        "plain": (oversized(megabytes=3), "too_large"),
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
        await user.http.patch(f"/servers/{server_id}", json={"headers": {"X-Anew": "1"}})
    run = await user.reindex(server_id)
    assert (run["state"], run["error"]["cause"]) == ("failed", cause)
    assert (await user.tools()).keys() == {"read_file"}, "what was indexed before stays"


async def test_a_result_that_is_too_much_has_an_unknown_outcome(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_file")]
    await user.connect(mcp)
    mcp.fault = Fault(gzip_bomb(megabytes=20), on={"tools/call"})
    problem = assert_problem(await user.execute("read_file"), 502, "TOOL_EXECUTION_ERROR")
    assert problem["outcome"] == "unknown"
    mcp.fault = None
    assert (await user.execute("read_file")).status_code == 200


CANARY = "canary-of-the-client"
OF_THE_CLIENT = {
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
STORED = {"Authorization": "Bearer of-the-server", "X-Team": "blue"}
OF_A_CALL = """
    accept accept-encoding authorization connection content-length content-type host user-agent x-team
""".split()
OF_THE_PROTOCOL = {
    "modern": ["mcp-method", "mcp-name", "mcp-protocol-version"],
    "legacy": ["mcp-protocol-version", "mcp-session-id"],
    "sse": [],
}


@pytest.mark.parametrize("kind", ["modern", "legacy", "sse"])
async def test_a_server_is_sent_our_headers_and_its_own_and_nothing_of_the_clients(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, sse_mcp: FakeMcpServer, kind: str
) -> None:
    server = {"modern": mcp, "legacy": legacy_mcp, "sse": sse_mcp}[kind]
    server.tools = [tool("read_file")]
    user.http.headers.update(OF_THE_CLIENT)
    await user.connect(server, headers=STORED)
    assert (await user.execute("read_file", {"path": "/"})).status_code == 200
    [*_, call] = [request for request in server.requests if request.rpc_method == "tools/call"]
    assert sorted(call.headers.keys()) == sorted(OF_A_CALL + OF_THE_PROTOCOL[kind])
    for request in server.requests:
        sent = request.headers
        # asking for a stream is the one thing that needs another header, against caches in between
        assert {*sent.keys()} <= {*OF_A_CALL, *OF_THE_PROTOCOL[kind], "mcp-method", "cache-control"}
        assert (sent.getlist("authorization"), sent["x-team"]) == (["Bearer of-the-server"], "blue")
        assert sent["user-agent"] == f"toolscout/{__version__}"
        for foreign in (CANARY, user.key, user.id, "203.0.113.7", "0af7651916cd43dd8448eb211c80319c"):
            assert foreign not in f"{request.path} {sent} {request.body.decode()}"
