"""Lists that are fetched from servers: when, how often, and what happens if the answer is bad."""

import asyncio
import json
import logging
import threading
from functools import partial
from typing import Any

import pytest
from starlette.types import ASGIApp

from app.container import Container
from app.indexing import queue
from app.indexing.parsing import MAX_NODES, MAX_TOOL_BYTES
from app.indexing.reindex import reindex_server
from app.indexing.worker import Worker, WorkerConfig
from tests.integration.indexing.conftest import UNUSED_ADDRESS
from tests.support.clients import TestUser, new_user
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.factories import OpenService, outbound_allow, tool
from tests.support.mcp_server import (
    FakeMcpServer,
    Fault,
    drop,
    hang,
    malformed_json,
    raw_result,
    redirect,
    respond_after,
    running_mcp_server,
    status,
    truncated_sse,
    wrong_content_type,
)
from tests.support.worker_steps import (
    Hand,
    asked,
    finished,
    holding,
    levels_of,
    listing_of,
    numbered,
    rows,
    server_of,
    unheard,
    until,
    waiting,
    working,
)

SERVER_FIXTURES = ["mcp", "legacy_mcp", "sse_mcp"]
KEY_COLUMNS = {"mcp_tools": "id", "mcp_tool_embeddings": "tool_id", "mcp_servers": "id"}

Json = dict[str, Any]


@pytest.fixture(params=SERVER_FIXTURES)
def mcp_pool(request: pytest.FixtureRequest) -> FakeMcpServer:
    """Each kind of server in turn."""
    server: FakeMcpServer = request.getfixturevalue(request.param)
    return server


async def register(user: TestUser, server: FakeMcpServer, name: str = "files", **fields: Any) -> str:
    """Register the server without waiting. A header identifies the requests that it receives for this user."""
    given = {"transport": server.transport, "url": server.url, "headers": {"X-Asked-For": user.id}, **fields}
    return await user.add_server(name, **given)


async def connect(user: TestUser, server: FakeMcpServer, name: str = "files", **fields: Any) -> str:
    server_id = await register(user, server, name, **fields)
    [run] = await wait_for_runs(user, server_id)
    assert run["state"] == "succeeded", run
    return server_id


def embedded_texts(fake: FakeEmbeddingServer, server_name: str) -> list[str]:
    """Return the texts of this server only: other tests share the fakes."""
    return [text for request in fake.requests for text in request if f"Server: {server_name}." in text]


def count_listings(server: FakeMcpServer, user: TestUser) -> int:
    """Count the listings for this user only: all tests share the server."""
    return sum(
        request.rpc_method == "tools/list" and request.params.get("cursor") is None
        for request in server.requests
        if request.headers.get("x-asked-for") == user.id
    )


async def runs_of(user: TestUser, server_id: str) -> list[Json]:
    found: list[Json] = (await user.http.get(f"/servers/{server_id}/runs")).json()["items"]
    return found


async def wait_for_runs(user: TestUser, server_id: str, at_least: int = 1) -> list[Json]:
    """Wait until all runs of the server have ended; return them, newest first."""

    async def look() -> list[Json] | None:
        runs = await runs_of(user, server_id)
        ended = len(runs) >= at_least and all(run["finished_at"] for run in runs)
        return runs if ended else None

    return await until(look)


async def wait_until_indexed(user: TestUser, tools: list[Json]) -> None:
    """Wait until the indexed tools equal the listed ones."""

    async def look() -> bool:
        return summarize_listed(tools) == summarize_indexed(await user.tools())

    await until(look)


def summarize_listed(tools: list[Json]) -> dict[str, tuple[str, Json]]:
    return {each["name"]: (each["description"], each["inputSchema"]) for each in tools}


def summarize_indexed(tools: dict[str, Json]) -> dict[str, tuple[str, Json]]:
    return {name: (each["description"], each["input_schema"]) for name, each in tools.items()}


async def row_versions(container: Container, user: TestUser) -> dict[str, list[tuple[Any, ...]]]:
    """Return the transaction that wrote each row: it changes even if a row is rewritten unchanged."""
    found = {
        table: await rows(
            container, f"SELECT {key}, xmin::text FROM {table} WHERE user_id = %(user)s ORDER BY 1", user=user.id
        )
        for table, key in KEY_COLUMNS.items()
    }
    found["users"] = await rows(container, "SELECT id, xmin::text FROM users WHERE id = %(user)s", user=user.id)
    return found


