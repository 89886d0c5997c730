"""Traces: what was done and how long it took, within the caller's trace, and never the content of a request."""

import sys
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.container import Container, open_container
from app.errors import ConfigurationError
from app.local_postgres.postgres import EmbeddedPostgres
from app.observability.tracing import Tracing, make_tracing, open_tracing
from tests.support.clients import TestUser, new_user
from tests.support.factories import make_database, make_settings, outbound_allow, resolve_nothing, tool
from tests.support.mcp_server import FakeMcpServer

CANARY = "canary7712fe"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
async def service(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    mcp_servers: dict[str, FakeMcpServer],
    exporter: InMemorySpanExporter,
) -> AsyncIterator[Container]:
    settings = make_settings(tmp_path_factory.mktemp("tracing"), outbound_allow=outbound_allow(*mcp_servers.values()))
    tracing = make_tracing(SimpleSpanProcessor(exporter))
    async with open_container(settings, make_database(postgres), resolve_nothing, tracing=tracing) as container:
        yield container


@pytest.fixture
async def user(service: Container, exporter: InMemorySpanExporter) -> AsyncIterator[TestUser]:
    async with new_user(service) as user:
        exporter.clear()
        yield user


def get_spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """Return the last span of each name."""
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_discovery_has_spans_for_embedding_and_search(user: TestUser, exporter: InMemorySpanExporter) -> None:
    await user.add_tools(tool("list_files", "Lists files."))
    await user.discover("list the files")
    found = get_spans(exporter)
    whole = found["discover"]
    for part in ("embed", "search"):
        assert found[part].parent == whole.context
    assert dict(whole.attributes or {}) == {
        "toolscout.strategy": "hybrid",
        "toolscout.searched": 1,
        "toolscout.no_match": False,
    }


async def test_spans_join_the_trace_of_the_request_only(user: TestUser, exporter: InMemorySpanExporter) -> None:
    await user.http.post("/discover", json={"query": "list files"}, headers=PARENT)
    joined = get_spans(exporter)["discover"].context
    assert joined is not None
    assert f"{joined.trace_id:032x}" == TRACE_ID
    await user.http.post("/discover", json={"query": "list files"})
    alone = get_spans(exporter)["discover"].context
    assert alone is not None
    assert alone.trace_id != joined.trace_id


async def test_spans_of_a_reindex_and_a_call_contain_no_user_text(
    user: TestUser, exporter: InMemorySpanExporter, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool(f"read_{CANARY}", CANARY)]
    mcp.on_call = {f"read_{CANARY}": lambda _: {"content": [{"type": "text", "text": CANARY}]}}
    await user.connect(mcp, CANARY)
    assert (await user.execute(f"read_{CANARY}", {"path": CANARY})).status_code == 200
    await user.discover(CANARY)
    found = get_spans(exporter)
    assert found.keys() >= {"discover", "embed", "search", "execute", "reindex"}
    assert CANARY not in " ".join(span.to_json() for span in exporter.get_finished_spans())


async def test_a_failure_is_recorded_by_its_code_only(user: TestUser, exporter: InMemorySpanExporter) -> None:
    answer = await user.http.post("/execute", json={"tool_key": CANARY, "arguments": {}})
    assert answer.status_code == 404
    span = get_spans(exporter)["execute"]
    assert span.status.description == "TOOL_NOT_FOUND"
    assert not span.events
    assert CANARY not in span.to_json()


async def test_no_trace_context_is_sent_to_a_users_server(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("work")]
    await user.connect(mcp)
    answer = await user.http.post(
        "/execute", json={"tool_key": (await user.tools())["work"]["id"], "arguments": {}}, headers=PARENT
    )
    assert answer.status_code == 200
    assert len(mcp.calls) == 1
    assert TRACE_ID not in str([(request.headers, request.body) for request in mcp.requests])


def test_the_global_tracer_of_the_library_is_not_set(service: Container) -> None:
    assert service.tracing.enabled
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


async def test_without_a_collector_no_spans_are_recorded(container: Container) -> None:
    assert not container.tracing.enabled
    with Tracing().span("discover") as span:
        assert not span.is_recording()


def test_a_collector_without_the_packages_fails_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not open_tracing(None).enabled
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"toolscout\[otel\]"):
        open_tracing("http://127.0.0.1:4318")
