"""Measure the response times of the console's pages for a user with 10,000 tools: `make bench-console`.

The tools are pushed through the API and then copied in SQL, with a month of statistics (one minute in five) and 100,000
audit events. One client requests the pages as a browser does.
"""

import argparse
import html
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import psycopg

from app.local_postgres.postgres import EmbeddedPostgres
from app.usage.histogram import BUCKETS
from bench.load.catalogue import PRODUCTS, USER, product_tools
from bench.load.traffic import MESSAGE
from bench.service import ADMIN_KEY, Service, running_service

TOOLS = 10_000
TARGET_MS = 100

COPIED_COLUMNS = {
    "mcp_servers": "'id', md5(o.id || n), 'name', o.name || ' ' || n",
    "mcp_tools": "'id', md5(o.id || n), 'name', o.name || '_' || n, 'server_id', md5(o.server_id || n)",
    "mcp_tool_embeddings": "'tool_id', md5(o.tool_id || n), 'server_id', md5(o.server_id || n), "
    "'server_name', o.server_name || ' ' || n, 'tool_name', o.tool_name || '_' || n",
}
COPY_ROWS = """
INSERT INTO {table} SELECT (jsonb_populate_record(o, jsonb_build_object({changed}))).*
FROM {table} o, generate_series(1, %(last)s) n WHERE o.user_id = %(user)s
"""
INSERT_STATS = """
INSERT INTO discovery_stats SELECT %(user)s, at, 20, 0, 1, 8, 200000, 20000, %(latencies)s
FROM generate_series(date_trunc('minute', now()) - interval '30 days', now(), interval '5 minutes') at
"""
INSERT_EVENTS = """
INSERT INTO audit_events (user_id, id, at, actor, action, target, outcome)
SELECT %(user)s, 'e' || n, now() - n * interval '20 s', 'user:bench', 'tool.execute', 't' || n %% 500, 'succeeded'
FROM generate_series(1, 100000) n
"""


def create_user(service: Service) -> None:
    pushed = len(PRODUCTS) * len(product_tools(PRODUCTS[0]))
    with service.admin(USER) as client:
        for product in PRODUCTS:
            server = client.post("/servers", json={"name": product, "transport": "push", "tags": [product]}).json()
            run = client.put(f"/servers/{server['id']}/tools?wait=true", json={"tools": product_tools(product)})
            assert run.json()["state"] == "succeeded", run.text
        client.put("/rules", json={"rules": [{"pattern": ["delete_*"], "enabled": False}]}).raise_for_status()
    values = {"user": USER, "last": TOOLS // pushed - 1, "latencies": [0] * 6 + [20] + [0] * (BUCKETS - 7)}
    with psycopg.connect(EmbeddedPostgres(service.folder / "data").url, autocommit=True) as connection:
        for table, changed in COPIED_COLUMNS.items():
            connection.execute(COPY_ROWS.format(table=table, changed=changed).encode(), values)
        connection.execute("UPDATE users SET tool_count = %s WHERE id = %s", [TOOLS, USER])
        connection.execute(INSERT_STATS, values)
        connection.execute(INSERT_EVENTS, values)
        connection.execute("VACUUM ANALYZE")


def search(pattern: str, page: str) -> str:
    match = re.search(pattern, page)
    assert match is not None, pattern
    return html.unescape(match[1])


def make_requests(client: httpx.Client) -> dict[str, Callable[[], httpx.Response]]:
    tools_page = client.get("/console/tools").text
    token = search(r'name="csrf-token" content="([^"]+)"', tools_page)
    next_page = search(r'rel="next" href="([^"]+)"', tools_page)
    tool_page = search(r'class="name" href="([^"]+)"', tools_page)
    server_page = search(r'<th scope="row"><a href="([^"]+)"', client.get("/console/servers").text)
    get = {
        "an empty endpoint": "/healthz",
        "overview, a day": "/console/overview",
        "overview, a month": "/console/overview?window=month",
        "try, empty": "/console/try",
        "servers": "/console/servers",
        "a server": server_page,
        "tools": "/console/tools",
        "tools, second page": next_page,
        "tools by part of a name": "/console/tools?name=ticket",
        "tools by an unknown name": "/console/tools?name=nothing",
        "tools by tag": "/console/tools?tag=juniper",
        "tools that are hidden": "/console/tools?visible=no",
        "tools that have changed": "/console/tools?state=changed",
        "tools with a flag": "/console/tools?flag=instructions",
        "a tool": tool_page,
        "rules": "/console/rules",
        "projects": "/console/projects",
        "activity": "/console/activity",
        "activity by target": "/console/activity?target=t7",
        "users": "/console/users",
        "keys": "/console/keys",
    }
    post = {
        "an answer during typing": ("/console/try/answer", {"query": MESSAGE}),
        "a preview during typing": (
            "/console/rules/preview",
            {"pattern": "*delete*", "server": "", "enabled": "off", "tags": ""},
        ),
    }
    headers = {"X-CSRF-Token": token, "X-Fragment": "1"}
    reads = {label: partial(client.get, path) for label, path in get.items()}
    posts = {label: partial(client.post, path, data=form, headers=headers) for label, (path, form) in post.items()}
    return {**reads, **posts}


def measure(send: Callable[[], httpx.Response], times: int) -> list[float]:
    send().raise_for_status()  # warms up connections and query plans
    durations_ms = []
    for _ in range(times):
        started = time.perf_counter()
        send().raise_for_status()
        durations_ms.append((time.perf_counter() - started) * 1000)
    return durations_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30, help="requests per page (default: 30)")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder, running_service(Path(folder)) as service:
        create_user(service)
        with httpx.Client(base_url=service.url, timeout=60, follow_redirects=True) as client:
            client.post("/console/sign-in", data={"key": ADMIN_KEY, "user_id": USER}).raise_for_status()
            print("| page | p50 ms | p95 ms | max ms |\n|---|---|---|---|")
            slow = []
            for label, send in make_requests(client).items():
                durations_ms = measure(send, times)
                p50, p95 = statistics.median(durations_ms), statistics.quantiles(durations_ms, n=20)[-1]
                print(f"| {label} | {p50:.1f} | {p95:.1f} | {max(durations_ms):.1f} |", flush=True)
                slow += [label] if p95 > TARGET_MS else []
        print(f"\nslower than {TARGET_MS} ms (p95): {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
