"""Measure the latency and throughput of `/discover` and `/execute`, compared to baselines of the same run.

`make bench-load`. One user with 500 tools among 200 users with 500 tools each. The clients are plain sockets in a
separate process, so that they take as little CPU time as possible. Compare the ratios, not the absolute numbers.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil
import psycopg
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from app.local_postgres.postgres import EmbeddedPostgres
from app.text.strict_json import Json
from bench import upstream
from bench.service import ADMIN_KEY, Service, running_service

USER, NEIGHBOUR = "user-0", "user-1"
VERBS = ["create", "list", "get", "update", "delete", "search", "export", "archive", "share", "watch"]
THINGS = ["invoice", "ticket", "branch", "calendar event", "contact"]
PRODUCTS = ["acorn", "birch", "cedar", "dahlia", "elder", "fern", "gorse", "hazel", "iris", "juniper"]
MESSAGE = "please search the tickets about the broken login in cedar that came in last week"
TWO_SUBQUERIES = "please search the tickets about the broken login in cedar and share the newest one"

COPY_USER = "INSERT INTO users (id, tool_count) SELECT 'user-' || n, 500 FROM generate_series(1, %(last)s) n"
COPY_ROWS = """
INSERT INTO {table} SELECT (jsonb_populate_record(original, jsonb_build_object('user_id', 'user-' || n, {ids}))).*
FROM {table} original, generate_series(1, %(last)s) n WHERE user_id = 'user-0'
"""
COPIED_TABLES = {
    "mcp_servers": ["id"],
    "mcp_tools": ["id", "server_id"],
    "mcp_tool_embeddings": ["tool_id", "server_id"],
}
"""The tables of a user that a search reads, with the columns that differ for each user."""


@dataclass(frozen=True)
class Result:
    label: str
    clients: int
    seconds: float
    latencies_ms: list[float]

    def quantile(self, share: float) -> float:
        return statistics.quantiles(self.latencies_ms, n=100)[round(share * 100) - 1]

    @property
    def rate(self) -> float:
        return len(self.latencies_ms) / self.seconds


def product_tools(product: str) -> list[dict[str, object]]:
    return [
        {
            "name": f"{verb}_{thing.replace(' ', '_')}",
            "description": f"{verb.capitalize()} a {thing} in {product}, for a user who wants to {verb} a {thing}.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": f"The {thing}'s identifier"},
                    "query": {"type": "string", "description": f"Words that the {thing} must contain"},
                    "limit": {"type": "integer", "description": "How many to answer at most"},
                },
            },
        }
        for verb in VERBS
        for thing in THINGS
    ]


def create_users(service: Service, users: int) -> None:
    """Create one user through the API and copy the others in SQL, as this would take half an hour otherwise."""
    with service.admin(USER) as client:
        for product in PRODUCTS:
            server = client.post("/servers", json={"name": product, "transport": "push"}).raise_for_status().json()
            pushed = client.put(f"/servers/{server['id']}/tools?wait=true", json={"tools": product_tools(product)})
            assert pushed.json()["state"] == "succeeded", pushed.text
    url = EmbeddedPostgres(service.folder / "data").url
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(COPY_USER, {"last": users - 1})
        for table, names in COPIED_TABLES.items():
            ids = ", ".join(f"'{name}', md5(original.{name} || n)" for name in names)
            connection.execute(COPY_ROWS.format(table=table, ids=ids).encode(), {"last": users - 1})
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def post(path: str, body: Json, user: str = USER, **headers: str) -> bytes:
    content = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN_KEY}\r\nX-User-Id: {user}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    )
    return "".join([head, *(f"{name}: {value}\r\n" for name, value in headers.items()), "\r\n"]).encode() + content


def discover_request(query: str, user: str = USER) -> bytes:
    return post("/discover", {"query": query}, user)


def mcp_request(version: str, meta: Json) -> bytes:
    params = {"name": "tool_discovery", "arguments": {"query": [MESSAGE]}, "_meta": meta}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "tool_discovery",
    }
    return post("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, **headers)


def empty_requests() -> Iterator[bytes]:
    return itertools.repeat(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")


def cached_requests() -> Iterator[bytes]:
    return itertools.repeat(discover_request(MESSAGE))


def two_subqueries_requests() -> Iterator[bytes]:
    return itertools.repeat(discover_request(TWO_SUBQUERIES))


def uncached_requests() -> Iterator[bytes]:
    start = time.time_ns()
    return (discover_request(f"{MESSAGE} number {start + n}") for n in itertools.count())


def neighbour_requests() -> Iterator[bytes]:
    return itertools.repeat(discover_request(MESSAGE, NEIGHBOUR))


def mcp_requests() -> Iterator[bytes]:
    version = LATEST_MODERN_VERSION
    return itertools.repeat(
        mcp_request(version, {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: {}})
    )


def older_mcp_requests() -> Iterator[bytes]:
    return itertools.repeat(mcp_request(LATEST_HANDSHAKE_VERSION, {}))


CACHED = "discover, query cached"
NEW = "discover, new query"
OVER_MCP = "the same, by tool_discovery"
OVER_OLDER_MCP = "the same, older protocol"
NEIGHBOUR_REQUESTS = "discover, another user"
UNRESPONSIVE_SERVERS = 50
NEIGHBOUR_CONNECTIONS = 100
CALLS = 300

KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "empty": empty_requests,
    CACHED: cached_requests,
    OVER_MCP: mcp_requests,
    OVER_OLDER_MCP: older_mcp_requests,
    "discover, two subqueries, cached": two_subqueries_requests,
    NEW: uncached_requests,
}
_ALL_KINDS = KINDS | {NEIGHBOUR_REQUESTS: neighbour_requests}


async def _run_client(port: int, requests: Iterator[bytes], deadline: float, latencies_ms: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        writer.write(next(requests))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b'"isError":true' not in await _read_body(reader, head.lower())
        latencies_ms.append((time.perf_counter() - started) * 1000)
    writer.close()


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"content-length: " in head:
        return await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    return await reader.readuntil(b"\r\n0\r\n\r\n")


async def _run_clients(port: int, kind: str, clients: int, seconds: float) -> list[float]:
    latencies_ms: list[float] = []
    requests = _ALL_KINDS[kind]()
    deadline = time.perf_counter() + seconds
    await asyncio.gather(*(_run_client(port, requests, deadline, latencies_ms) for _ in range(clients)))
    return latencies_ms


def _run_in_process(port: int, kind: str, clients: int, seconds: float) -> list[float]:
    return asyncio.run(_run_clients(port, kind, clients, seconds))


def measure(service: Service, kind: str, clients: int, seconds: float) -> Result:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(_run_in_process, (service.port, kind, clients, 0.5))
        latencies_ms = pool.apply(_run_in_process, (service.port, kind, clients, seconds))
    return Result(kind, clients, seconds, latencies_ms)


def measure_with_neighbour(service: Service, kind: str, seconds: float) -> Result:
    """Measure while another user sends requests over many connections without pause."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        neighbour = pool.apply_async(
            _run_in_process, (service.port, NEIGHBOUR_REQUESTS, NEIGHBOUR_CONNECTIONS, seconds + 4)
        )
        result = measure(service, kind, 1, seconds)
        neighbour.get()
    return result


