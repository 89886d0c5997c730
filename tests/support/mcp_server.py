"""A fake MCP server on loopback that can be made to misbehave, and a listener that counts connections.

The SDK's server gives the normal answers; a thin layer in front of it logs requests and lets a fault answer instead.
"""

import asyncio
import json
import socket
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import uvicorn
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.models import InitializationOptions
from mcp.server.runner import serve_loop
from mcp.server.session import ServerSession
from mcp.server.sse import SseServerTransport
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    GetPromptRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ServerCapabilities,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.service import free_port

Json = dict[str, Any]
Transport = Literal["streamable_http", "sse"]
Era = Literal["modern", "legacy"]

_CONTENT_LISTS = ("resources/list", "resources/templates/list", "prompts/list")
THREAD_NAME = "fake-mcp-server"  # distinguishes its log records from ours


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Headers
    body: bytes
    rpc: Json

    @property
    def rpc_method(self) -> str | None:
        return self.rpc.get("method")

    @property
    def params(self) -> Json:
        return self.rpc.get("params") or {}


@dataclass
class Fault:
    """An ASGI application, such as a Starlette response, that answers in place of the server.

    It applies to the JSON-RPC methods (or "GET", "DELETE") in `on`, by default to all, and `times` times, by default
    always.
    """

    answer: ASGIApp
    on: Collection[str] = ()
    times: int | None = None

    def applies_to(self, request: Received) -> bool:
        if self.times == 0 or (self.on and (request.rpc_method or request.method) not in self.on):
            return False
        if self.times is not None:
            self.times -= 1
        return True


def status(code: int, body: str = "", headers: dict[str, str] | None = None) -> ASGIApp:
    return Response(body, status_code=code, headers=headers, media_type="text/plain")


def redirect(url: str) -> ASGIApp:
    return RedirectResponse(url, status_code=307)


def respond_after(gate: threading.Event, answer: ASGIApp) -> ASGIApp:
    """Send the answer once the gate is open."""

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        while not gate.is_set():  # noqa: ASYNC110 opened by another thread
            await asyncio.sleep(0.005)
        await answer(scope, receive, send)

    return wait


malformed_json = Response(b'{"jsonrpc": "2.0", "id": ', media_type="application/json")
wrong_content_type = Response("<html></html>", media_type="text/html")


async def hang(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def drop(scope: Scope, receive: Receive, send: Send) -> None:
    scope["cut"]()
    await hang(scope, receive, send)  # uvicorn must notice the disconnect, or it would answer 500


async def truncated_sse(scope: Scope, receive: Receive, send: Send) -> None:
    async def first_half() -> AsyncIterator[bytes]:
        yield b'event: message\r\ndata: {"jsonrpc": "2.0", "id": '
        scope["cut"]()

    await StreamingResponse(first_half(), media_type="text/event-stream")(scope, receive, send)


def raw_result(result: bytes) -> ASGIApp:
    """Send a result that the SDK cannot be made to write: nested too deeply, with duplicate keys, with NaN."""
    return _stream(lambda: [result])


def oversized_result(megabytes: int) -> ASGIApp:
    """An answer to `tools/list` and `tools/call` that is correct except for its size."""
    return _stream(lambda: _huge_result(megabytes))


def gzip_bomb(megabytes: int = 200) -> ASGIApp:
    """The same answer, compressed to a thousandth of its size."""
    return _stream(lambda: _huge_result(megabytes), gzipped=True)


def _huge_result(megabytes: int) -> Iterator[bytes]:
    yield b'{"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": [], "content": [], "filler": "'
    for _ in range(megabytes):
        yield b"x" * 1_000_000
    yield b'"}'


def _stream(result: Callable[[], Iterable[bytes]], gzipped: bool = False) -> ASGIApp:
    async def body(request: Received) -> AsyncIterator[bytes]:
        compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16, strategy=zlib.Z_RLE)
        head = f'{{"jsonrpc": "2.0", "id": {json.dumps(request.rpc.get("id"))}, "result": '
        for chunk in chain([head.encode()], result(), [b"}"]):
            yield compressor.compress(chunk) if gzipped else chunk
        yield compressor.flush() if gzipped else b""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"Content-Encoding": "gzip"} if gzipped else {}
        response = StreamingResponse(body(scope["received"]), media_type="application/json", headers=headers)
        await response(scope, receive, send)

    return answer


