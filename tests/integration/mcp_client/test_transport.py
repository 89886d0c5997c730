"""What goes over the wire and what may come back, on real sockets. Nothing that happens there is ever raised."""

import asyncio
import socket
import struct
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpcore2
import httpx2
import pytest

from app.errors import UrlNotAllowed
from app.mcp_client.transport import Exchange, GuardedTransport, current_exchange
from app.mcp_client.url_guard import Guard
from tests.support.mcp_server import listener
from tests.support.wire_server import Certificate, create_certificate, http_response, running_wire_server

LIMIT = 1_000_000
HTML = {"Content_Type": "text/html"}
JSON = {"Content_Type": "application/json; charset=utf-8"}
EVENTS = {"Content_Type": "text/event-stream"}


class Names:
    """A resolver whose answers can be changed at any time."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] = addresses
        self.asked = 0

    async def __call__(self, _host: str, _port: int) -> Sequence[str]:
        self.asked += 1
        return self.addresses


class Wire:
    """A client that goes through the transport, and what the transport notes of its last request."""

    def __init__(self, url: str, guard: Guard, transport: GuardedTransport, client: httpx2.AsyncClient) -> None:
        self.url = url
        self.guard = guard
        self.transport = transport
        self.client = client
        self.exchange = Exchange()

    async def ask(self, method: str = "POST", url: str | None = None) -> httpx2.Response:
        async with self.asked(method, url) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def asked(self, method: str = "POST", url: str | None = None) -> AsyncIterator[httpx2.Response]:
        self.exchange = Exchange()
        token = current_exchange.set(self.exchange)
        try:
            async with self.client.stream(method, url or self.url) as response:
                yield response
        finally:
            current_exchange.reset(token)

    @property
    def cause(self) -> str | None:
        return None if self.exchange.failure is None else self.exchange.failure.cause

    def through(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self.transport._inner._pool._network_backend = backend


@asynccontextmanager
async def wire_to(url: str, names: Names | None = None, listed: bool = True, limit: int = LIMIT) -> AsyncIterator[Wire]:
    place = httpx2.URL(url)
    guard = Guard([f"{place.host}:{place.port}"] if listed else [], names or Names())
    transport = GuardedTransport(guard, guard.target(url), limit)
    async with httpx2.AsyncClient(transport=transport, timeout=5, trust_env=False) as client:
        yield Wire(url, guard, transport, client)
    guard.close()


def gzipped(body: bytes, wbits: int = 31) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (None, b"hello " * 1000),
        ("identity", b"hello " * 1000),
        ("gzip", gzipped(b"hello " * 1000)),
        ("GZIP", gzipped(b"hello " * 1000)),
        ("deflate", gzipped(b"hello " * 1000, wbits=15)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_answer_comes_through_as_it_was_meant(encoding: str | None, packed: bytes) -> None:
    headers = {"Content_Encoding": encoding} if encoding else {}
    async with (
        running_wire_server(http_response(packed, X_Other="kept", **headers)) as server,
        wire_to(f"http://127.0.0.1:{server.port}/mcp") as wire,
    ):
        response = await wire.ask()
    assert (response.status_code, response.content) == (200, b"hello " * 1000)
    assert (wire.cause, wire.exchange.sent, wire.exchange.status) == (None, True, 200)
    assert response.headers["x-other"] == "kept"
    assert "content-encoding" not in response.headers


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
async def test_an_answer_up_to_the_limit_is_taken_and_a_byte_more_is_too_large(packed: bool) -> None:
    for size, cause in ((LIMIT, None), (LIMIT + 1, "too_large")):
        body = gzipped(b"x" * size) if packed else b"x" * size
        answer = http_response(body, **({"Content_Encoding": "gzip"} if packed else {}))
        async with running_wire_server(answer) as server, wire_to(f"http://127.0.0.1:{server.port}/") as wire:
            if cause is None:
                assert len((await wire.ask()).content) == LIMIT
            else:
                with pytest.raises(httpx2.StreamError):
                    await wire.ask()
        assert wire.cause == cause


async def test_a_bomb_stays_small() -> None:
    bomb = gzipped(bytes(50_000_000))
    async with (
        running_wire_server(http_response(bomb, Content_Encoding="gzip")) as server,
        wire_to(f"http://127.0.0.1:{server.port}/") as wire,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(httpx2.StreamError):
                await wire.ask()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert wire.cause == "too_large"
    assert peak < 5 * LIMIT


@pytest.mark.parametrize("rest", [b"x", gzipped(b"more"), b"x" * 3_000_000], ids=["a byte", "gzip again", "megabytes"])
async def test_nothing_is_kept_of_what_follows_a_compressed_answer(rest: bytes) -> None:
    answer = http_response(gzipped(b"hello") + rest, Content_Encoding="gzip")
    async with running_wire_server(answer) as server, wire_to(f"http://127.0.0.1:{server.port}/") as wire:
        with pytest.raises(httpx2.StreamError):
            await wire.ask()
    assert wire.cause == "encoding"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x-gzip", "compress", "gzip;q=1", "nonsense"])
async def test_an_encoding_that_was_not_asked_for_is_not_read(encoding: str) -> None:
    answer = http_response(gzipped(b"hello"), Content_Encoding=encoding)
    async with running_wire_server(answer) as server, wire_to(f"http://127.0.0.1:{server.port}/") as wire:
        response = await wire.ask()
    assert (response.status_code, response.content, wire.cause) == (503, b"", "encoding")


@pytest.mark.parametrize("body", [b"hello", gzipped(b"x" * 1000)[:20] + b"?" * 20], ids=["plain", "broken"])
async def test_what_cannot_be_decompressed_says_so(body: bytes) -> None:
    answer = http_response(body, Content_Encoding="gzip")
    async with running_wire_server(answer) as server, wire_to(f"http://127.0.0.1:{server.port}/") as wire:
        with pytest.raises(httpx2.StreamError):
            await wire.ask()
    assert wire.cause == "encoding"


async def test_a_stream_of_events_may_be_longer_than_an_answer() -> None:
    body = b"data: x\n\n" * 200_000
    async with (
        running_wire_server(http_response(body, **EVENTS)) as server,
        wire_to(f"http://127.0.0.1:{server.port}/") as wire,
    ):
        assert (await wire.ask("GET")).content == body
        assert wire.cause is None
        with pytest.raises(httpx2.StreamError):
            await wire.ask("POST")
        assert wire.cause == "too_large"
        server.answer = http_response(body, **HTML)
        with pytest.raises(httpx2.StreamError):
            await wire.ask("GET")
        assert wire.cause == "too_large"


async def test_others_get_their_turn_while_a_small_stream_inflates_to_a_huge_one() -> None:
    packed = gzipped(b"data: x\n\n" * 5_000_000)
    assert len(packed) < 200_000
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    pieces = 0
    async with (
        running_wire_server(http_response(packed, Content_Encoding="gzip", **EVENTS)) as server,
        wire_to(f"http://127.0.0.1:{server.port}/") as wire,
        wire.asked("GET") as response,
    ):
        other = asyncio.create_task(take_turns())
        async for _ in response.aiter_raw():
            pieces += 1
        other.cancel()
    assert pieces > 500
    assert turns >= pieces


async def test_the_head_of_an_answer_has_an_end() -> None:
    answer = b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 3_000_000
    async with running_wire_server(answer) as server, wire_to(f"http://127.0.0.1:{server.port}/") as wire:
        assert (await wire.ask()).status_code == 503
    assert wire.cause == "closed"


@pytest.mark.parametrize(
    ("method", "status"), [*(("POST", status) for status in (301, 302, 303, 307, 308)), ("GET", 302), ("GET", 307)]
)
async def test_a_redirect_is_not_followed_wherever_it_leads(status: int, method: str) -> None:
    async with running_wire_server() as server, wire_to(f"http://127.0.0.1:{server.port}/mcp") as wire:
        with listener() as elsewhere:
            places = [f"http://127.0.0.1:{elsewhere.port}/", f"//127.0.0.1:{elsewhere.port}/", wire.url + "/", "other"]
            for asked, place in enumerate(places, start=1):
                server.answer = http_response(b"", f"{status} Elsewhere", Location=place)
                wire.client.follow_redirects = True
                response = await wire.ask(method)
                assert (response.status_code, response.history, wire.cause) == (503, [], "redirect")
                assert (len(server.requests), elsewhere.connects) == (asked, 0)
        server.answer = http_response(b"here")
        assert (await wire.ask(method)).content == b"here"


async def test_a_request_to_another_origin_than_the_sessions_own_is_not_sent() -> None:
    async with (
        running_wire_server(http_response(b"")) as server,
        wire_to(f"http://127.0.0.1:{server.port}/mcp") as wire,
    ):
        with listener() as elsewhere:
            for url in (
                f"http://127.0.0.1:{elsewhere.port}/mcp",
                f"https://127.0.0.1:{server.port}/mcp",
                f"http://localhost:{server.port}/mcp",
                f"http://user@127.0.0.1:{server.port}/mcp",
                "https://example.com/mcp",
            ):
                assert (await wire.ask(url=url)).status_code == 503
                assert (wire.cause, wire.exchange.sent) == ("url_not_allowed", False)
            assert (server.connects, elsewhere.connects) == (0, 0)
        await wire.ask(url=f"http://127.0.0.1:{server.port}/messages?session=1")
        assert (wire.cause, server.connects) == (None, 1)


async def test_nobody_there_is_known_to_have_received_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with wire_to(f"http://127.0.0.1:{port}/") as wire:
        assert (await wire.ask()).status_code == 503
        assert (wire.cause, wire.exchange.sent) == ("refused", False)


async def test_a_server_that_hangs_up_after_reading_may_have_received_it() -> None:
    async with running_wire_server(b"") as server, wire_to(f"http://127.0.0.1:{server.port}/") as wire:
        assert (await wire.ask()).status_code == 503
        assert (wire.cause, wire.exchange.sent) == ("closed", True)


async def test_a_server_that_says_nothing_may_have_received_it_too() -> None:
    with listener() as silent:
        async with wire_to(f"http://127.0.0.1:{silent.port}/") as wire:
            wire.client.timeout = httpx2.Timeout(5, read=0.05)
            assert (await wire.ask()).status_code == 503
        assert (wire.cause, wire.exchange.sent, silent.connects) == ("timeout", True, 1)


async def test_an_answer_that_breaks_off_is_no_answer() -> None:
    answer = http_response(b"half", Content_Length="8")
    async with running_wire_server(answer) as server, wire_to(f"http://127.0.0.1:{server.port}/") as wire:
        with pytest.raises(httpx2.StreamError):
            await wire.ask()
        assert wire.cause == "closed"
        server.answer = http_response(b"complete", Content_Length="8")
        assert (await wire.ask()).content == b"complete"


@pytest.mark.parametrize(
    ("status", "headers", "session", "cause"),
    [
        (200, HTML, False, None),
        (401, HTML, False, "unauthorized"),
        (403, JSON, False, "unauthorized"),
        (404, HTML, False, "status_404"),
        (404, JSON, False, None),
        (404, JSON, True, "session_gone"),
        (429, HTML, False, "status_429"),
        (400, JSON, False, None),
        (500, HTML, False, "status_500"),
        (500, {}, False, "status_500"),
    ],
)
async def test_a_refusal_is_noted_and_passed_on(
    status: int, headers: dict[str, str], session: bool, cause: str | None
) -> None:
    """What is JSON may be an error in the protocol's own words: that is for the SDK to read."""
    async with (
        running_wire_server(http_response(b"why", f"{status} Because", **headers)) as server,
        wire_to(f"http://127.0.0.1:{server.port}/") as wire,
    ):
        wire.client.headers.update({"Mcp-Session-Id": "1"} if session else {})
        response = await wire.ask()
    assert (response.status_code, response.content) == (status, b"why")
    assert (wire.exchange.status, wire.cause) == (status, cause)