def allowing(*ports: int) -> dict[str, str]:
    return {"TOOLSCOUT_OUTBOUND_ALLOW": ",".join(f"127.0.0.1:{port}" for port in ports)}


def print_table(results: list[Result]) -> None:
    empty = {result.clients: result.rate for result in results if result.label == "empty"}
    print(f"\n{'':30}{'clients':>8}{'req/s':>9}{'of empty':>10}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}")
    for result in results:
        quantiles = "".join(f"{result.quantile(share):9.2f}" for share in (0.5, 0.95, 0.99))
        share = result.rate / empty[result.clients]
        print(f"{result.label:30}{result.clients:8}{result.rate:9.0f}{share:10.2f}{quantiles}")


def print_mcp_share(results: list[Result]) -> None:
    """Print the throughput of the MCP endpoint as a share of that of the REST API, which does the same."""
    rates = {(result.label, result.clients): result.rate for result in results}
    for label in (OVER_MCP, OVER_OLDER_MCP):
        shares = [f"{rates[label, clients] / rates[CACHED, clients]:.2f} at {clients}" for clients in (1, 16)]
        print(f"{label}: {', '.join(shares)} clients, of the rate of POST /discover")


def print_execution(direct: list[float], through: list[float]) -> None:
    print(f"\n{'one call of a tool':36}{'p50 ms':>9}{'p95 ms':>9}")
    for label, latencies_ms in (("directly", direct), ("through POST /execute", through)):
        quantiles = statistics.quantiles(latencies_ms, n=100)
        print(f"{label:36}{quantiles[49]:9.2f}{quantiles[94]:9.2f}")
    added = statistics.median(through) - statistics.median(direct)
    print(f"added: {added:.1f} ms, {statistics.median(through) / statistics.median(direct):.1f} times a direct call")


def print_impact(condition: str, quiet: Result, loaded: Result) -> None:
    print(f"\n{quiet.label:44}{'p50 ms':>9}{'p95 ms':>9}")
    for label, result in (("without other load", quiet), (condition, loaded)):
        print(f"{label:44}{result.quantile(0.5):9.2f}{result.quantile(0.95):9.2f}")
    print(f"p95: {loaded.quantile(0.95) / quiet.quantile(0.95):.2f} times the value without other load")


def measure_upstream(service: Service, echo_port: int, silent: int, seconds: float) -> None:
    tool_key = upstream.register_echo_tool(service, echo_port)
    print_execution(*upstream.measure_calls(service, echo_port, tool_key, CALLS))
    quiet = measure(service, CACHED, 1, seconds)
    upstream.add_hanging_servers(service, silent, UNRESPONSIVE_SERVERS)
    print_impact(f"with {UNRESPONSIVE_SERVERS} unresponsive servers", quiet, measure(service, CACHED, 1, seconds))


def measure_neighbours(service: Service, seconds: float) -> None:
    for kind in (CACHED, NEW):
        quiet = measure(service, kind, 1, seconds)
        print_impact(
            f"with another user on {NEIGHBOUR_CONNECTIONS} connections",
            quiet,
            measure_with_neighbour(service, kind, seconds),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream.echo_server() as echo_port,
        upstream.silent_port() as silent,
        running_service(Path(folder), allowing(echo_port, silent)) as service,
    ):
        print(f"creating {options.users} users with 500 tools each …", flush=True)
        create_users(service, options.users)
        results = [measure(service, kind, clients, options.seconds) for clients in (1, 16) for kind in KINDS]
        print_table(results)
        print_mcp_share(results)
        measure_neighbours(service, options.seconds)
        measure_upstream(service, echo_port, silent, options.seconds)
        memory = psutil.Process(service.process.pid).memory_info().rss / 2**20
        print(f"\nmemory of the app: {memory:.0f} MB")


if __name__ == "__main__":
    main()
