"""Health, metrics and logs, and the secrets that none of them may show."""

import asyncio
import logging
from collections.abc import Iterator

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from app.container import Container
from app.local_postgres.postgres import EmbeddedPostgres
from app.observability.logging import JsonFormatter
from tests.support.checks import Json, assert_problem, door_routes
from tests.support.clients import TestUser, get_app, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService, tool
from tests.support.outage import close_database
from tests.support.sql_statements import recorded_statements

CANARY = "canary4410be"
METRICS_KEY = "a-key-for-metrics"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"])
async def test_health_metrics_and_documentation_need_no_key(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200


async def test_readiness_names_the_model_in_use(client: httpx.AsyncClient, container: Container) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ok", "model": container.model.id, "warnings": []}


async def test_without_its_database_the_service_is_alive_but_not_ready_and_answers_503(
    open_service: OpenService, postgres: EmbeddedPostgres
) -> None:
    requests = [("GET", "/readyz", None), ("GET", "/servers", None), ("POST", "/discover", {"query": "list files"})]
    async with open_service() as service, new_user(service) as user:
        async with close_database(postgres, service.database):
            assert (await user.http.get("/healthz")).status_code == 200
            for method, path, body in requests:
                answer = await user.http.request(method, path, json=body)
                assert_problem(answer, 503)
                assert int(answer.headers["retry-after"]) >= 1
        for method, path, body in requests:
            assert (await user.http.request(method, path, json=body)).status_code == 200


async def test_many_probes_at_once_take_one_connection(client: httpx.AsyncClient) -> None:
    with recorded_statements() as statements:
        probes = await asyncio.gather(*(client.get("/readyz") for _ in range(50)))
    assert {probe.status_code for probe in probes} == {200}
    assert sum("SELECT 1" in statement for statement in statements) < 10


async def test_a_draining_process_is_not_ready_and_closes_its_connections(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as user:
        before = await user.http.get("/tools")
        assert (await user.http.get("/readyz")).status_code == 200
        service.draining.set()
        assert_problem(await user.http.get("/readyz"), 503)
        assert (await user.http.get("/healthz")).status_code == 200
        after = await user.http.get("/tools")
    assert (before.status_code, before.headers.get("connection")) == (200, None)
    assert (after.status_code, after.headers.get("connection")) == (200, "close")


async def scrape(http: httpx.AsyncClient, **headers: str) -> list[tuple[str, dict[str, str]]]:
    answer = await http.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


async def test_metrics_cover_requests_searches_and_runs(user: TestUser) -> None:
    await user.add_tools(tool("list_files", "Lists files."))
    await user.discover("list files")
    await user.discover("something that no tool does at all", similarity_threshold=1)
    found = await scrape(user.http)
    assert {name for name, _ in found} >= {
        "toolscout_requests_total",
        "toolscout_request_seconds_bucket",
        "toolscout_search_seconds_count",
        "toolscout_embedding_seconds_count",
        "toolscout_query_cache_total",
        "toolscout_no_match_total",
        "toolscout_tokens_saved_total",
        "toolscout_index_runs_total",
        "toolscout_embedder_breaker_open",
    }
    counted = {"method": "POST", "route": "/discover", "status": "200"}
    assert ("toolscout_requests_total", counted) in found
    assert ("toolscout_index_runs_total", {"state": "succeeded"}) in found


async def test_no_label_contains_text_of_a_user(open_service: OpenService) -> None:
    async with open_service() as service, new_user(service) as user:
        server_id = await user.add_tools(tool(CANARY, CANARY), server=CANARY, tags=[CANARY])
        await user.discover(CANARY, tags=[CANARY])
        for method, path in [
            ("GET", f"/{CANARY}"),
            ("GET", f"/tools/{CANARY}"),
            ("GET", f"/servers/{server_id}"),
            ("GET", f"/servers/{CANARY}?cursor={CANARY}"),
            (CANARY.upper(), "/tools"),
            (CANARY.upper(), f"/{CANARY}"),
        ]:
            await user.http.request(method, path, headers={"X-Request-Id": CANARY})
        found = await scrape(user.http)
        templates = {route.path for route in door_routes(get_app(service))}
    text = str(found)
    assert not [secret for secret in (CANARY, CANARY.upper(), server_id, user.id, user.key) if secret in text]
    assert {labels["route"] for _, labels in found if "route" in labels} <= templates | {"unmatched"}
    for method, route in [("GET", "unmatched"), ("other", "unmatched"), ("GET", "/tools/{tool_id}")]:
        assert ("toolscout_requests_total", {"method": method, "route": route, "status": "404"}) in found


async def test_metrics_require_the_metrics_key_when_it_is_set(open_service: OpenService) -> None:
    async with open_service(metrics_key=SecretStr(METRICS_KEY)) as service, open_client(service) as http:
        for wrong in ({}, {"Authorization": f"Bearer {ADMIN_KEY}"}, {"Authorization": METRICS_KEY}):
            answer = await http.get("/metrics", headers=wrong)
            assert_problem(answer, 401)
            assert METRICS_KEY not in answer.text
        assert await scrape(http, Authorization=f"Bearer {METRICS_KEY}")
        twice = [("Authorization", f"Bearer {METRICS_KEY}")] * 2
        assert_problem(await http.get("/metrics", headers=twice), 400)
        assert (await http.get("/healthz")).status_code == 200


class LogLines(logging.Handler):
    """Stores every line as it would be printed."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def entries(self, logger: str) -> list[Json]:
        return [entry for entry in map(orjson.loads, self.lines) if entry["logger"] == logger]


@pytest.fixture
def log() -> Iterator[LogLines]:
    handler = LogLines()
    ours, root = logging.getLogger("toolscout"), logging.getLogger()
    level = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler
    ours.setLevel(level)
    root.removeHandler(handler)


async def test_no_log_line_contains_a_text_or_a_key(
    user: TestUser, admin: httpx.AsyncClient, container: Container, log: LogLines
) -> None:
    server_id = await user.add_tools(tool(f"read_{CANARY}", CANARY), server=CANARY, description=CANARY)
    await user.push(server_id, [{"name": CANARY, "description": [CANARY]}])
    await user.push(server_id, [tool(CANARY, CANARY), tool(CANARY, CANARY)])
    await user.http.put("/core-tools", json={"tools": [tool(f"core_{CANARY}", CANARY)]})
    await user.discover(f"read {CANARY}", tags=[CANARY], keep=[CANARY])
    made = (await admin.post("/keys", json={"kind": "service", "name": CANARY})).json()["key"]
    refused = [
        await user.http.post("/discover", json={"query": CANARY, "limit": 0}),
        await user.http.post("/servers", json={"name": CANARY, "transport": "push"}),
        await user.http.get(f"/{CANARY}", params={"q": CANARY}),
        await user.http.get("/tools", headers={"Authorization": f"Bearer {CANARY}"}),
        await user.http.get("/tools", headers={"X-User-Id": CANARY}),
    ]
    assert [answer.status_code for answer in refused] == [422, 409, 404, 401, 403]

    assert len(log.entries("toolscout.access")) > 10
    assert log.entries("toolscout.worker")
    secrets = [CANARY, CANARY.upper(), user.key, ADMIN_KEY, made, user.key[3:], made[3:]]
    # the HTTP client of the tests logs its requests, too
    ours = [line for line in log.lines if not orjson.loads(line)["logger"].startswith(("httpx", "httpcore"))]
    assert not [line for line in ours for secret in secrets if secret in line]


async def test_a_request_is_logged_once_with_the_id_of_its_response(user: TestUser, log: LogLines) -> None:
    answer = await user.http.post("/discover", json={"query": "list files"}, headers={"X-Request-Id": CANARY})
    assert answer.headers["x-request-id"] != CANARY
    logged = log.entries("toolscout.access")
    [entry] = [each for each in logged if each["request_id"] == answer.headers["x-request-id"]]
    assert (entry["method"], entry["route"], entry["status"]) == ("POST", "/discover", 200)
    assert entry["ms"] > 0
    assert entry["level"] == "info"


def test_the_content_of_a_log_line_cannot_break_it(log: LogLines) -> None:
    logging.getLogger("toolscout.test").info("a\nb\x1b[2J\u2028", extra={"reason": 'x"\n'})
    [line] = [each for each in log.lines if orjson.loads(each)["logger"] == "toolscout.test"]
    assert "\n" not in line
    assert "\x1b" not in line
    assert orjson.loads(line)["reason"] == 'x"\n'
