"""How fast are the console's pages for a user with 10,000 tools? `make bench-console`.

The tools of one user are pushed through the product's own door and then copied; behind them stand a month of figures
(one minute in five) and 100,000 events. One client asks as a browser does. The longest is what somebody waits for.
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
from bench.load import MESSAGE, PRODUCTS, USER, product_tools
from bench.service import ADMIN_KEY, Service, running_service

TOOLS = 10_000
PROMISED_MS = 100

COPIES = {
    "mcp_servers": "'id', md5(o.id || n), 'name', o.name || ' ' || n",
    "mcp_tools": "'id', md5(o.id || n), 'name', o.name || '_' || n, 'server_id', md5(o.server_id || n)",
    "mcp_tool_embeddings": "'tool_id', md5(o.tool_id || n), 'server_id', md5(o.server_id || n), "
    "'server_name', o.server_name || ' ' || n, 'tool_name', o.tool_name || '_' || n",
}
COPY = """
INSERT INTO {table} SELECT (jsonb_populate_record(o, jsonb_build_object({changed}))).*
FROM {table} o, generate_series(1, %(last)s) n WHERE o.user_id = %(user)s
"""
FIGURES = """
INSERT INTO discovery_stats SELECT %(user)s, at, 20, 0, 1, 8, 200000, 20000, %(latencies)s
FROM generate_series(date_trunc('minute', now()) - interval '30 days', now(), interval '5 minutes') at
"""
EVENTS = """
INSERT INTO audit_events (user_id, id, at, actor, action, target, outcome)
SELECT %(user)s, 'e' || n, now() - n * interval '20 s', 'user:bench', 'tool.execute', 't' || n %% 500, 'succeeded'
FROM generate_series(1, 100000) n
"""


def fill(service: Service) -> None:
    pushed = len(PRODUCTS) * len(product_tools(PRODUCTS[0]))
    with service.admin(USER) as client:
        for product in PRODUCTS:
            server = client.post("/servers", json={"name": product, "transport": "push", "tags": [product]}).json()
            run = client.put(f"/servers/{server['id']}/tools?wait=true", json={"tools": product_tools(product)})
            assert run.json()["state"] == "succeeded", run.text
        client.put("/rules", json={"rules": [{"pattern": ["delete_*"], "enabled": False}]}).raise_for_status()
    values = {"user": USER, "last": TOOLS // pushed - 1, "latencies": [0] * 6 + [20] + [0] * (BUCKETS - 7)}
    with psycopg.connect(EmbeddedPostgres(service.folder / "data").url, autocommit=True) as connection:
        for table, changed in COPIES.items():
            connection.execute(COPY.format(table=table, changed=changed).encode(), values)
        connection.execute("UPDATE users SET tool_count = %s WHERE id = %s", [TOOLS, USER])
        connection.execute(FIGURES, values)
        connection.execute(EVENTS, values)
        connection.execute("VACUUM ANALYZE")


def found(pattern: str, page: str) -> str:
    match = re.search(pattern, page)
    assert match is not None, pattern
    return html.unescape(match[1])


def pages(client: httpx.Client) -> dict[str, Callable[[], httpx.Response]]:
    first = client.get("/console/tools").text
    token = found(r'name="csrf-token" content="([^"]+)"', first)
    second = found(r'rel="next" href="([^"]+)"', first)
    a_tool = found(r'class="name" href="([^"]+)"', first)
    a_server = found(r'<th scope="row"><a href="([^"]+)"', client.get("/console/servers").text)
    get = {
        "an empty endpoint": "/healthz",
        "overview, a day": "/console/overview",
        "overview, a month": "/console/overview?window=month",
        "try, empty": "/console/try",
        "servers": "/console/servers",
        "a server": a_server,
        "tools": "/console/tools",
        "tools, second page": second,
        "tools by part of a name": "/console/tools?name=ticket",
        "tools by a name that none has": "/console/tools?name=nothing",
        "tools by tag": "/console/tools?tag=juniper",
        "tools that are hidden": "/console/tools?visible=no",
        "tools that have changed": "/console/tools?state=changed",
        "tools with a flag": "/console/tools?flag=instructions",
        "a tool": a_tool,
        "rules": "/console/rules",
        "projects": "/console/projects",
        "activity": "/console/activity",
        "activity by target": "/console/activity?target=t7",
        "users": "/console/users",
        "keys": "/console/keys",
    }
    post = {
        "an answer while typing": ("/console/try/answer", {"query": MESSAGE}),
        "a preview while typing": (
            "/console/rules/preview",
            {"pattern": "*delete*", "server": "", "enabled": "off", "tags": ""},
        ),
    }
    headers = {"X-CSRF-Token": token, "X-Fragment": "1"}
    read = {label: partial(client.get, path) for label, path in get.items()}
    asked = {label: partial(client.post, path, data=form, headers=headers) for label, (path, form) in post.items()}
    return {**read, **asked}


def measured(ask: Callable[[], httpx.Response], times: int) -> list[float]:
    ask().raise_for_status()  # the first one warms up connections and plans, as the first visitor of a day does
    spent = []
    for _ in range(times):
        started = time.perf_counter()
        ask().raise_for_status()
        spent.append((time.perf_counter() - started) * 1000)
    return spent


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=30, help="how often each page is asked for (default: 30)")
    times = options.parse_args().times
    with tempfile.TemporaryDirectory() as folder, running_service(Path(folder)) as service:
        fill(service)
        with httpx.Client(base_url=service.url, timeout=60, follow_redirects=True) as client:
            client.post("/console/sign-in", data={"key": ADMIN_KEY, "user_id": USER}).raise_for_status()
            print("| page | p50 ms | p95 ms | longest ms |\n|---|---|---|---|")
            late = []
            for label, ask in pages(client).items():
                spent = measured(ask, times)
                p95 = statistics.quantiles(spent, n=20)[-1]
                print(f"| {label} | {statistics.median(spent):.1f} | {p95:.1f} | {max(spent):.1f} |", flush=True)
                late += [label] if p95 > PROMISED_MS else []
        print(f"\nlater than {PROMISED_MS} ms (p95): {', '.join(late) or 'none'}")


if __name__ == "__main__":
    main()
