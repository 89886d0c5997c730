"""Tests of the guarded HTTP transport on real sockets. It notes failures on the exchange and raises nothing."""

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


class FakeResolver:
    """A resolver whose addresses can be changed at any time."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] = addresses
        self.lookups = 0

    async def __call__(self, _host: str, _port: int) -> Sequence[str]:
        self.lookups += 1
        return self.addresses


class TransportClient:
    """A client that uses the transport, and the exchange of its last request."""

    def __init__(self, url: str, guard: Guard, transport: GuardedTransport, client: httpx2.AsyncClient) -> None:
        self.url = url
        self.guard = guard
        self.transport = transport
        self.http = client
        self.exchange = Exchange()

    async def send(self, method: str = "POST", url: str | None = None) -> httpx2.Response:
        async with self.stream(method, url) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def stream(self, method: str = "POST", url: str | None = None) -> AsyncIterator[httpx2.Response]:
        self.exchange = Exchange()
        token = current_exchange.set(self.exchange)
        try:
            async with self.http.stream(method, url or self.url) as response:
                yield response
        finally:
            current_exchange.reset(token)

    @property
    def cause(self) -> str | None:
        return None if self.exchange.failure is None else self.exchange.failure.cause

    def use_backend(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self.transport._inner._pool._network_backend = backend


@asynccontextmanager
async def open_client(
    url: str, resolver: FakeResolver | None = None, listed: bool = True, max_bytes: int = LIMIT
) -> AsyncIterator[TransportClient]:
    parsed = httpx2.URL(url)
    guard = Guard([f"{parsed.host}:{parsed.port}"] if listed else [], resolver or FakeResolver())
    transport = GuardedTransport(guard, guard.parse_url(url), "ann", max_bytes)
    async with httpx2.AsyncClient(transport=transport, timeout=5, trust_env=False) as client:
        yield TransportClient(url, guard, transport, client)
    guard.close()


def compress(body: bytes, wbits: int = 31) -> bytes:
    compressor = zlib.compressobj(wbits=wbits)
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize(
    ("encoding", "compressed"),
    [
        (None, b"hello " * 1000),
        ("identity", b"hello " * 1000),
        ("gzip", compress(b"hello " * 1000)),
        ("GZIP", compress(b"hello " * 1000)),
        ("deflate", compress(b"hello " * 1000, wbits=15)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_response_is_decoded_and_its_headers_are_kept(encoding: str | None, compressed: bytes) -> None:
    headers = {"Content_Encoding": encoding} if encoding else {}
    async with (
        running_wire_server(http_response(compressed, X_Other="kept", **headers)) as server,
        open_client(f"http://127.0.0.1:{server.port}/mcp") as client,
    ):
        response = await client.send()
    assert (response.status_code, response.content) == (200, b"hello " * 1000)
    assert (client.cause, client.exchange.sent, client.exchange.status) == (None, True, 200)
    assert response.headers["x-other"] == "kept"
    assert "content-encoding" not in response.headers


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
async def test_a_response_at_the_size_limit_is_accepted_and_one_byte_more_is_not(compressed: bool) -> None:
    for size, cause in ((LIMIT, None), (LIMIT + 1, "too_large")):
        body = compress(b"x" * size) if compressed else b"x" * size
        answer = http_response(body, **({"Content_Encoding": "gzip"} if compressed else {}))
        async with running_wire_server(answer) as server, open_client(f"http://127.0.0.1:{server.port}/") as client:
            if cause is None:
                assert len((await client.send()).content) == LIMIT
            else:
                with pytest.raises(httpx2.StreamError):
                    await client.send()
        assert client.cause == cause


async def test_a_zip_bomb_does_not_fill_the_memory() -> None:
    bomb = compress(bytes(50_000_000))
    async with (
        running_wire_server(http_response(bomb, Content_Encoding="gzip")) as server,
        open_client(f"http://127.0.0.1:{server.port}/") as client,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(httpx2.StreamError):
                await client.send()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert client.cause == "too_large"
    assert peak < 5 * LIMIT


@pytest.mark.parametrize("rest", [b"x", compress(b"more"), b"x" * 3_000_000], ids=["a byte", "gzip again", "megabytes"])
async def test_data_after_a_compressed_response_is_rejected(rest: bytes) -> None:
    answer = http_response(compress(b"hello") + rest, Content_Encoding="gzip")
    async with running_wire_server(answer) as server, open_client(f"http://127.0.0.1:{server.port}/") as client:
        with pytest.raises(httpx2.StreamError):
            await client.send()
    assert client.cause == "encoding"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x-gzip", "compress", "gzip;q=1", "nonsense"])
async def test_an_encoding_that_was_not_requested_is_rejected(encoding: str) -> None:
    answer = http_response(compress(b"hello"), Content_Encoding=encoding)
    async with running_wire_server(answer) as server, open_client(f"http://127.0.0.1:{server.port}/") as client:
        response = await client.send()
    assert (response.status_code, response.content, client.cause) == (503, b"", "encoding")


@pytest.mark.parametrize("body", [b"hello", compress(b"x" * 1000)[:20] + b"?" * 20], ids=["plain", "broken"])
async def test_a_response_that_cannot_be_decompressed_is_rejected(body: bytes) -> None:
    answer = http_response(body, Content_Encoding="gzip")
    async with running_wire_server(answer) as server, open_client(f"http://127.0.0.1:{server.port}/") as client:
        with pytest.raises(httpx2.StreamError):
            await client.send()
    assert client.cause == "encoding"


async def test_an_event_stream_may_exceed_the_size_limit() -> None:
    body = b"data: x\n\n" * 200_000
    async with (
        running_wire_server(http_response(body, **EVENTS)) as server,
        open_client(f"http://127.0.0.1:{server.port}/") as client,
    ):
        assert (await client.send("GET")).content == body
        assert client.cause is None
        with pytest.raises(httpx2.StreamError):
            await client.send("POST")
        assert client.cause == "too_large"
        server.answer = http_response(body, **HTML)
        with pytest.raises(httpx2.StreamError):
            await client.send("GET")
        assert client.cause == "too_large"


async def test_other_tasks_run_while_a_small_stream_expands_to_a_huge_one() -> None:
    compressed = compress(b"data: x\n\n" * 5_000_000)
    assert len(compressed) < 200_000
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    chunks = 0
    async with (
        running_wire_server(http_response(compressed, Content_Encoding="gzip", **EVENTS)) as server,
        open_client(f"http://127.0.0.1:{server.port}/") as client,
        client.stream("GET") as response,
    ):
        other = asyncio.create_task(count_turns())
        async for _ in response.aiter_raw():
            chunks += 1
        other.cancel()
    assert chunks > 500
    assert turns >= chunks


async def test_response_headers_have_a_size_limit() -> None:
    answer = b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 3_000_000
    async with running_wire_server(answer) as server, open_client(f"http://127.0.0.1:{server.port}/") as client:
        assert (await client.send()).status_code == 503
    assert client.cause == "closed"


@pytest.mark.parametrize(
    ("method", "status"), [*(("POST", status) for status in (301, 302, 303, 307, 308)), ("GET", 302), ("GET", 307)]
)
async def test_a_redirect_is_never_followed(status: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.mcp_client.transport._MIN_GET_INTERVAL_S", 0.02)
    async with running_wire_server() as server, open_client(f"http://127.0.0.1:{server.port}/mcp") as client:
        with listener() as elsewhere:
            locations = [
                f"http://127.0.0.1:{elsewhere.port}/",
                f"//127.0.0.1:{elsewhere.port}/",
                client.url + "/",
                "other",
            ]
            for expected_requests, location in enumerate(locations, start=1):
                server.answer = http_response(b"", f"{status} Elsewhere", Location=location)
                client.http.follow_redirects = True
                response = await client.send(method)
                assert (response.status_code, response.history, client.cause) == (503, [], "redirect")
                assert (len(server.requests), elsewhere.connects) == (expected_requests, 0)
        server.answer = http_response(b"here")
        assert (await client.send(method)).content == b"here"


async def test_a_request_to_another_origin_is_not_sent() -> None:
    async with (
        running_wire_server(http_response(b"")) as server,
        open_client(f"http://127.0.0.1:{server.port}/mcp") as client,
    ):
        with listener() as elsewhere:
            for url in (
                f"http://127.0.0.1:{elsewhere.port}/mcp",
                f"https://127.0.0.1:{server.port}/mcp",
                f"http://localhost:{server.port}/mcp",
                f"http://user@127.0.0.1:{server.port}/mcp",
                "https://example.com/mcp",
            ):
                assert (await client.send(url=url)).status_code == 503
                assert (client.cause, client.exchange.sent) == ("url_not_allowed", False)
            assert (server.connects, elsewhere.connects) == (0, 0)
        await client.send(url=f"http://127.0.0.1:{server.port}/messages?session=1")
        assert (client.cause, server.connects) == (None, 1)


async def test_a_refused_connection_has_received_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_socket:
        port = closed_socket.getsockname()[1]
    async with open_client(f"http://127.0.0.1:{port}/") as client:
        assert (await client.send()).status_code == 503
        assert (client.cause, client.exchange.sent) == ("refused", False)


async def test_a_server_that_disconnects_after_reading_may_have_received_the_request() -> None:
    async with running_wire_server(b"") as server, open_client(f"http://127.0.0.1:{server.port}/") as client:
        assert (await client.send()).status_code == 503
        assert (client.cause, client.exchange.sent) == ("closed", True)


async def test_a_server_that_does_not_answer_may_have_received_the_request() -> None:
    with listener() as silent:
        async with open_client(f"http://127.0.0.1:{silent.port}/") as client:
            client.http.timeout = httpx2.Timeout(5, read=0.05)
            assert (await client.send()).status_code == 503
        assert (client.cause, client.exchange.sent, silent.connects) == ("timeout", True, 1)


async def test_an_incomplete_response_is_a_lost_connection() -> None:
    answer = http_response(b"half", Content_Length="8")
    async with running_wire_server(answer) as server, open_client(f"http://127.0.0.1:{server.port}/") as client:
        with pytest.raises(httpx2.StreamError):
            await client.send()
        assert client.cause == "closed"
        server.answer = http_response(b"complete", Content_Length="8")
        assert (await client.send()).content == b"complete"


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
async def test_an_error_status_is_noted_and_the_response_is_passed_on(
    status: int, headers: dict[str, str], session: bool, cause: str | None
) -> None:
    """A JSON body may be a JSON-RPC error, which the SDK reads."""
    async with (
        running_wire_server(http_response(b"why", f"{status} Because", **headers)) as server,
        open_client(f"http://127.0.0.1:{server.port}/") as client,
    ):
        client.http.headers.update({"Mcp-Session-Id": "1"} if session else {})
        response = await client.send()
    assert (response.status_code, response.content) == (status, b"why")
    assert (client.exchange.status, client.cause) == (status, cause)


async def test_a_host_name_is_resolved_once_per_session() -> None:
    resolver = FakeResolver("127.0.0.1")
    async with running_wire_server(http_response(b"")) as server:
        with listener("::1", server.port) as elsewhere:
            async with open_client(f"http://files.test:{server.port}/", resolver) as client:
                await client.send()
                resolver.addresses = ["::1"]
                await client.send()
                await client.send()
                assert (client.cause, resolver.lookups, server.connects, elsewhere.connects) == (None, 1, 3, 0)
    assert all(f"host: files.test:{server.port}\r\n".encode() in head.lower() for head in server.requests)


async def test_the_next_address_is_tried_if_one_refuses_the_connection() -> None:
    resolver = FakeResolver("::1", "127.0.0.1")
    async with running_wire_server(http_response(b"")) as server:
        async with open_client(f"http://files.test:{server.port}/", resolver) as client:
            await client.send()
            await client.send()
        assert (client.cause, resolver.lookups, server.connects) == (None, 1, 2)


async def test_a_host_name_without_addresses_is_a_dns_failure() -> None:
    async with open_client("http://files.test:8080/", FakeResolver()) as client:
        assert (await client.send()).status_code == 503
        assert (client.cause, client.exchange.sent) == ("dns", False)


async def test_a_host_name_that_now_resolves_to_a_private_address_is_not_connected_to() -> None:
    """Each session resolves the name again: the addresses at registration do not count."""
    resolver = FakeResolver("8.8.8.8")
    with listener() as inside:
        url = f"https://rebinding.example:{inside.port}/"
        async with open_client(url, resolver, listed=False) as client:
            await client.guard.check(url, "ann")
            for addresses in (["127.0.0.1"], ["8.8.8.8", "127.0.0.1"]):
                resolver.addresses = addresses
                assert (await client.send()).status_code == 503
                assert client.cause == "url_not_allowed"
        assert inside.connects == 0


class RedirectingBackend(httpcore2.AnyIOBackend):
    """A network that connects to loopback, whatever address was requested."""

    async def connect_tcp(self, host: str, port: int, *options: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
        self.requested_host = host
        return await super().connect_tcp("127.0.0.1", port, *options, **more)


async def test_the_address_of_the_actual_connection_is_checked() -> None:
    with listener() as inside:
        async with open_client(f"https://example.com:{inside.port}/", FakeResolver("8.8.8.8"), listed=False) as client:
            client.use_backend(backend := RedirectingBackend())
            assert (await client.send()).status_code == 503
        assert backend.requested_host == "8.8.8.8"
        assert (client.cause, client.exchange.sent) == ("url_not_allowed", False)
        assert inside.connects == 1, "the backend must connect there, or the test shows nothing"
        [_, accepted] = inside._sockets
        accepted.settimeout(5)
        assert accepted.recv(1) == b"", "no TLS handshake was started"


async def test_the_actual_address_does_not_matter_for_an_allowed_host() -> None:
    async with (
        running_wire_server(http_response(b"hello")) as server,
        open_client(f"http://files.test:{server.port}/", FakeResolver("8.8.8.8")) as client,
    ):
        client.use_backend(RedirectingBackend())
        assert (await client.send()).content == b"hello"


class SlowBackend(httpcore2.AnyIOBackend):
    """Returns a new connection only after the server has closed it."""

    async def connect_tcp(self, *address: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(*address, **options)
        async with asyncio.timeout(5):
            while stream.get_extra_info("server_addr") is not None:  # noqa: ASYNC110 there is no event to wait for
                await asyncio.sleep(0.005)
        return stream


async def test_a_server_that_closes_the_connection_immediately_is_refused() -> None:
    async def reset_connection(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        linger_off = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
        writer.transport.abort()

    server = await asyncio.start_server(reset_connection, "127.0.0.1", 0)
    async with server, open_client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as client:
        client.use_backend(SlowBackend())
        assert (await client.send()).status_code == 503
    assert (client.cause, client.exchange.sent) == ("refused", False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("certificates")
    return {host: create_certificate(host, folder) for host in ("files.test", "other.test", "127.0.0.1")}


@asynccontextmanager
async def open_tls_client(
    certificate: Certificate, host: str, *, trusted: bool
) -> AsyncIterator[tuple[TransportClient, Any]]:
    async with (
        running_wire_server(http_response(b"hello"), certificate.server_context()) as server,
        open_client(f"https://{host}:{server.port}/", FakeResolver("127.0.0.1")) as client,
    ):
        if trusted:
            client.guard.tls.load_verify_locations(cadata=certificate.pem)
        yield client, server


@pytest.mark.parametrize("host", ["files.test", "127.0.0.1"])
async def test_a_trusted_certificate_for_the_host_is_accepted(certificates: dict[str, Certificate], host: str) -> None:
    async with open_tls_client(certificates[host], host, trusted=True) as (client, server):
        assert (await client.send()).content == b"hello"
    assert client.cause is None
    assert server.names == ["files.test" if host == "files.test" else None]
    assert b"GET" not in server.requests[0]


@pytest.mark.parametrize(
    ("certificate_host", "host", "trusted"),
    [
        ("files.test", "files.test", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("other.test", "files.test", True),
        ("127.0.0.1", "files.test", True),
        ("files.test", "127.0.0.1", True),
    ],
)
async def test_any_other_certificate_ends_the_connection_before_a_request_is_sent(
    certificates: dict[str, Certificate], certificate_host: str, host: str, trusted: bool
) -> None:
    async with open_tls_client(certificates[certificate_host], host, trusted=trusted) as (client, server):
        assert (await client.send()).status_code == 503
    assert (client.cause, client.exchange.sent) == ("tls", False)
    assert server.requests == []


async def test_plain_http_on_an_https_url_is_a_tls_failure() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response(b"hello"))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, open_client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as client:
        assert (await client.send()).status_code == 503
    assert (client.cause, client.exchange.sent) == ("tls", False)


def test_a_transport_cannot_be_made_for_a_url_that_is_not_allowed() -> None:
    guard = Guard([], FakeResolver("8.8.8.8"))
    with pytest.raises(UrlNotAllowed):
        GuardedTransport(guard, guard.parse_url("https://127.0.0.1/"), "ann", LIMIT)
    guard.close()