async def test_a_name_is_looked_up_once_for_a_session() -> None:
    names = Names("127.0.0.1")
    async with running_wire_server(http_response(b"")) as server:
        with listener("::1", server.port) as elsewhere:
            async with wire_to(f"http://files.test:{server.port}/", names) as wire:
                await wire.ask()
                names.addresses = ["::1"]
                await wire.ask()
                await wire.ask()
                assert (wire.cause, names.asked, server.connects, elsewhere.connects) == (None, 1, 3, 0)
    assert all(f"host: files.test:{server.port}\r\n".encode() in head.lower() for head in server.requests)


async def test_a_dead_address_of_a_name_costs_nothing_where_another_lives() -> None:
    names = Names("::1", "127.0.0.1")
    async with running_wire_server(http_response(b"")) as server:
        async with wire_to(f"http://files.test:{server.port}/", names) as wire:
            await wire.ask()
            await wire.ask()
        assert (wire.cause, names.asked, server.connects) == (None, 1, 2)


async def test_a_name_without_addresses_is_a_failure_to_resolve_it() -> None:
    async with wire_to("http://files.test:8080/", Names()) as wire:
        assert (await wire.ask()).status_code == 503
        assert (wire.cause, wire.exchange.sent) == ("dns", False)


async def test_a_name_that_has_become_one_of_ours_is_not_connected_to() -> None:
    """It is looked up for each session: what was seen when it was registered does not count."""
    names = Names("8.8.8.8")
    with listener() as inside:
        url = f"https://rebinding.example:{inside.port}/"
        async with wire_to(url, names, listed=False) as wire:
            await wire.guard.check(url)
            for addresses in (["127.0.0.1"], ["8.8.8.8", "127.0.0.1"]):
                names.addresses = addresses
                assert (await wire.ask()).status_code == 503
                assert wire.cause == "url_not_allowed"
        assert inside.connects == 0