@dataclass
class FakeMcpServer:
    """A fake server. Tests may change its attributes at any time."""

    transport: Transport
    era: Era
    port: int = 0

    tools: list[Json] = field(default_factory=list)
    ttl_ms: int = 0
    cache_scope: str = "private"
    page_scopes: dict[int, tuple[int, str]] = field(default_factory=dict)  # `ttl_ms` and `cache_scope` of single pages
    page_size: int | None = None
    cursors: Literal["honest", "repeat", "endless"] = "honest"
    fail_page: int | None = None
    declares_content: bool = True  # resources and prompts
    resources: list[Json] = field(default_factory=list)
    resource_templates: list[Json] = field(default_factory=list)
    prompts: list[Json] = field(default_factory=list)
    content_page_size: int | None = None
    on_read: dict[str, Callable[[], Json]] = field(default_factory=dict)  # by URI; may raise MCPError
    on_prompt: dict[str, Callable[[Json], Json]] = field(default_factory=dict)  # by name; may raise MCPError
    on_call: dict[str, Callable[[Json], Json]] = field(default_factory=dict)  # may raise MCPError
    progress: dict[str, int] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)  # to the caller's user, in the form of the older protocol
    delays: dict[str, float] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)  # tools, or "tools/list", that answer once they are removed here

    latency_s: float = 0.0
    fault: Fault | None = None

    requests: list[Received] = field(default_factory=list)
    cancelled_calls: list[str] = field(default_factory=list)  # tools whose callers cancelled the call
    streams: int = 0  # open streams that can carry a notification

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{'sse' if self.transport == 'sse' else 'mcp'}"

    @property
    def calls(self) -> list[tuple[str, Json]]:
        """The received calls, including those that a fault answered."""
        calls = [request.params for request in self.requests if request.rpc_method == "tools/call"]
        return [(call["name"], call.get("arguments") or {}) for call in calls]

    @property
    def listings(self) -> int:
        """The number of `tools/list` requests for the first page."""
        params_list = [request.params for request in self.requests if request.rpc_method == "tools/list"]
        return sum(params.get("cursor") is None for params in params_list)

    def start(self) -> None:
        """Start on the same port as before, if any, without the earlier sessions."""
        self._server_thread = _ServerThread(self)
        self.port = self._server_thread.port

    def stop(self) -> None:
        """Cut all connections and refuse new ones."""
        self._server_thread.stop()

    def cut_connections(self) -> None:
        """Cut all connections; new ones are accepted."""
        self._server_thread.loop.call_soon_threadsafe(self._server_thread.cut)

    def announce_change(self) -> None:
        """Notify the streams that are open now."""
        asyncio.run_coroutine_threadsafe(self._server_thread.mcp.announce_change(), self._server_thread.loop).result(60)

    def make_page(self, cursor: str | None) -> Json:
        """Return a page of tools; the cursor is the page number."""
        number = int(cursor or 1)
        if number == self.fail_page:
            raise MCPError(INTERNAL_ERROR, f"page {number} cannot be read")
        if self.cursors == "repeat":
            return {"tools": self.tools, "nextCursor": "2"}
        if self.cursors == "endless":
            tools = [{**tool, "name": f"{tool['name']}_{number}"} for tool in self.tools]
            return {"tools": tools, "nextCursor": str(number + 1)}
        size = self.page_size or len(self.tools)
        more = {"nextCursor": str(number + 1)} if number * size < len(self.tools) else {}
        return {"tools": self.tools[(number - 1) * size : number * size], **more}

    def make_result(self, name: str, arguments: Json) -> Json:
        if name in self.on_call:
            return self.on_call[name](arguments)
        if self.find_tool(name) is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name}")
        return {"content": [{"type": "text", "text": json.dumps(arguments)}]}

    def make_content_page(self, method: str, cursor: str | None) -> Json:
        """Return a page of resources, templates or prompts; the cursor is the number of the first item."""
        field_name = {"prompts/list": "prompts", "resources/list": "resources"}.get(method, "resourceTemplates")
        items = {"prompts": self.prompts, "resources": self.resources}.get(field_name, self.resource_templates)
        first = int(cursor or 0)
        end = first + (self.content_page_size or max(1, len(items)))
        return {field_name: items[first:end], **({"nextCursor": str(end)} if end < len(items) else {})}

    def read_resource(self, uri: str) -> Json:
        if uri in self.on_read:
            return self.on_read[uri]()
        if not any(resource["uri"] == uri for resource in self.resources):
            raise MCPError(INVALID_PARAMS, f"Unknown resource: {uri}")
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"the text of {uri}"}]}

    def get_prompt(self, name: str, arguments: Json) -> Json:
        if name in self.on_prompt:
            return self.on_prompt[name](arguments)
        if not any(prompt["name"] == name for prompt in self.prompts):
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name}")
        text = f"{name} with {json.dumps(arguments)}"
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    def find_tool(self, name: str) -> Json | None:
        return next((tool for tool in self.tools if tool.get("name") == name), None)