def index_rows(state: dict[str, list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    """Return the versions of tools and vectors. A failure may update the row of the server."""
    return [state["mcp_tools"], state["mcp_tool_embeddings"]]


def counts(run: Json) -> dict[str, int]:
    assert run["state"] == "succeeded", run
    return {name: count for name, count in run["counts"].items() if count}


async def test_a_registered_server_is_listed_automatically_and_its_tools_are_found(
    carol: TestUser, mcp_pool: FakeMcpServer
) -> None:
    mcp_pool.tools = [tool("get_forecast", "Weather forecast for a city."), tool("refund", "Give money back.")]
    server_id = await register(carol, mcp_pool)
    await wait_until_indexed(carol, mcp_pool.tools)
    answer = await carol.discover("weather forecast for my city")
    assert answer["tools"][0]["tool"]["name"] == "get_forecast"
    [run] = await runs_of(carol, server_id)
    assert counts(run)["added"] == 2
    assert run["progress"] == {"done": 2, "total": 2}
    server = await server_of(carol, server_id)
    assert (server["status"], server["last_error"], server["last_cause"]) == ("connected", None, None)
    assert (server["tool_count"], server["pending_count"]) == (2, 0)
    assert count_listings(mcp_pool, carol) == 1


async def test_a_disabled_server_is_listed_when_it_is_enabled(carol: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read")]
    server_id = await register(carol, mcp, enabled=False)
    assert await runs_of(carol, server_id) == []
    assert (await server_of(carol, server_id))["status"] == "disconnected"
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": True})
    await wait_until_indexed(carol, mcp.tools)
    assert count_listings(mcp, carol) == 1
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": False})
    assert len(await runs_of(carol, server_id)) == 1


@pytest.mark.parametrize("changed", ["url", "transport", "headers"])
async def test_a_server_with_changed_connection_settings_is_listed_at_once(
    carol: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, sse_mcp: FakeMcpServer, changed: str
) -> None:
    mcp.tools = [tool("old")]
    server_id = await connect(carol, mcp)
    target = {"url": legacy_mcp, "transport": sse_mcp, "headers": mcp}[changed]
    target.tools = [tool("new")]
    headers = {"X-Asked-For": f"{carol.id} again"}
    change: Json = {"headers": headers} | ({"url": target.url} if target is not mcp else {})
    change |= {"transport": target.transport} if changed == "transport" else {}
    answer = await carol.http.patch(f"/servers/{server_id}", json=change)
    assert answer.json()["status"] == "disconnected"
    await wait_until_indexed(carol, target.tools)
    new_requests = [each for each in target.requests if each.headers.get("x-asked-for") == headers["X-Asked-For"]]
    assert sum(each.rpc_method == "tools/list" for each in new_requests) == 1
    assert (await server_of(carol, server_id))["status"] == "connected"


async def test_a_change_that_does_not_affect_tools_causes_no_listing(carol: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read")]
    server_id = await connect(carol, mcp)
    changes: list[Json] = [{"description": "My files."}, {"tags": []}, {"name": "files"}]
    for change in changes:
        assert (await carol.http.patch(f"/servers/{server_id}", json=change)).status_code == 200
    assert len(await runs_of(carol, server_id)) == 1
    assert count_listings(mcp, carol) == 1


async def test_a_renamed_server_is_found_by_its_new_name_while_it_is_unreachable(
    service: Container, carol: TestUser, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools = [unheard("read")]
    server_id = await connect(carol, mcp, "old")
    fake.requests = []
    mcp.fault = Fault(status(503))
    await carol.http.patch(f"/servers/{server_id}", json={"name": "brand-new"})
    [renaming, _] = await wait_for_runs(carol, server_id, at_least=2)
    assert counts(renaming) == {"unchanged": 1, "embedded": 1}
    assert len(embedded_texts(fake, "brand new")) == 1
    statement = "SELECT server_name FROM mcp_tool_embeddings WHERE user_id = %(u)s"
    assert await rows(service, statement, u=carol.id) == [("brand-new",)]
    assert count_listings(mcp, carol) == 1
    assert (await server_of(carol, server_id))["status"] == "connected"


async def test_a_tagged_server_is_indexed_again_without_a_listing(
    carol: TestUser, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools = [unheard("read")]
    server_id = await connect(carol, mcp, "tagged")
    fake.requests = []
    await carol.http.patch(f"/servers/{server_id}", json={"tags": ["brand-new"]})
    [tagging, _] = await wait_for_runs(carol, server_id, at_least=2)
    assert counts(tagging) == {"unchanged": 1, "embedded": 1}
    [text] = embedded_texts(fake, "tagged")
    assert "Tags: brand new." in text
    assert count_listings(mcp, carol) == 1


async def test_a_reindex_returns_at_once_or_waits_for_the_run(carol: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read")]
    server_id = await connect(carol, mcp)
    mcp.stalled.add("tools/list")
    accepted = await carol.http.post(f"/servers/{server_id}/reindex")
    assert (accepted.status_code, accepted.json()["state"]) == (202, "queued")
    mcp.stalled.clear()
    assert counts(await finished(carol, accepted.json()["id"])) == {"unchanged": 1}
    waited = await carol.http.post(f"/servers/{server_id}/reindex", params={"wait": True})
    assert (waited.status_code, waited.json()["state"]) == (200, "succeeded")
    assert (await carol.http.get(f"/runs/{waited.json()['id']}")).json() == waited.json()
    assert count_listings(mcp, carol) == 3


async def test_reindex_all_lists_all_servers_of_a_user(
    carol: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("read")], [tool("write")]
    server_ids = {await connect(carol, mcp, "one"), await connect(carol, legacy_mcp, "two")}
    mcp.tools, legacy_mcp.tools = [tool("read_2")], [tool("write_2")]
    answer = await carol.http.post("/reindex")
    assert answer.status_code == 202
    assert {run["server_id"] for run in answer.json()["items"]} == server_ids
    for run in answer.json()["items"]:
        assert counts(await finished(carol, run["id"]))["added"] == 1
    await wait_until_indexed(carol, [*mcp.tools, *legacy_mcp.tools])


async def test_reindex_all_can_wait_for_the_runs(
    carol: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    for name, server in (("one", mcp), ("two", legacy_mcp)):
        await connect(carol, server, name)
        server.tools, server.latency_s = (
            [tool(f"tool_of_{name}")],
            0.1,
        )  # slower than the request alone
    answer = await carol.http.post("/reindex", params={"wait": True})
    assert answer.status_code == 200
    assert [counts(run)["added"] for run in answer.json()["items"]] == [1, 1]
    assert set(await carol.tools()) == {"tool_of_one", "tool_of_two"}


async def test_reindex_all_starts_without_delay(
    open_service: OpenService, mcp: FakeMcpServer, fake: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is notified after the commit: if it polled earlier, it would wait for an hour."""
    monkeypatch.setattr("app.container.WorkerConfig", partial(WorkerConfig, poll_interval_s=3600.0))
    async with (
        open_service(**fake.settings(outbound_allow=outbound_allow(mcp))) as container,
        new_user(container) as user,
    ):
        await connect(user, mcp)
        for _ in range(3):
            [run] = (await user.http.post("/reindex")).json()["items"]
            assert (await finished(user, run["id"]))["state"] == "succeeded"


async def test_the_index_follows_the_servers_list(service: Container, carol: TestUser, mcp_pool: FakeMcpServer) -> None:
    path = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    read, write, move = tool("read", "Read a file."), tool("write", "Write a file."), tool("move", "Move a file.")
    generations: list[tuple[list[Json], dict[str, int]]] = [
        ([read], {"added": 1}),
        ([read, write], {"added": 1, "unchanged": 1}),
        ([{**read, "description": "Reads it whole."}, write], {"changed": 1, "unchanged": 1}),
        ([{**read, "inputSchema": path}, write], {"changed": 1, "unchanged": 1}),
        ([write, move], {"added": 1, "removed": 1, "unchanged": 1}),
        ([move, write], {"unchanged": 2}),
    ]
    server_id = ""
    for tools, expected in generations:
        mcp_pool.tools = tools
        if server_id:
            run = await carol.reindex(server_id)
        else:
            server_id = await connect(carol, mcp_pool)
            [run] = await runs_of(carol, server_id)
        assert {name: count for name, count in counts(run).items() if name != "embedded"} == expected
        assert summarize_indexed(await carol.tools()) == summarize_listed(tools)
        narrow = await rows(service, "SELECT tool_name FROM mcp_tool_embeddings WHERE user_id = %(u)s", u=carol.id)
        assert sorted(name for (name,) in narrow) == sorted(summarize_listed(tools))
        assert (await server_of(carol, server_id))["tool_count"] == len(tools)


async def test_all_fields_of_a_tool_are_stored_as_the_server_sends_them(carol: TestUser, mcp: FakeMcpServer) -> None:
    whole = tool(
        "whole",
        "Has it all.",
        title="The whole",
        outputSchema={"type": "object", "properties": {"z": {}, "a": {}}},
        annotations={"readOnlyHint": True},
    )
    mcp.tools = [whole, tool("bare")]
    await connect(carol, mcp)
    found = await carol.tools()
    assert (found["whole"]["title"], found["whole"]["annotations"]) == ("The whole", {"readOnlyHint": True})
    assert list(found["whole"]["output_schema"]["properties"]) == ["z", "a"]
    assert (found["bare"]["title"], found["bare"]["output_schema"], found["bare"]["annotations"]) == (None, None, None)


async def test_pages_are_followed_to_the_end(carol: TestUser, mcp_pool: FakeMcpServer) -> None:
    mcp_pool.tools, mcp_pool.page_size = numbered(7), 2
    await connect(carol, mcp_pool)
    assert summarize_indexed(await carol.tools()) == summarize_listed(mcp_pool.tools)
    assert count_listings(mcp_pool, carol) == 1


async def test_an_unchanged_server_causes_no_embedding_and_no_write(
    service: Container, carol: TestUser, mcp_pool: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp_pool.tools = [unheard("read"), unheard("write")]
    server_id = await connect(carol, mcp_pool, "unchanged")
    assert len(embedded_texts(fake, "unchanged")) == 2
    before, fake.requests = await row_versions(service, carol), []
    mcp_pool.tools = mcp_pool.tools[::-1]
    assert counts(await carol.reindex(server_id)) == {"unchanged": 2}
    assert count_listings(mcp_pool, carol) == 2
    assert embedded_texts(fake, "unchanged") == []
    assert await row_versions(service, carol) == before
    mcp_pool.tools = [unheard("read"), mcp_pool.tools[0]]
    assert counts(await carol.reindex(server_id)) == {"changed": 1, "unchanged": 1, "embedded": 1}
    assert len(embedded_texts(fake, "unchanged")) == 1
    after = await row_versions(service, carol)
    assert all(after[table] != before[table] for table in after)


@pytest.mark.parametrize("latency_s", [0.0, 0.3])
async def test_a_hundred_simultaneous_requests_cause_at_most_two_listings(
    carol: TestUser, mcp: FakeMcpServer, latency_s: float
) -> None:
    mcp.tools = numbered(5)
    server_id = await connect(carol, mcp)
    mcp.latency_s, mcp.tools = latency_s, numbered(6, "new")
    before = count_listings(mcp, carol)
    answers = await asyncio.gather(*(carol.http.post(f"/servers/{server_id}/reindex") for _ in range(100)))
    assert all(answer.is_success for answer in answers)
    ended = [await finished(carol, run_id) for run_id in {answer.json()["id"] for answer in answers}]
    assert {run["state"] for run in ended} == {"succeeded"}
    assert 1 <= count_listings(mcp, carol) - before <= 2
    assert summarize_indexed(await carol.tools()) == summarize_listed(mcp.tools)
    assert (await carol.reindex(server_id))["id"] not in {run["id"] for run in ended}


async def test_simultaneous_waiting_requests_all_get_a_finished_run(carol: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await connect(carol, mcp)
    mcp.latency_s, mcp.tools = 0.1, numbered(3)
    before = count_listings(mcp, carol)
    runs = await asyncio.gather(*(carol.reindex(server_id) for _ in range(20)))
    assert {run["state"] for run in runs} == {"succeeded"}
    assert 1 <= count_listings(mcp, carol) - before <= 2


@pytest.mark.parametrize("everything", [False, True])
async def test_a_delayed_request_reuses_the_run_that_started_meanwhile(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, everything: bool
) -> None:
    async def request() -> Json:
        answer = (await alice.http.post("/reindex" if everything else f"/servers/{server_id}/reindex")).json()
        run: Json = answer["items"][0] if everything else answer
        return run

    server_id = await register(alice, mcp)
    async with holding(hand.container, "LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE") as blocker:
        pending = asyncio.create_task(request())
        await waiting(blocker, 1, "FROM api_keys WHERE key_hash")
        performed = await hand.perform()
    run = await pending
    assert (run["id"], run["state"]) == (performed.id, "succeeded")
    assert (await request())["id"] != performed.id


async def test_simultaneous_reindex_all_requests_cause_at_most_two_listings_per_server(
    carol: TestUser, mcp: FakeMcpServer
) -> None:
    for name in ("one", "two"):
        await connect(carol, mcp, name)
    before = count_listings(mcp, carol)
    answers = await asyncio.gather(*(carol.http.post("/reindex") for _ in range(30)))
    run_ids = {run["id"] for answer in answers for run in answer.json()["items"]}
    assert {(await finished(carol, run_id))["state"] for run_id in run_ids} == {"succeeded"}
    assert 2 <= count_listings(mcp, carol) - before <= 4


BROKEN_ANSWERS: dict[str, tuple[ASGIApp, str]] = {
    "malformed": (malformed_json, "protocol"),
    "not-mcp": (wrong_content_type, "protocol"),
    "half": (truncated_sse, "closed"),
    "dropped": (drop, "closed"),
    "no-list": (listing_of("7"), "protocol"),
    "no-tools": (raw_result(b"{}"), "protocol"),
    "too-deep-to-read": (listing_of("[" * 5000 + "]" * 5000), "protocol"),
    "error-page": (status(500), "status_500"),
    "teapot": (status(418), "status_418"),
}


@pytest.mark.parametrize(("answer", "cause"), BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS.keys())
async def test_a_broken_listing_keeps_the_old_index_and_reports_the_cause(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, answer: ASGIApp, cause: str
) -> None:
    mcp.tools = numbered(3)
    async with working(hand, retry_s=0.01):
        server_id = await connect(alice, mcp)
        before, old = index_rows(await row_versions(hand.container, alice)), mcp.tools
        mcp.tools, mcp.fault = numbered(5, "new"), Fault(answer, on={"tools/list"})
        run = await reindex(alice, server_id)
        await assert_failed(alice, server_id, run, cause)
        assert summarize_indexed(await alice.tools()) == summarize_listed(old)
        assert index_rows(await row_versions(hand.container, alice)) == before
        mcp.fault = None
        assert (await reindex(alice, server_id))["state"] == "succeeded"
        server = await server_of(alice, server_id)
    assert summarize_indexed(await alice.tools()) == summarize_listed(mcp.tools)
    assert (server["status"], server["last_error"], server["last_cause"]) == ("connected", None, None)


async def reindex(user: TestUser, server_id: str, **query: Any) -> Json:
    answer = await user.http.post(f"/servers/{server_id}/reindex", params=query)
    return await finished(user, answer.json()["id"])


async def assert_failed(user: TestUser, server_id: str, run: Json, cause: str) -> None:
    """The run and the server report the same cause."""
    assert run["state"] == "failed", run
    assert run["error"]["cause"] == cause, run
    server = await server_of(user, server_id)
    expected = "disconnected" if cause in ("closed", "refused", "timeout") else "error"
    assert (server["status"], server["last_cause"]) == (expected, cause)
    assert server["last_error"] == run["error"]["message"]


async def test_a_listing_that_fails_on_its_second_page_changes_nothing(
    hand: Hand, alice: TestUser, mcp_pool: FakeMcpServer
) -> None:
    mcp_pool.tools = numbered(3)
    async with working(hand):
        server_id = await connect(alice, mcp_pool)
        before = index_rows(await row_versions(hand.container, alice))
        mcp_pool.tools, mcp_pool.page_size, mcp_pool.fail_page = numbered(5, "new"), 2, 2
        run = await reindex(alice, server_id)
        await assert_failed(alice, server_id, run, "server_error")
        assert index_rows(await row_versions(hand.container, alice)) == before
        mcp_pool.fail_page = None
        await reindex(alice, server_id)
    assert summarize_indexed(await alice.tools()) == summarize_listed(mcp_pool.tools)


async def test_a_list_with_repeating_cursors_changes_nothing(hand: Hand, alice: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = numbered(2)
    async with working(hand):
        server_id = await connect(alice, mcp)
        old, mcp.tools, mcp.cursors = mcp.tools, numbered(3, "new"), "repeat"
        await assert_failed(alice, server_id, await reindex(alice, server_id), "endless_listing")
    assert summarize_indexed(await alice.tools()) == summarize_listed(old)


async def test_a_list_that_becomes_empty_is_accepted_only_with_force(carol: TestUser, mcp_pool: FakeMcpServer) -> None:
    mcp_pool.tools = numbered(2)
    server_id = await connect(carol, mcp_pool)
    old, mcp_pool.tools = mcp_pool.tools, []
    await assert_failed(carol, server_id, await carol.reindex(server_id), "empty_listing")
    assert summarize_indexed(await carol.tools()) == summarize_listed(old)
    assert counts(await carol.reindex(server_id, force=True)) == {"removed": 2}
    assert await carol.tools() == {}
    server = await server_of(carol, server_id)
    assert (server["status"], server["last_error"], server["tool_count"]) == ("connected", None, 0)


async def test_the_first_list_may_be_empty(carol: TestUser, mcp_pool: FakeMcpServer) -> None:
    server_id = await connect(carol, mcp_pool)
    [run] = await runs_of(carol, server_id)
    assert counts(run) == {}
    server = await server_of(carol, server_id)
    assert (server["status"], server["tool_count"]) == ("connected", 0)


def nested_schema(depth: int) -> Json:
    schema: Json = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BAD_TOOLS: dict[str, tuple[str, str]] = {
    "large": (json.dumps(tool("bad", "x" * MAX_TOOL_BYTES)), "larger than"),
    "deep": (json.dumps(tool("bad", inputSchema=nested_schema(40))), "deeper than"),
    "wide": (json.dumps(tool("bad", inputSchema={"type": "object", "allOf": [{}] * MAX_NODES})), "lists"),
    "nul": (json.dumps(tool("bad", "before\0after")), "NUL"),
    "nul-in-a-key": (json.dumps(tool("bad", inputSchema={"type": "object", "a\0b": 1})), "NUL"),
    "nul-in-its-name": (json.dumps(tool("b\0ad")), "cannot be displayed"),
    "escape-in-its-name": (json.dumps(tool("b\x1b[2Jad")), "cannot be displayed"),
    "not-a-number": (json.dumps(tool("bad", inputSchema={"type": "object", "maximum": float("nan")})), "JSON"),
    "infinity": (json.dumps(tool("bad", inputSchema={"type": "object", "maximum": float("inf")})), "JSON"),
    "beyond-all-numbers": (json.dumps(tool("bad", inputSchema={"type": "object", "maximum": 10**400})), "JSON"),
    "half-an-emoji": (json.dumps(tool("bad", "An owl \ud83d")), "surrogate"),
    "half-an-emoji-in-a-key": (json.dumps(tool("bad", inputSchema={"type": "object", "\udd89": 1})), "surrogate"),
    "half-an-emoji-in-its-name": (json.dumps(tool("b\ud83dad")), "cannot be displayed"),
    "no-name": (json.dumps(tool("")), "needs a name"),
    "long-name": (json.dumps(tool("b" * 200)), "longer than"),
    # for one of these the SDK would refuse the whole list
    "no-object": (json.dumps(tool("bad", inputSchema={"type": "strin"})), "must describe an object"),
    "no-properties": (json.dumps(tool("bad", inputSchema={"type": "object", "properties": 5})), "properties"),
    "no-list": (json.dumps(tool("bad", inputSchema={"type": "object", "required": "x"})), "list of names"),
    "no-schema": (json.dumps({"name": "bad", "inputSchema": 7}), "`inputSchema` must be an object"),
    "no-text": (json.dumps(tool("bad") | {"description": ["x"]}), "`description` must be a string"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_TOOLS.values(), ids=BAD_TOOLS.keys())
async def test_an_invalid_tool_is_refused_and_its_siblings_are_indexed(
    carol: TestUser, mcp: FakeMcpServer, bad: str, reason: str
) -> None:
    siblings = json.dumps(tool("first")), json.dumps(tool("last"))
    mcp.fault = Fault(listing_of(f"[{siblings[0]}, {bad}, {siblings[1]}]"), on={"tools/list"})
    server_id = await connect(carol, mcp)
    [run] = await runs_of(carol, server_id)
    assert run["counts"]["refused"] == 1
    [refused] = run["refused"]
    assert reason in refused["reason"]
    assert refused["name"].isprintable()
    assert set(await carol.tools()) == {"first", "last"}


async def test_a_schema_without_a_type_is_an_object_schema(carol: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [{"name": "read", "inputSchema": {"properties": {"path": {"type": "string"}}}}]
    server_id = await connect(carol, mcp)
    assert (await runs_of(carol, server_id))[0]["refused"] == []
    [read] = (await carol.discover("read", format="anthropic"))["definitions"]
    assert read["input_schema"] == {"type": "object", "properties": {"path": {"type": "string"}}}


async def test_a_temporarily_unreachable_server_is_retried_and_the_cause_is_reported_meanwhile(
    hand: Hand, alice: TestUser, mcp_pool: FakeMcpServer
) -> None:
    mcp_pool.tools = numbered(2)
    mcp_pool.fault = Fault(drop, on={"tools/list"}, times=1)
    mcp_pool.stalled.add("tools/list")  # at the second attempt
    async with working(hand, retry_s=0.3):
        server_id = await register(alice, mcp_pool)

        async def failed_once() -> Json | None:
            [run] = await runs_of(alice, server_id)
            return run if run["error"] else None

        between = await until(failed_once)
        assert (between["state"], between["error"]["cause"], between["finished_at"]) == ("running", "closed", None)
        server = await server_of(alice, server_id)
        assert (server["status"], server["last_cause"]) == ("disconnected", "closed")
        assert server["last_error"] == between["error"]["message"]
        mcp_pool.stalled.clear()
        run = await finished(alice, between["id"])
    assert (run["state"], run["error"]) == ("succeeded", None)
    assert await hand.run_row(run["id"], "attempts") == (2,)
    assert summarize_indexed(await alice.tools()) == summarize_listed(mcp_pool.tools)
    server = await server_of(alice, server_id)
    assert (server["status"], server["last_error"], server["last_cause"]) == ("connected", None, None)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(None, "refused"), (drop, "closed"), (status(503), "status_503")],
    ids=["refused", "closed", "status_503"],
)
async def test_an_unreachable_server_fails_with_its_cause_after_three_attempts(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, answer: ASGIApp | None, cause: str
) -> None:
    mcp.fault = answer and Fault(answer)
    url = f"http://{UNUSED_ADDRESS}/mcp" if answer is None else mcp.url
    async with working(hand, retry_s=0.01):
        server_id = await register(alice, mcp, url=url)
        [run] = await wait_for_runs(alice, server_id)
    await assert_failed(alice, server_id, run, cause)
    assert await hand.run_row(run["id"], "attempts") == (queue.MAX_ATTEMPTS,)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (status(401), "unauthorized"),
        (status(403), "unauthorized"),
        (redirect("http://127.0.0.1:1/mcp"), "redirect"),
        (status(404), "status_404"),
    ],
    ids=["401", "403", "redirect", "404"],
)
async def test_a_permanent_error_fails_without_a_retry(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, answer: ASGIApp, cause: str
) -> None:
    mcp.tools, mcp.fault = numbered(1), Fault(answer)
    async with working(hand, retry_s=30.0):
        server_id = await register(alice, mcp)
        [run] = await wait_for_runs(alice, server_id)
        await assert_failed(alice, server_id, run, cause)
        assert await hand.run_row(run["id"], "attempts") == (1,)
        mcp.fault = None
        assert (await reindex(alice, server_id))["state"] == "succeeded"


async def test_a_server_recovers_when_its_refused_credentials_are_changed(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools, mcp.fault = numbered(2), Fault(status(401))
    async with working(hand):
        server_id = await register(alice, mcp)
        [run] = await wait_for_runs(alice, server_id)
        await assert_failed(alice, server_id, run, "unauthorized")
        mcp.fault = None
        await alice.http.patch(f"/servers/{server_id}", json={"headers": {"Authorization": "Bearer right"}})
        await wait_until_indexed(alice, mcp.tools)
    assert (await server_of(alice, server_id))["status"] == "connected"


async def test_no_connection_to_the_database_is_held_while_a_server_hangs(
    open_service: OpenService, mcp: FakeMcpServer, fake: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.engine._POOL_WAIT_S", 5)  # a listing may take thirty seconds
    mcp.fault = Fault(hang, on={"tools/list"})
    options = fake.settings(database_pool_size=1, outbound_allow=outbound_allow(mcp))
    async with open_service(**options) as container, new_user(container) as user:
        await user.add_tools(tool("get_forecast", "Weather forecast for a city."), server="weather")
        server_id = await register(user, mcp)
        waiting = asyncio.create_task(user.http.post(f"/servers/{server_id}/reindex", params={"wait": True}))
        await until(lambda: value(count_listings(mcp, user) == 1))
        # they need the only connection of the pool, and would get 503 without it
        assert (await user.http.get("/servers")).status_code == 200
        assert (await user.discover("weather forecast"))["tools"]
        assert not waiting.done()
        mcp.tools, mcp.fault = numbered(2), None
        mcp.cut_connections()
        assert (await waiting).json()["state"] == "succeeded"
        assert {"tool_000", "tool_001"} < set(await user.tools())


async def value(truth: bool) -> bool:
    return truth


async def test_hanging_servers_of_one_user_do_not_block_another_user(
    open_service: OpenService, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.fault, legacy_mcp.tools = Fault(hang, on={"tools/list"}), numbered(3)
    options = fake.settings(
        outbound_allow=outbound_allow(mcp, legacy_mcp),
        listing_concurrency=5,
        listings_per_user=4,
        list_timeout_s=600,
    )
    async with open_service(**options) as container, new_user(container) as stuck, new_user(container) as user:
        for number in range(50):
            await register(stuck, mcp, f"server-{number}")
        await until(lambda: value(count_listings(mcp, stuck) == 4))
        await connect(user, legacy_mcp)
        assert summarize_indexed(await user.tools()) == summarize_listed(legacy_mcp.tools)
        assert count_listings(mcp, stuck) == 4
        mcp.fault = None
        mcp.cut_connections()


async def test_a_server_whose_url_changes_during_a_listing_ends_with_the_tools_of_the_new_url(
    carol: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("old")], [tool("new")]
    server_id = await connect(carol, mcp)
    mcp.tools = [tool("older")]
    mcp.stalled.add("tools/list")
    await carol.http.post(f"/servers/{server_id}/reindex")
    await until(lambda: value(count_listings(mcp, carol) == 2))
    await carol.http.patch(f"/servers/{server_id}", json={"url": legacy_mcp.url})
    mcp.stalled.clear()
    shown = set()
    while not all(run["finished_at"] for run in await runs_of(carol, server_id)):
        shown |= set(await carol.tools())
    assert shown <= {"old", "new"}
    assert summarize_indexed(await carol.tools()) == summarize_listed(legacy_mcp.tools)
    assert {run["state"] for run in await runs_of(carol, server_id)} == {"succeeded"}
    server = await server_of(carol, server_id)
    assert (server["status"], server["last_error"], server["tool_count"]) == ("connected", None, 1)


async def test_a_server_whose_url_changes_during_embedding_is_listed_at_the_new_url(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools, legacy_mcp.tools = [unheard("old")], [unheard("new")]
    server_id = await register(alice, mcp)
    fake.mode = "hang"
    running = asyncio.create_task(hand.perform())
    await asked(fake)
    await alice.http.patch(f"/servers/{server_id}", json={"url": legacy_mcp.url})
    fake.mode = "ok"
    fake.release()
    await running
    assert summarize_indexed(await alice.tools()) == summarize_listed(legacy_mcp.tools)
    assert (await hand.perform()).server_id == server_id
    assert summarize_indexed(await alice.tools()) == summarize_listed(legacy_mcp.tools)


@pytest.mark.parametrize("stage", ["listing", "embedding"])
async def test_a_server_deleted_during_a_run_leaves_no_rows(
    service: Container,
    carol: TestUser,
    mcp: FakeMcpServer,
    fake: FakeEmbeddingServer,
    caplog: pytest.LogCaptureFixture,
    stage: str,
) -> None:
    mcp.tools = [unheard("read")]
    if stage == "listing":
        mcp.stalled.add("tools/list")
    else:
        fake.mode = "hang"
    with caplog.at_level(logging.INFO, "toolscout.worker"):
        deleted = await register(carol, mcp, "deleted")
        await until(lambda: value(bool(count_listings(mcp, carol)) and (stage == "listing" or bool(fake.requests))))
        run_id = (await runs_of(carol, deleted))[0]["id"]
        assert (await carol.http.delete(f"/servers/{deleted}")).status_code == 204
        mcp.stalled.clear()
        fake.release()
        await until(lambda: value(bool(levels_of(caplog, run_id))))
    assert levels_of(caplog, run_id) == ["INFO"]
    assert (await carol.http.get(f"/runs/{run_id}")).status_code == 404
    for table in ("mcp_tools", "mcp_tool_embeddings", "index_runs", "mcp_servers"):
        assert await rows(service, f"SELECT FROM {table} WHERE user_id = %(u)s", u=carol.id) == []
    assert await rows(service, "SELECT tool_count FROM users WHERE id = %(u)s", u=carol.id) == [(0,)]
    fake.mode = "ok"
    await connect(carol, mcp, "deleted")
    assert summarize_indexed(await carol.tools()) == summarize_listed(mcp.tools)


async def test_repeated_announcements_of_a_change_cause_one_listing(
    open_service: OpenService, fake: FakeEmbeddingServer
) -> None:
    with (
        running_mcp_server("streamable_http", "modern") as modern,
        running_mcp_server("streamable_http", "legacy") as legacy,
        running_mcp_server("sse", "legacy") as sse,
    ):
        kinds = [modern, legacy, sse]
        options = fake.settings(outbound_allow=outbound_allow(*kinds))
        async with open_service(**options) as container, new_user(container) as user:
            for server in kinds:
                server.tools = [tool(f"old_{server.port}")]
            server_ids = [await connect(user, server, f"at-{server.port}") for server in kinds]
            await until(lambda: value(all(server.streams for server in kinds)))
            for server in kinds:
                server.tools = [tool(f"new_{server.port}")]
                for _ in range(20):
                    server.announce_change()
            await wait_until_indexed(user, [each for server in kinds for each in server.tools])
            for server, server_id in zip(kinds, server_ids, strict=True):
                [announced, _] = await wait_for_runs(user, server_id, at_least=2)
                assert counts(announced)["added"] == 1
                assert count_listings(server, user) == 2
                statement = "SELECT asked_by FROM index_runs WHERE id = %(id)s"
                assert await rows(container, statement, id=announced["id"]) == [(f"server:{server_id}",)]


async def test_servers_are_listed_again_on_schedule_except_pushed_and_disabled_ones(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("read")], [tool("write")]
    async with working(hand):
        server_id = await connect(alice, mcp, "listed")
        disabled = await connect(alice, legacy_mcp, "disabled")
        await alice.http.patch(f"/servers/{disabled}", json={"enabled": False})
        pushed = await alice.add_server("pushed")
        never_listed = await register(alice, legacy_mcp, "never-listed", enabled=False)
    async with working(hand, reindex_every_s=0.3):
        mcp.tools = [tool("read_2")]

        async def has_run_twice_more() -> bool:
            """The next run may be queued already."""
            return sum(bool(run["finished_at"]) for run in await runs_of(alice, server_id)) >= 3

        await until(has_run_twice_more)
    assert "read_2" in await alice.tools()
    assert count_listings(mcp, alice) >= 3
    statement = "SELECT DISTINCT asked_by FROM index_runs WHERE server_id = %(id)s AND started_at IS NOT NULL"
    assert {("schedule",)} < set(await rows(hand.container, statement, id=server_id))
    assert len(await runs_of(alice, disabled)) == 1
    assert await runs_of(alice, pushed) == await runs_of(alice, never_listed) == []
    assert count_listings(legacy_mcp, alice) == 1


async def test_a_server_is_listed_again_when_its_last_run_is_old_enough(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    await register(alice, mcp)
    await hand.perform()
    worker = Worker(hand.indexer, WorkerConfig(slots=None, pending_retry_s=60, reindex_every_s=3600))
    age = "UPDATE index_runs SET created_at = now() - make_interval(secs => %(s)s)"
    for seconds, due in ((3590, 0), (3610, 1), (3610, 1)):
        await rows(hand.container, age, s=seconds)
        assert await worker.enqueue_due() == due
    assert count_listings(mcp, alice) == 1
    await hand.perform()
    assert count_listings(mcp, alice) == 2
    assert await worker.enqueue_due() == 1, "the run that was queued long ago"
    await hand.perform()
    assert await worker.enqueue_due() == 0


async def test_a_disconnected_server_is_listed_again_sooner(hand: Hand, alice: TestUser, mcp: FakeMcpServer) -> None:
    async with working(hand, retry_s=0.01):
        for name, url in (("disconnected", f"http://{UNUSED_ADDRESS}/mcp"), ("there", mcp.url)):
            await wait_for_runs(alice, await register(alice, mcp, name, url=url))
    worker = Worker(hand.indexer, WorkerConfig(slots=None, pending_retry_s=60, reindex_every_s=3600))
    age = "UPDATE index_runs SET created_at = now() - make_interval(secs => %(s)s)"
    for seconds, due in ((290, 0), (310, 1), (3610, 2)):
        await rows(hand.container, age, s=seconds)
        assert await worker.enqueue_due() == due


async def test_a_worker_that_stalled_during_a_listing_and_lost_its_lease_writes_nothing(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    """Its tools are in the vector cache: nothing happens between its listing and its write."""
    mcp.tools = numbered(2, "stale")
    server_id = await register(alice, mcp)
    await hand.perform()
    gate = threading.Event()
    mcp.fault = Fault(respond_after(gate, listing_of(json.dumps(mcp.tools))), on={"tools/list"}, times=1)
    await alice.http.post(f"/servers/{server_id}/reindex")
    stalled = asyncio.create_task(reindex_server(hand.indexer, await hand.take()))
    await until(lambda: value(count_listings(mcp, alice) == 2))
    await hand.expire_leases()
    mcp.tools = numbered(3, "fresh")
    taken_over = await hand.perform()
    before = await row_versions(hand.container, alice)
    gate.set()
    with pytest.raises(queue.LeaseLost):
        await stalled
    assert await row_versions(hand.container, alice) == before
    assert summarize_indexed(await alice.tools()) == summarize_listed(mcp.tools)
    assert await hand.run_row(taken_over.id, "state", "attempts") == ("succeeded", 2)
    assert (await server_of(alice, server_id))["status"] == "connected"


async def test_a_worker_that_lost_its_lease_does_not_report_a_failure_of_the_server(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("read")]
    await register(alice, mcp)
    stalled = await hand.take()
    await hand.expire_leases()
    owner = await hand.take()
    async with hand.container.database.transaction(alice.id) as session:
        await queue.retry_later(session, stalled, "closed", "It broke.", 1.0)
        await queue.fail(session, stalled, "closed", "It broke.", queue.RunSummary())
    server = await server_of(alice, owner.server_id)
    assert (server["last_error"], server["last_cause"]) == (None, None)
    assert await hand.run_row(owner.id, "state", "error") == ("running", None)
    async with hand.container.database.transaction(alice.id) as session:
        await queue.retry_later(session, owner, "closed", "It broke.", 0.0)
    assert (await server_of(alice, owner.server_id))["last_cause"] == "closed"
    await hand.perform()
    assert summarize_indexed(await alice.tools()) == summarize_listed(mcp.tools)