class Detour(httpcore2.AnyIOBackend):
    """A network that brings us to loopback, whatever address was asked for."""

    async def connect_tcp(self, host: str, port: int, *options: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
        self.wanted = host
        return await super().connect_tcp("127.0.0.1", port, *options, **more)


async def test_the_address_that_we_are_really_connected_to_is_looked_at() -> None:
    with listener() as inside:
        async with wire_to(f"https://example.com:{inside.port}/", Names("8.8.8.8"), listed=False) as wire:
            wire.through(detour := Detour())
            assert (await wire.ask()).status_code == 503
        assert detour.wanted == "8.8.8.8"
        assert (wire.cause, wire.exchange.sent) == ("url_not_allowed", False)
        assert inside.connects == 1, "the detour must lead there, or the test shows nothing"
        [_, accepted] = inside._sockets
        accepted.settimeout(5)
        assert accepted.recv(1) == b"", "not even a handshake was begun"


async def test_the_same_detour_is_none_where_the_operator_lists_the_place() -> None:
    async with (
        running_wire_server(http_response(b"hello")) as server,
        wire_to(f"http://files.test:{server.port}/", Names("8.8.8.8")) as wire,
    ):
        wire.through(Detour())
        assert (await wire.ask()).content == b"hello"


class Tardy(httpcore2.AnyIOBackend):
    """Looks at a new connection only after the server has cut it."""

    async def connect_tcp(self, *place: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(*place, **options)
        async with asyncio.timeout(5):
            while stream.get_extra_info("server_addr") is not None:  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.005)
        return stream


async def test_a_server_that_hangs_up_at_once_is_no_error_of_ours() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, wire_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as wire:
        wire.through(Tardy())
        assert (await wire.ask()).status_code == 503
    assert (wire.cause, wire.exchange.sent) == ("refused", False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("certificates")
    return {host: create_certificate(host, folder) for host in ("files.test", "other.test", "127.0.0.1")}


@asynccontextmanager
async def tls_wire(certificate: Certificate, host: str, *, trusted: bool) -> AsyncIterator[tuple[Wire, Any]]:
    async with (
        running_wire_server(http_response(b"hello"), certificate.server_context()) as server,
        wire_to(f"https://{host}:{server.port}/", Names("127.0.0.1")) as wire,
    ):
        if trusted:
            wire.guard.tls.load_verify_locations(cadata=certificate.pem)
        yield wire, server


@pytest.mark.parametrize("host", ["files.test", "127.0.0.1"])
async def test_a_trusted_certificate_for_the_name_is_taken(certificates: dict[str, Certificate], host: str) -> None:
    async with tls_wire(certificates[host], host, trusted=True) as (wire, server):
        assert (await wire.ask()).content == b"hello"
    assert wire.cause is None
    assert server.names == ["files.test" if host == "files.test" else None]
    assert b"GET" not in server.requests[0]


@pytest.mark.parametrize(
    ("certified", "host", "trusted"),
    [
        ("files.test", "files.test", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("other.test", "files.test", True),
        ("127.0.0.1", "files.test", True),
        ("files.test", "127.0.0.1", True),
    ],
)
async def test_any_other_certificate_ends_the_connection_before_anything_is_said(
    certificates: dict[str, Certificate], certified: str, host: str, trusted: bool
) -> None:
    async with tls_wire(certificates[certified], host, trusted=trusted) as (wire, server):
        assert (await wire.ask()).status_code == 503
    assert (wire.cause, wire.exchange.sent) == ("tls", False)
    assert server.requests == []


async def test_plain_http_where_tls_was_asked_for_is_no_trusted_connection() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response(b"hello"))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, wire_to(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as wire:
        assert (await wire.ask()).status_code == 503
    assert (wire.cause, wire.exchange.sent) == ("tls", False)


def test_a_transport_is_for_one_allowed_place() -> None:
    guard = Guard([], Names("8.8.8.8"))
    with pytest.raises(UrlNotAllowed):
        GuardedTransport(guard, guard.target("https://127.0.0.1/"), LIMIT)
    guard.close()