class _Mcp(Server[Any]):
    """The SDK's server with the tools of the fake."""

    def __init__(self, fake: FakeMcpServer) -> None:
        self.fake = fake
        self.bus = InMemorySubscriptionBus()
        self.sessions: list[ServerSession] = []
        self.stopping = asyncio.Event()
        super().__init__(
            "fake",
            on_subscriptions_listen=ListenHandler(self.bus),
            # Without it the SDK follows all pages of `tools/list`, even with wrong cursors, before each call.
            get_tool_input_schema=lambda name: (fake.find_tool(name) or {}).get("inputSchema"),
        )
        for prefix in ("", "unfiltered/"):
            self.add_request_handler(f"{prefix}tools/list", PaginatedRequestParams, self.list_tools)
            self.add_request_handler(f"{prefix}tools/call", CallToolRequestParams, self.call_tool)
            for method in _CONTENT_LISTS:
                self.add_request_handler(
                    f"{prefix}{method}", PaginatedRequestParams, partial(self.list_content, method)
                )
            self.add_request_handler(f"{prefix}resources/read", ReadResourceRequestParams, self.read_resource)
            self.add_request_handler(f"{prefix}prompts/get", GetPromptRequestParams, self.get_prompt)
        self.middleware.append(self.bypass_validation)

    async def bypass_validation(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Rename the methods: in those it knows, the SDK drops unknown fields and rejects malformed tools."""
        if ctx.method == "initialize":
            self.sessions.append(ctx.session)
        if ctx.method in ("tools/list", "tools/call", "resources/read", "prompts/get", *_CONTENT_LISTS):
            ctx = replace(ctx, method=f"unfiltered/{ctx.method}")
        return await call_next(ctx)

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *more: Any, **options: Any
    ) -> InitializationOptions:
        """Declare that changes of the tool list are announced, which the session manager leaves out."""
        options_with_changes = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options_with_changes, *more, **options)

    def get_capabilities(self, *arguments: Any, **options: Any) -> ServerCapabilities:
        declared = super().get_capabilities(*arguments, **options)
        return (
            declared if self.fake.declares_content else declared.model_copy(update={"resources": None, "prompts": None})
        )

    async def list_content(self, method: str, ctx: ServerRequestContext[Any], params: PaginatedRequestParams) -> Json:
        await self.wait_as_configured(method)
        return self.fake.make_content_page(method, params.cursor) | _make_caching(ctx)

    async def read_resource(self, ctx: ServerRequestContext[Any], params: ReadResourceRequestParams) -> Json:
        await self.wait_as_configured(params.uri)
        return _make_caching(ctx) | self.fake.read_resource(params.uri)

    async def get_prompt(self, _ctx: ServerRequestContext[Any], params: GetPromptRequestParams) -> Json:
        await self.wait_as_configured(params.name)
        return self.fake.get_prompt(params.name, dict(params.arguments or {}))

    async def list_tools(self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams) -> Json:
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        ttl_ms, scope = self.fake.page_scopes.get(int(params.cursor or 1), (self.fake.ttl_ms, self.fake.cache_scope))
        caching = {"ttlMs": ttl_ms, "cacheScope": scope} if modern else {}
        await self.wait_as_configured("tools/list")
        return {**self.fake.make_page(params.cursor), **caching}

    async def call_tool(self, ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> Json:
        steps = self.fake.progress.get(params.name, 0)
        for step in range(1, steps + 1):
            await ctx.session.report_progress(step, steps, f"step {step}")
        if params.name in self.fake.questions:
            try:
                await ctx.session.elicit_form(self.fake.questions[params.name], {"type": "object", "properties": {}})
            except MCPError as error:  # as servers do that use the SDK's decorators
                return {"content": [{"type": "text", "text": error.message}], "isError": True}
        try:
            await self.wait_as_configured(params.name)
        except asyncio.CancelledError:
            self.fake.cancelled_calls.append(params.name)
            raise
        return self.fake.make_result(params.name, params.arguments or {})

    async def wait_as_configured(self, name: str) -> None:
        with suppress(TimeoutError):  # the SDK needs a second to end a session with a running call
            await asyncio.wait_for(self.stopping.wait(), self.fake.delays.get(name, 0))
        while name in self.fake.stalled and not self.stopping.is_set():  # noqa: ASYNC110 changed by another thread
            await asyncio.sleep(0.005)

    async def announce_change(self) -> None:
        await self.bus.publish(ToolsListChanged())
        for session in self.sessions:  # ended sessions ignore it
            await session.send_tool_list_changed()


def _make_caching(ctx: ServerRequestContext[Any]) -> Json:
    is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    return {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if is_modern else {}


class _ServerThread:
    """uvicorn in its own thread, so that it works with any event loop and without one."""

    def __init__(self, fake: FakeMcpServer) -> None:
        self.fake = fake
        self.mcp = _Mcp(fake)
        self.app = _sse_app(self.mcp) if fake.transport == "sse" else _streamable_http_app(self.mcp)
        self.uvicorn = uvicorn.Server(
            uvicorn.Config(
                self.serve,
                interface="asgi3",
                ws="none",
                lifespan="off" if fake.transport == "sse" else "on",
                log_config=None,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        # with the protocol number, or asyncio leaves Nagle's algorithm on and most answers take 40 ms longer
        self.listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", fake.port or free_port()))
        self.port: int = self.listening.getsockname()[1]
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, name=THREAD_NAME, daemon=True)
        self.thread.start()
        while not self.uvicorn.started:
            assert self.thread.is_alive()
            time.sleep(0.002)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self.uvicorn.serve(sockets=[self.listening]))

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.stop_accepting)
            self.thread.join()

    def stop_accepting(self) -> None:
        """Stop accepting a moment earlier: asyncio loses a connection that was accepted just before the close."""
        self.loop.remove_reader(self.listening)
        self.loop.call_later(0.01, self.end)

    def end(self) -> None:
        self.uvicorn.should_exit = True
        self.mcp.stopping.set()
        self.cut()

    def cut(self, client: tuple[str, int] | None = None) -> None:
        for connection in list(self.uvicorn.server_state.connections):
            if client in (None, getattr(connection, "client", None)):
                connection.transport.abort()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        request = await _read(scope, receive)
        self.fake.requests.append(request)
        fault = self.fake.fault
        answer = fault.answer if fault and fault.applies_to(request) else self.forward
        scope = {**scope, "received": request, "cut": lambda: self.cut(scope["client"])}
        try:
            await asyncio.wait_for(hang(scope, receive, send), self.fake.latency_s)
        except TimeoutError:  # the client is still connected
            await answer(scope, receive, send)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Received = scope["received"]
        streaming = request.method == "GET" or request.rpc_method == "subscriptions/listen"
        unread, opened = [request.body], 0

        async def receive_body_again() -> Message:
            return {"type": "http.request", "body": unread.pop()} if unread else await receive()

        async def send_and_count(message: Message) -> None:
            nonlocal opened
            await send(message)
            if streaming and message.get("status") == 200:
                opened = 1
                self.fake.streams += 1

        try:
            await self.app(scope, receive_body_again, send_and_count)
        finally:
            self.fake.streams -= opened


def _streamable_http_app(mcp: _Mcp) -> ASGIApp:
    """Accept any `Host`: a client that pins the resolved address sends the original host name."""
    app = mcp.streamable_http_app(transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False))
    # By these headers the SDK recognizes the modern protocol; without them it requires a session, as old servers do.
    hidden_headers = [(b"mcp-protocol-version", version.encode()) for version in MODERN_PROTOCOL_VERSIONS]

    async def legacy_app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [header for header in scope.get("headers", ()) if tuple(header) not in hidden_headers]
        await app({**scope, "headers": headers}, receive, send)

    return legacy_app if mcp.fake.era == "legacy" else app


def _sse_app(mcp: _Mcp) -> ASGIApp:
    transport = SseServerTransport("/messages/")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/messages/":
            await transport.handle_post_message(scope, receive, send)
        elif scope["method"] != "GET":
            await Response(status_code=405)(scope, receive, send)
        else:
            async with transport.connect_sse(scope, receive, send) as (read, write):
                if mcp.fake.era == "legacy":
                    await serve_loop(mcp, read, write, lifespan_state={})
                else:
                    await mcp.run(read, write, mcp.create_initialization_options())

    return app


async def _read(scope: Scope, receive: Receive) -> Received:
    body = await Request(scope, receive).body()
    rpc = None
    with suppress(ValueError):
        rpc = json.loads(body)
    path = f"{scope['path']}?{scope['query_string'].decode()}".removesuffix("?")
    return Received(scope["method"], path, Headers(scope=scope), body, rpc if isinstance(rpc, dict) else {})


@contextmanager
def running_mcp_server(transport: Transport = "streamable_http", era: Era = "modern") -> Iterator[FakeMcpServer]:
    fake = FakeMcpServer(transport, era)
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()


@contextmanager
def running_mcp_servers() -> Iterator[dict[str, FakeMcpServer]]:
    with (
        running_mcp_server("streamable_http", "modern") as modern,
        running_mcp_server("streamable_http", "legacy") as legacy,
        running_mcp_server("sse", "legacy") as sse,
    ):
        yield {"modern": modern, "legacy": legacy, "sse": sse}


class Listener:
    """Never answers. Connections wait in the kernel until `connects` accepts and counts them."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sockets = [socket.create_server((host, port), family=family)]
        self._sockets[0].setblocking(False)
        self.port: int = self._sockets[0].getsockname()[1]

    @property
    def connects(self) -> int:
        with suppress(BlockingIOError):
            while True:
                self._sockets.append(self._sockets[0].accept()[0])
        return len(self._sockets) - 1

    def close(self) -> None:
        for open_socket in self._sockets:
            open_socket.close()


def listener(host: str = "127.0.0.1", port: int = 0) -> closing[Listener]:
    return closing(Listener(host, port))
