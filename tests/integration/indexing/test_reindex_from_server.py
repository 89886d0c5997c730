"""Servers that are asked for their tools: when, how often, and what becomes of an answer that is no good."""

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
from tests.conftest import OpenService, TestUser, allowing, new_user, tool
from tests.integration.indexing.conftest import NOBODY
from tests.support.embedding_server import FakeEmbeddingServer
from tests.support.mcp_server import (
    FakeMcpServer,
    Fault,
    behind,
    drop,
    half_sse,
    hang,
    malformed_json,
    redirect,
    running_mcp_server,
    status,
    verbatim,
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

KINDS = ["mcp", "legacy_mcp", "sse_mcp"]
WRITTEN = {"mcp_tools": "id", "mcp_tool_embeddings": "tool_id", "mcp_servers": "id"}

Json = dict[str, Any]


@pytest.fixture(params=KINDS)
def mcp_pool(request: pytest.FixtureRequest) -> FakeMcpServer:
    """Each kind of server in turn."""
    server: FakeMcpServer = request.getfixturevalue(request.param)
    return server


async def register(user: TestUser, server: FakeMcpServer, name: str = "files", **fields: Any) -> str:
    """Without waiting for anything. What the server then receives for this user can be told from the rest."""
    given = {"transport": server.transport, "url": server.url, "headers": {"X-Asked-For": user.id}, **fields}
    return await user.add_server(name, **given)


async def connect(user: TestUser, server: FakeMcpServer, name: str = "files", **fields: Any) -> str:
    server_id = await register(user, server, name, **fields)
    [run] = await ended_runs(user, server_id)
    assert run["state"] == "succeeded", run
    return server_id


def embedded(fake: FakeEmbeddingServer, server_name: str) -> list[str]:
    """Of this server alone: those of other tests, which share the fakes, may still be indexed."""
    return [text for request in fake.requests for text in request if f"Server: {server_name}." in text]


def listings(server: FakeMcpServer, user: TestUser) -> int:
    """Those for this user alone: a server that all tests share may still be asked for others."""
    return sum(
        request.rpc_method == "tools/list" and request.params.get("cursor") is None
        for request in server.requests
        if request.headers.get("x-asked-for") == user.id
    )


async def runs_of(user: TestUser, server_id: str) -> list[Json]:
    found: list[Json] = (await user.http.get(f"/servers/{server_id}/runs")).json()["items"]
    return found


async def ended_runs(user: TestUser, server_id: str, at_least: int = 1) -> list[Json]:
    """All runs of the server, newest first, once each has ended."""

    async def look() -> list[Json] | None:
        runs = await runs_of(user, server_id)
        ended = len(runs) >= at_least and all(run["finished_at"] for run in runs)
        return runs if ended else None

    return await until(look)


async def shows(user: TestUser, tools: list[Json]) -> None:
    """Returns as soon as what is shown is what is offered."""

    async def look() -> bool:
        return offered(tools) == indexed(await user.tools())

    await until(look)


def offered(tools: list[Json]) -> dict[str, tuple[str, Json]]:
    return {each["name"]: (each["description"], each["inputSchema"]) for each in tools}


def indexed(tools: dict[str, Json]) -> dict[str, tuple[str, Json]]:
    return {name: (each["description"], each["input_schema"]) for name, each in tools.items()}


async def written(container: Container, user: TestUser) -> dict[str, list[tuple[Any, ...]]]:
    """Which transaction wrote each row: one that was written again, even unchanged, has another."""
    found = {
        table: await rows(
            container, f"SELECT {key}, xmin::text FROM {table} WHERE user_id = %(user)s ORDER BY 1", user=user.id
        )
        for table, key in WRITTEN.items()
    }
    found["users"] = await rows(container, "SELECT id, xmin::text FROM users WHERE id = %(user)s", user=user.id)
    return found


def index_of(state: dict[str, list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    """What is searched and shown; a failure may write on the server that it failed, which answers show."""
    return [state["mcp_tools"], state["mcp_tool_embeddings"]]


def counts(run: Json) -> dict[str, int]:
    assert run["state"] == "succeeded", run
    return {name: count for name, count in run["counts"].items() if count}


async def test_a_registered_server_is_asked_by_itself_and_its_tools_are_found(
    carol: TestUser, mcp_pool: FakeMcpServer
) -> None:
    mcp_pool.tools = [tool("get_forecast", "Weather forecast for a city."), tool("refund", "Give money back.")]
    server_id = await register(carol, mcp_pool)
    await shows(carol, mcp_pool.tools)
    answer = await carol.discover("weather forecast for my city")
    assert answer["tools"][0]["tool"]["name"] == "get_forecast"
    [run] = await runs_of(carol, server_id)
    assert counts(run)["added"] == 2
    assert run["progress"] == {"done": 2, "total": 2}
    server = await server_of(carol, server_id)
    assert (server["status"], server["last_error"], server["last_cause"]) == ("connected", None, None)
    assert (server["tool_count"], server["pending_count"]) == (2, 0)
    assert listings(mcp_pool, carol) == 1


async def test_a_disabled_server_is_asked_when_it_is_enabled(carol: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read")]
    server_id = await register(carol, mcp, enabled=False)
    assert await runs_of(carol, server_id) == []
    assert (await server_of(carol, server_id))["status"] == "disconnected"
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": True})
    await shows(carol, mcp.tools)
    assert listings(mcp, carol) == 1
    await carol.http.patch(f"/servers/{server_id}", json={"enabled": False})
    assert len(await runs_of(carol, server_id)) == 1


@pytest.mark.parametrize("changed", ["url", "transport", "headers"])
async def test_a_changed_connection_is_asked_at_once(
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
    await shows(carol, target.tools)
    asked_anew = [each for each in target.requests if each.headers.get("x-asked-for") == headers["X-Asked-For"]]
    assert sum(each.rpc_method == "tools/list" for each in asked_anew) == 1
    assert (await server_of(carol, server_id))["status"] == "connected"


async def test_a_change_that_says_nothing_of_the_tools_asks_nobody(carol: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read")]
    server_id = await connect(carol, mcp)
    for change in ({"description": "My files."}, {"tags": ["mine"]}, {"name": "files"}):
        assert (await carol.http.patch(f"/servers/{server_id}", json=change)).status_code == 200
    assert len(await runs_of(carol, server_id)) == 1
    assert listings(mcp, carol) == 1


async def test_a_renamed_server_is_searched_under_its_new_name_although_it_is_away(
    service: Container, carol: TestUser, mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools = [unheard("read")]
    server_id = await connect(carol, mcp, "old")
    fake.requests = []
    mcp.fault = Fault(status(503))
    await carol.http.patch(f"/servers/{server_id}", json={"name": "brand-new"})
    [renaming, _] = await ended_runs(carol, server_id, at_least=2)
    assert counts(renaming) == {"unchanged": 1, "embedded": 1}
    assert len(embedded(fake, "brand new")) == 1
    statement = "SELECT server_name FROM mcp_tool_embeddings WHERE user_id = %(u)s"
    assert await rows(service, statement, u=carol.id) == [("brand-new",)]
    assert listings(mcp, carol) == 1
    assert (await server_of(carol, server_id))["status"] == "connected"


async def test_a_reindex_is_accepted_at_once_and_can_be_waited_for(carol: TestUser, mcp: FakeMcpServer) -> None:
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
    assert listings(mcp, carol) == 3


async def test_all_servers_of_a_user_are_asked_and_begun_at_once(
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
    await shows(carol, [*mcp.tools, *legacy_mcp.tools])


async def test_a_reindex_of_all_can_be_waited_for(
    carol: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    for name, server in (("one", mcp), ("two", legacy_mcp)):
        await connect(carol, server, name)
        server.tools, server.latency_s = [tool(f"tool_of_{name}")], 0.1  # who does not wait sees it under way
    answer = await carol.http.post("/reindex", params={"wait": True})
    assert answer.status_code == 200
    assert [counts(run)["added"] for run in answer.json()["items"]] == [1, 1]
    assert set(await carol.tools()) == {"tool_of_one", "tool_of_two"}


async def test_a_reindex_of_all_begins_without_delay(
    open_service: OpenService, mcp: FakeMcpServer, fake: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is woken when there is something to find: had it looked too early, it would rest for an hour."""
    monkeypatch.setattr("app.container.WorkerConfig", partial(WorkerConfig, idle_s=3600.0))
    async with open_service(**fake.settings(outbound_allow=allowing(mcp))) as container, new_user(container) as user:
        await connect(user, mcp)
        for _ in range(3):
            [run] = (await user.http.post("/reindex")).json()["items"]
            assert (await finished(user, run["id"]))["state"] == "succeeded"


async def test_what_is_indexed_follows_what_the_server_offers(
    service: Container, carol: TestUser, mcp_pool: FakeMcpServer
) -> None:
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
        assert indexed(await carol.tools()) == offered(tools)
        narrow = await rows(service, "SELECT tool_name FROM mcp_tool_embeddings WHERE user_id = %(u)s", u=carol.id)
        assert sorted(name for (name,) in narrow) == sorted(offered(tools))
        assert (await server_of(carol, server_id))["tool_count"] == len(tools)


async def test_all_fields_of_a_tool_are_taken_as_the_server_sends_them(carol: TestUser, mcp: FakeMcpServer) -> None:
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
    assert indexed(await carol.tools()) == offered(mcp_pool.tools)
    assert listings(mcp_pool, carol) == 1


async def test_an_unchanged_server_costs_no_vector_and_writes_no_row(
    service: Container, carol: TestUser, mcp_pool: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp_pool.tools = [unheard("read"), unheard("write")]
    server_id = await connect(carol, mcp_pool, "unchanged")
    assert len(embedded(fake, "unchanged")) == 2
    before, fake.requests = await written(service, carol), []
    mcp_pool.tools = mcp_pool.tools[::-1]
    assert counts(await carol.reindex(server_id)) == {"unchanged": 2}
    assert listings(mcp_pool, carol) == 2
    assert embedded(fake, "unchanged") == []
    assert await written(service, carol) == before
    mcp_pool.tools = [unheard("read"), mcp_pool.tools[0]]
    assert counts(await carol.reindex(server_id)) == {"changed": 1, "unchanged": 1, "embedded": 1}
    assert len(embedded(fake, "unchanged")) == 1
    after = await written(service, carol)
    assert all(after[table] != before[table] for table in after)


@pytest.mark.parametrize("latency_s", [0.0, 0.3])
async def test_a_hundred_who_ask_at_once_cost_two_listings(
    carol: TestUser, mcp: FakeMcpServer, latency_s: float
) -> None:
    mcp.tools = numbered(5)
    server_id = await connect(carol, mcp)
    mcp.latency_s, mcp.tools = latency_s, numbered(6, "new")
    before = listings(mcp, carol)
    answers = await asyncio.gather(*(carol.http.post(f"/servers/{server_id}/reindex") for _ in range(100)))
    assert all(answer.is_success for answer in answers)
    ended = [await finished(carol, run_id) for run_id in {answer.json()["id"] for answer in answers}]
    assert {run["state"] for run in ended} == {"succeeded"}
    assert 1 <= listings(mcp, carol) - before <= 2
    assert indexed(await carol.tools()) == offered(mcp.tools)
    assert (await carol.reindex(server_id))["id"] not in {run["id"] for run in ended}


async def test_all_who_wait_at_once_get_a_run_that_has_ended(carol: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await connect(carol, mcp)
    mcp.latency_s, mcp.tools = 0.1, numbered(3)
    before = listings(mcp, carol)
    runs = await asyncio.gather(*(carol.reindex(server_id) for _ in range(20)))
    assert {run["state"] for run in runs} == {"succeeded"}
    assert 1 <= listings(mcp, carol) - before <= 2


@pytest.mark.parametrize("everything", [False, True])
async def test_who_was_held_up_is_served_by_the_run_that_began_meanwhile(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, everything: bool
) -> None:
    async def ask() -> Json:
        answer = (await alice.http.post("/reindex" if everything else f"/servers/{server_id}/reindex")).json()
        run: Json = answer["items"][0] if everything else answer
        return run

    server_id = await register(alice, mcp)
    hand.container.authenticator.clear_cache()
    async with holding(hand.container, "LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE") as blocker:
        asking = asyncio.create_task(ask())
        await waiting(blocker, 1)
        performed = await hand.perform()
    run = await asking
    assert (run["id"], run["state"]) == (performed.id, "succeeded")
    assert (await ask())["id"] != performed.id


async def test_many_who_ask_for_all_servers_cost_two_listings_each(carol: TestUser, mcp: FakeMcpServer) -> None:
    for name in ("one", "two"):
        await connect(carol, mcp, name)
    before = listings(mcp, carol)
    answers = await asyncio.gather(*(carol.http.post("/reindex") for _ in range(30)))
    run_ids = {run["id"] for answer in answers for run in answer.json()["items"]}
    assert {(await finished(carol, run_id))["state"] for run_id in run_ids} == {"succeeded"}
    assert 2 <= listings(mcp, carol) - before <= 4


BROKEN: dict[str, tuple[ASGIApp, str]] = {
    "malformed": (malformed_json, "protocol"),
    "not-mcp": (wrong_content_type, "protocol"),
    "half": (half_sse, "closed"),
    "dropped": (drop, "closed"),
    "no-list": (listing_of("7"), "protocol"),
    "no-tools": (verbatim(b"{}"), "protocol"),
    "too-deep-to-read": (listing_of("[" * 5000 + "]" * 5000), "protocol"),
    "error-page": (status(500), "status_500"),
    "teapot": (status(418), "status_418"),
}


@pytest.mark.parametrize(("answer", "cause"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_listing_leaves_the_old_index_whole_and_says_so(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, answer: ASGIApp, cause: str
) -> None:
    mcp.tools = numbered(3)
    async with working(hand, retry_s=0.01):
        server_id = await connect(alice, mcp)
        before, old = index_of(await written(hand.container, alice)), mcp.tools
        mcp.tools, mcp.fault = numbered(5, "new"), Fault(answer, on={"tools/list"})
        run = await reindexed(alice, server_id)
        await says(alice, server_id, run, cause)
        assert indexed(await alice.tools()) == offered(old)
        assert index_of(await written(hand.container, alice)) == before
        mcp.fault = None
        assert (await reindexed(alice, server_id))["state"] == "succeeded"
        server = await server_of(alice, server_id)
    assert indexed(await alice.tools()) == offered(mcp.tools)
    assert (server["status"], server["last_error"], server["last_cause"]) == ("connected", None, None)


async def reindexed(user: TestUser, server_id: str, **query: Any) -> Json:
    answer = await user.http.post(f"/servers/{server_id}/reindex", params=query)
    return await finished(user, answer.json()["id"])


async def says(user: TestUser, server_id: str, run: Json, cause: str) -> None:
    """The same in the run and on the server."""
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
        before = index_of(await written(hand.container, alice))
        mcp_pool.tools, mcp_pool.page_size, mcp_pool.fail_page = numbered(5, "new"), 2, 2
        run = await reindexed(alice, server_id)
        await says(alice, server_id, run, "server_error")
        assert index_of(await written(hand.container, alice)) == before
        mcp_pool.fail_page = None
        await reindexed(alice, server_id)
    assert indexed(await alice.tools()) == offered(mcp_pool.tools)


async def test_a_list_whose_pages_lead_in_a_circle_changes_nothing(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = numbered(2)
    async with working(hand):
        server_id = await connect(alice, mcp)
        old, mcp.tools, mcp.cursors = mcp.tools, numbered(3, "new"), "repeat"
        await says(alice, server_id, await reindexed(alice, server_id), "endless_listing")
    assert indexed(await alice.tools()) == offered(old)


async def test_a_list_that_turns_empty_is_believed_only_by_force(carol: TestUser, mcp_pool: FakeMcpServer) -> None:
    mcp_pool.tools = numbered(2)
    server_id = await connect(carol, mcp_pool)
    old, mcp_pool.tools = mcp_pool.tools, []
    await says(carol, server_id, await carol.reindex(server_id), "empty_listing")
    assert indexed(await carol.tools()) == offered(old)
    assert counts(await carol.reindex(server_id, force=True)) == {"removed": 2}
    assert await carol.tools() == {}
    server = await server_of(carol, server_id)
    assert (server["status"], server["last_error"], server["tool_count"]) == ("connected", None, 0)


async def test_a_first_list_may_be_empty(carol: TestUser, mcp_pool: FakeMcpServer) -> None:
    server_id = await connect(carol, mcp_pool)
    [run] = await runs_of(carol, server_id)
    assert counts(run) == {}
    server = await server_of(carol, server_id)
    assert (server["status"], server["tool_count"]) == ("connected", 0)


def nested(depth: int) -> Json:
    schema: Json = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BAD_TOOLS: dict[str, tuple[str, str]] = {
    "large": (json.dumps(tool("bad", "x" * MAX_TOOL_BYTES)), "larger than"),
    "deep": (json.dumps(tool("bad", inputSchema=nested(40))), "deeper than"),
    "wide": (json.dumps(tool("bad", inputSchema={"type": "object", "allOf": [{}] * MAX_NODES})), "lists"),
    "nul": (json.dumps(tool("bad", "before\0after")), "NUL"),
    "nul-in-a-key": (json.dumps(tool("bad", inputSchema={"type": "object", "a\0b": 1})), "NUL"),
    "nul-in-its-name": (json.dumps(tool("b\0ad")), "cannot be shown"),
    "escape-in-its-name": (json.dumps(tool("b\x1b[2Jad")), "cannot be shown"),
    "not-a-number": (json.dumps(tool("bad", inputSchema={"type": "object", "maximum": float("nan")})), "JSON"),
    "infinity": (json.dumps(tool("bad", inputSchema={"type": "object", "maximum": float("inf")})), "JSON"),
    "beyond-all-numbers": (json.dumps(tool("bad", inputSchema={"type": "object", "maximum": 10**400})), "JSON"),
    "no-name": (json.dumps(tool("")), "needs a name"),
    "long-name": (json.dumps(tool("b" * 200)), "longer than"),
    # which the SDK would refuse with all their siblings
    "no-object": (json.dumps(tool("bad", inputSchema={"type": "strin"})), "must describe an object"),
    "no-properties": (json.dumps(tool("bad", inputSchema={"type": "object", "properties": 5})), "properties"),
    "no-list": (json.dumps(tool("bad", inputSchema={"type": "object", "required": "x"})), "list of names"),
    "no-schema": (json.dumps({"name": "bad", "inputSchema": 7}), "`inputSchema` must be an object"),
    "no-text": (json.dumps(tool("bad") | {"description": ["x"]}), "`description` must be a text"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_TOOLS.values(), ids=BAD_TOOLS.keys())
async def test_a_bad_tool_of_an_asked_server_is_refused_alone(
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


async def test_a_schema_without_its_type_is_taken_for_that_of_an_object(carol: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [{"name": "read", "inputSchema": {"properties": {"path": {"type": "string"}}}}]
    server_id = await connect(carol, mcp)
    assert (await runs_of(carol, server_id))[0]["refused"] == []
    [read] = (await carol.discover("read", format="anthropic"))["definitions"]
    assert read["input_schema"] == {"type": "object", "properties": {"path": {"type": "string"}}}


async def test_a_server_that_was_away_for_a_moment_is_tried_again_and_the_cause_is_shown_meanwhile(
    hand: Hand, alice: TestUser, mcp_pool: FakeMcpServer
) -> None:
    mcp_pool.tools = numbered(2)
    mcp_pool.fault = Fault(drop, on={"tools/list"}, times=1)
    mcp_pool.stalled.add("tools/list")  # the second time it is asked
    async with working(hand, retry_s=0.3):
        server_id = await register(alice, mcp_pool)

        async def tried_once() -> Json | None:
            [run] = await runs_of(alice, server_id)
            return run if run["error"] else None

        between = await until(tried_once)
        assert (between["state"], between["error"]["cause"], between["finished_at"]) == ("running", "closed", None)
        server = await server_of(alice, server_id)
        assert (server["status"], server["last_cause"]) == ("disconnected", "closed")
        assert server["last_error"] == between["error"]["message"]
        mcp_pool.stalled.clear()
        run = await finished(alice, between["id"])
    assert (run["state"], run["error"]) == ("succeeded", None)
    assert await hand.run_row(run["id"], "attempts") == (2,)
    assert indexed(await alice.tools()) == offered(mcp_pool.tools)
    server = await server_of(alice, server_id)
    assert (server["status"], server["last_error"], server["last_cause"]) == ("connected", None, None)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(None, "refused"), (drop, "closed"), (status(503), "status_503")],
    ids=["refused", "closed", "status_503"],
)
async def test_a_server_that_stays_away_fails_with_its_cause_after_three_tries(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, answer: ASGIApp | None, cause: str
) -> None:
    mcp.fault = answer and Fault(answer)
    url = f"http://{NOBODY}/mcp" if answer is None else mcp.url
    async with working(hand, retry_s=0.01):
        server_id = await register(alice, mcp, url=url)
        [run] = await ended_runs(alice, server_id)
    await says(alice, server_id, run, cause)
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
async def test_what_another_try_cannot_mend_fails_at_once(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, answer: ASGIApp, cause: str
) -> None:
    mcp.tools, mcp.fault = numbered(1), Fault(answer)
    async with working(hand, retry_s=30.0):
        server_id = await register(alice, mcp)
        [run] = await ended_runs(alice, server_id)
        await says(alice, server_id, run, cause)
        assert await hand.run_row(run["id"], "attempts") == (1,)
        mcp.fault = None
        assert (await reindexed(alice, server_id))["state"] == "succeeded"


async def test_credentials_that_are_refused_heal_when_they_are_changed(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools, mcp.fault = numbered(2), Fault(status(401))
    async with working(hand):
        server_id = await register(alice, mcp)
        [run] = await ended_runs(alice, server_id)
        await says(alice, server_id, run, "unauthorized")
        mcp.fault = None
        await alice.http.patch(f"/servers/{server_id}", json={"headers": {"Authorization": "Bearer right"}})
        await shows(alice, mcp.tools)
    assert (await server_of(alice, server_id))["status"] == "connected"


async def test_no_connection_to_the_database_is_held_while_a_server_hangs(
    open_service: OpenService, mcp: FakeMcpServer, fake: FakeEmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.engine._POOL_WAIT_S", 5)  # a listing may take thirty
    mcp.fault = Fault(hang, on={"tools/list"})
    options = fake.settings(database_pool_size=1, outbound_allow=allowing(mcp))
    async with open_service(**options) as container, new_user(container) as user:
        await user.add_tools(tool("get_forecast", "Weather forecast for a city."), server="weather")
        server_id = await register(user, mcp)
        waiting = asyncio.create_task(user.http.post(f"/servers/{server_id}/reindex", params={"wait": True}))
        await until(lambda: seen(listings(mcp, user) == 1))
        # with the pool's one connection: who waits for it in vain is told to come again
        assert (await user.http.get("/servers")).status_code == 200
        assert (await user.discover("weather forecast"))["tools"]
        assert not waiting.done()
        mcp.tools, mcp.fault = numbered(2), None
        mcp.cut_connections()
        assert (await waiting).json()["state"] == "succeeded"
        assert {"tool_000", "tool_001"} < set(await user.tools())


async def seen(truth: bool) -> bool:
    return truth


async def test_servers_of_one_user_that_all_hang_keep_no_other_user_waiting(
    open_service: OpenService, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.fault, legacy_mcp.tools = Fault(hang, on={"tools/list"}), numbered(3)
    options = fake.settings(
        outbound_allow=allowing(mcp, legacy_mcp), listing_concurrency=queue.RUNS_OF_ONE_USER + 1, list_timeout_s=600
    )
    async with open_service(**options) as container, new_user(container) as stuck, new_user(container) as user:
        for number in range(50):
            await register(stuck, mcp, f"server-{number}")
        await until(lambda: seen(listings(mcp, stuck) == queue.RUNS_OF_ONE_USER))
        await connect(user, legacy_mcp)
        assert indexed(await user.tools()) == offered(legacy_mcp.tools)
        assert listings(mcp, stuck) == queue.RUNS_OF_ONE_USER
        mcp.fault = None
        mcp.cut_connections()


async def test_a_server_that_moves_while_its_old_address_is_listed_ends_with_the_tools_of_the_new_one(
    carol: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("old")], [tool("new")]
    server_id = await connect(carol, mcp)
    mcp.tools = [tool("older")]
    mcp.stalled.add("tools/list")
    await carol.http.post(f"/servers/{server_id}/reindex")
    await until(lambda: seen(listings(mcp, carol) == 2))
    await carol.http.patch(f"/servers/{server_id}", json={"url": legacy_mcp.url})
    mcp.stalled.clear()
    shown = set()
    while not all(run["finished_at"] for run in await runs_of(carol, server_id)):
        shown |= set(await carol.tools())
    assert shown <= {"old", "new"}
    assert indexed(await carol.tools()) == offered(legacy_mcp.tools)
    assert {run["state"] for run in await runs_of(carol, server_id)} == {"succeeded"}
    server = await server_of(carol, server_id)
    assert (server["status"], server["last_error"], server["tool_count"]) == ("connected", None, 1)


async def test_a_server_that_moves_while_its_tools_are_embedded_is_listed_at_its_new_address(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer, fake: FakeEmbeddingServer
) -> None:
    mcp.tools, legacy_mcp.tools = [unheard("old")], [unheard("new")]
    server_id = await register(alice, mcp)
    fake.mode = "hang"
    underway = asyncio.create_task(hand.perform())
    await asked(fake)
    await alice.http.patch(f"/servers/{server_id}", json={"url": legacy_mcp.url})
    fake.mode = "ok"
    fake.release()
    await underway
    assert indexed(await alice.tools()) == offered(legacy_mcp.tools)
    assert (await hand.perform()).server_id == server_id
    assert indexed(await alice.tools()) == offered(legacy_mcp.tools)


@pytest.mark.parametrize("stage", ["listing", "embedding"])
async def test_a_server_deleted_meanwhile_leaves_no_trace(
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
        doomed = await register(carol, mcp, "doomed")
        await until(lambda: seen(bool(listings(mcp, carol)) and (stage == "listing" or bool(fake.requests))))
        run_id = (await runs_of(carol, doomed))[0]["id"]
        assert (await carol.http.delete(f"/servers/{doomed}")).status_code == 204
        mcp.stalled.clear()
        fake.release()
        await until(lambda: seen(bool(levels_of(caplog, run_id))))
    assert levels_of(caplog, run_id) == ["INFO"]
    assert (await carol.http.get(f"/runs/{run_id}")).status_code == 404
    for table in ("mcp_tools", "mcp_tool_embeddings", "index_runs", "mcp_servers"):
        assert await rows(service, f"SELECT FROM {table} WHERE user_id = %(u)s", u=carol.id) == []
    assert await rows(service, "SELECT tool_count FROM users WHERE id = %(u)s", u=carol.id) == [(0,)]
    fake.mode = "ok"
    await connect(carol, mcp, "doomed")
    assert indexed(await carol.tools()) == offered(mcp.tools)


async def test_announced_changes_cost_one_listing_however_often_they_are_announced(
    open_service: OpenService, fake: FakeEmbeddingServer
) -> None:
    with (
        running_mcp_server("streamable_http", "modern") as modern,
        running_mcp_server("streamable_http", "legacy") as legacy,
        running_mcp_server("sse", "legacy") as sse,
    ):
        kinds = [modern, legacy, sse]
        options = fake.settings(outbound_allow=allowing(*kinds))
        async with open_service(**options) as container, new_user(container) as user:
            for server in kinds:
                server.tools = [tool(f"old_{server.port}")]
            server_ids = [await connect(user, server, f"at-{server.port}") for server in kinds]
            await until(lambda: seen(all(server.streams for server in kinds)))
            for server in kinds:
                server.tools = [tool(f"new_{server.port}")]
                for _ in range(20):
                    server.announce_change()
            await shows(user, [each for server in kinds for each in server.tools])
            for server, server_id in zip(kinds, server_ids, strict=True):
                [announced, _] = await ended_runs(user, server_id, at_least=2)
                assert counts(announced)["added"] == 1
                assert listings(server, user) == 2
                statement = "SELECT asked_by FROM index_runs WHERE id = %(id)s"
                assert await rows(container, statement, id=announced["id"]) == [(f"server:{server_id}",)]


async def test_servers_are_asked_again_after_a_while_but_neither_pushed_nor_disabled_ones(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("read")], [tool("write")]
    async with working(hand):
        server_id = await connect(alice, mcp, "asked")
        disabled = await connect(alice, legacy_mcp, "disabled")
        await alice.http.patch(f"/servers/{disabled}", json={"enabled": False})
        pushed = await alice.add_server("pushed")
        never_asked = await register(alice, legacy_mcp, "never-asked", enabled=False)
    async with working(hand, reindex_every_s=0.3):
        mcp.tools = [tool("read_2")]

        async def twice_more() -> bool:
            """Never mind the next, which may be queued already."""
            return sum(bool(run["finished_at"]) for run in await runs_of(alice, server_id)) >= 3

        await until(twice_more)
    assert "read_2" in await alice.tools()
    assert listings(mcp, alice) >= 3
    statement = "SELECT DISTINCT asked_by FROM index_runs WHERE server_id = %(id)s AND started_at IS NOT NULL"
    assert {("schedule",)} < set(await rows(hand.container, statement, id=server_id))
    assert len(await runs_of(alice, disabled)) == 1
    assert await runs_of(alice, pushed) == await runs_of(alice, never_asked) == []
    assert listings(legacy_mcp, alice) == 1


async def test_a_server_is_asked_again_when_its_last_run_is_old_enough_and_not_before(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    await register(alice, mcp)
    await hand.perform()
    worker = Worker(hand.indexer, WorkerConfig(runs_at_once=0, pending_retry_s=60, reindex_every_s=3600))
    age = "UPDATE index_runs SET created_at = now() - make_interval(secs => %(s)s)"
    for seconds, due in ((3590, 0), (3610, 1), (3610, 1)):
        await rows(hand.container, age, s=seconds)
        assert await worker.queue_unasked() == due
    assert listings(mcp, alice) == 1
    await hand.perform()
    assert listings(mcp, alice) == 2
    assert await worker.queue_unasked() == 1, "the run that was queued long ago"
    await hand.perform()
    assert await worker.queue_unasked() == 0


async def test_a_server_that_was_away_is_asked_again_sooner(hand: Hand, alice: TestUser, mcp: FakeMcpServer) -> None:
    async with working(hand, retry_s=0.01):
        for name, url in (("away", f"http://{NOBODY}/mcp"), ("there", mcp.url)):
            await ended_runs(alice, await register(alice, mcp, name, url=url))
    worker = Worker(hand.indexer, WorkerConfig(runs_at_once=0, pending_retry_s=60, reindex_every_s=3600))
    age = "UPDATE index_runs SET created_at = now() - make_interval(secs => %(s)s)"
    for seconds, due in ((290, 0), (310, 1), (3610, 2)):
        await rows(hand.container, age, s=seconds)
        assert await worker.queue_unasked() == due


async def test_a_worker_that_stalled_over_a_listing_until_its_lease_passed_on_writes_nothing(
    hand: Hand, alice: TestUser, mcp: FakeMcpServer
) -> None:
    """What it is about to index was embedded before: between its list and the writing lies nothing else."""
    mcp.tools = numbered(2, "stale")
    server_id = await register(alice, mcp)
    await hand.perform()
    gate = threading.Event()
    mcp.fault = Fault(behind(gate, listing_of(json.dumps(mcp.tools))), on={"tools/list"}, times=1)
    await alice.http.post(f"/servers/{server_id}/reindex")
    stalled = asyncio.create_task(reindex_server(hand.indexer, await hand.take()))
    await until(lambda: seen(listings(mcp, alice) == 2))
    await hand.expire_leases()
    mcp.tools = numbered(3, "fresh")
    taken_over = await hand.perform()
    before = await written(hand.container, alice)
    gate.set()
    with pytest.raises(queue.LeaseLost):
        await stalled
    assert await written(hand.container, alice) == before
    assert indexed(await alice.tools()) == offered(mcp.tools)
    assert await hand.run_row(taken_over.id, "state", "attempts") == ("succeeded", 2)
    assert (await server_of(alice, server_id))["status"] == "connected"


async def test_a_worker_whose_try_failed_after_its_lease_passed_on_says_nothing_of_the_server(
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
    assert indexed(await alice.tools()) == offered(mcp.tools)
