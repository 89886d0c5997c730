"""Tests of every endpoint of the client against the real application on a socket."""

import inspect
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import assert_type

import httpx
import pytest

from app.container import Container
from tests.support.checks import ONLY_BY_REQUEST, leave_a_category
from tests.support.clients import TestUser, get_app
from tests.support.factories import ADMIN_KEY, tool
from tests.support.known_tools import pick_known_tools
from tests.support.mcp_server import FakeMcpServer
from tests.support.python_client import AnyClient, Kind, expect_error, open_client
from tests.support.worker_steps import until
from toolscout_client import (
    ArgumentsInvalid,
    AsyncToolscout,
    AuditEvent,
    CatalogSearch,
    CatalogTool,
    Conflict,
    Conversation,
    Discovery,
    Evaluation,
    Forbidden,
    InvalidInput,
    LabelledMessage,
    NotFound,
    Rule,
    Selection,
    Server,
    ServerImport,
    SharedServer,
    Stats,
    ToolExamples,
    ToolFailed,
    Toolscout,
    ToolTexts,
    Unauthenticated,
    reports,
    resources,
)

MESSAGE = "what's the weather in Oslo tomorrow?"
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
FORECAST = tool("get_forecast", "The expected weather at a place for the coming days: rain, wind.", inputSchema=PLACE)
MAIL = tool("send_mail", "Sends a mail to somebody.")


def add_forecast_tools(mcp: FakeMcpServer) -> FakeMcpServer:
    mcp.tools = [FORECAST, MAIL]
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"{arguments['place']}: snow"}]
    }
    return mcp


async def test_a_discovery_has_definitions_and_maps_their_names_to_keys(any_client: AnyClient, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, MAIL, server="weather")
    found: Discovery = await any_client(lambda client: client.discover(MESSAGE, limit=1, format="openai"))
    assert [found_tool.server_id for found_tool in found.tools] == [server_id]
    assert [item["function"]["name"] for item in found.definitions] == ["get_forecast"]
    assert found.key_of("get_forecast") == found.tools[0].tool_key == found.tool_keys[0]
    assert found.tokens.all > found.tokens.selected > 0
    with pytest.raises(NotFound) as unknown:
        found.key_of("made_up_name")
    assert unknown.value.code == "TOOL_NOT_FOUND"


async def test_feedback_is_counted_once(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL)
    found: Discovery = await any_client(lambda client: client.discover(MESSAGE, limit=1))
    key = found.tools[0].tool_key
    for _ in range(2):
        await any_client(lambda client: client.feedback(found.discovery_id, key, "succeeded"))
    [used] = (await user.http.get("/stats")).json()["most_used"]
    assert (used["tool_key"], used["called"], used["succeeded"]) == (key, 1, 1)
    await expect_error(any_client(lambda client: client.feedback(str(uuid.uuid4()), key, "called")), NotFound)


async def test_a_discovery_with_keep_says_what_has_changed(any_client: AnyClient, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, MAIL)
    first: Discovery = await any_client(lambda client: client.discover(MESSAGE, limit=1, keep=[], format="anthropic"))
    assert first.changes is not None
    assert (first.added, first.changes.message["role"]) == (first.tool_keys, "system")
    assert len(first.changes.betas) == 2
    await user.push(server_id, [FORECAST | {"description": "Weather: rain, wind, snow."}, MAIL])
    again: Discovery = await any_client(
        lambda client: client.discover(MESSAGE, limit=1, keep=first, format="anthropic")
    )
    assert again.added == again.removed == first.tool_keys
    assert again.toolset_hash_before == first.toolset_hash
    by_key: Discovery = await any_client(lambda client: client.discover(MESSAGE, limit=1, keep=first.tool_keys))
    assert (by_key.added, by_key.removed, by_key.changes) == ([], [], None)


async def test_the_tools_of_a_conversation_are_remembered_until_it_is_deleted(
    any_client: AnyClient, user: TestUser
) -> None:
    await user.add_tools(FORECAST, MAIL)
    chat = Conversation("chat-1")
    first: Discovery = await any_client(lambda client: client.discover(MESSAGE, limit=1, keep=chat, turn=1))
    again: Discovery = await any_client(lambda client: client.discover(MESSAGE, limit=1, keep=chat, turn=2))
    assert (first.added, again.added) == (first.tool_keys, [])
    called = {"conversation_id": "chat-1"}
    await any_client(lambda client: client.feedback(first.discovery_id, first.tool_keys[0], "called", **called))
    await any_client(lambda client: client.conversations.delete("chat-1"))
    await expect_error(any_client(lambda client: client.conversations.delete("chat-1")), NotFound)
    new: Discovery = await any_client(lambda client: client.discover(MESSAGE, limit=1, keep=chat, turn=3))
    assert new.added == first.tool_keys


async def test_a_discovery_tells_its_confidence(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL)
    found: Discovery = await any_client(lambda client: client.discover(MESSAGE))
    assert (found.confidence, found.no_match) == ("high", False)
    nothing: Discovery = await any_client(lambda client: client.discover("thanks, that is all"))
    assert (nothing.confidence, nothing.no_match) == ("none", True)


async def test_categories_are_listed_renamed_and_searched(
    any_client: AnyClient, user: TestUser, container: Container
) -> None:
    await user.add_tools(FORECAST, MAIL)
    await leave_a_category(container, user.id)
    [category, *_] = await any_client(lambda client: client.categories.list())
    assert await any_client(lambda client: client.categories.get(category.id)) == category
    renamed = await any_client(lambda client: client.categories.rename(category.id, "Everyday"))
    assert (renamed.name, renamed.own_name, renamed.tools) == ("Everyday", "Everyday", category.tools)
    found: Discovery = await any_client(lambda client: client.discover(MESSAGE, categories=["everyday"]))
    assert found.total_searched == category.tools
    listed = await any_client.all(lambda client: client.tools.list(categories=[category.id]))
    assert {each.category for each in listed} == {"Everyday"}
    restored = await any_client(lambda client: client.categories.rename(category.id, None))
    assert restored.name == category.name
    mistake = any_client(lambda client: client.discover(MESSAGE, categories=["no such thing"]))
    await expect_error(mistake, InvalidInput)


async def test_an_answer_can_be_filled_to_the_limit(any_client: AnyClient, user: TestUser) -> None:
    unlikely = [
        tool("find_flights", "Flights between two cities on a day."),
        tool("find_hotel", "Find a hotel in a city."),
    ]
    await user.add_tools(FORECAST, MAIL, *unlikely)
    short: Discovery = await any_client(lambda client: client.discover(MESSAGE))
    filled: Discovery = await any_client(lambda client: client.discover(MESSAGE, fill=True))
    assert short.tool_keys == filled.tool_keys[: len(short.tool_keys)]
    assert len(short.tools) < len(filled.tools)


async def test_every_option_reaches_the_service(any_client: AnyClient, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, MAIL, tags=["sky"])
    project_id = (await any_client(lambda client: client.projects.create("all"))).id
    mail_id = (await user.tools())["send_mail"]["id"]
    found = await any_client(
        lambda client: client.discover(
            messages=[{"role": "user", "content": MESSAGE}],
            limit=1,
            fill=True,
            similarity_threshold=0.0,
            include_core_tools=False,
            server_ids=[server_id],
            tags=["sky"],
            project_id=project_id,
            strategy="semantic",
            max_tokens=10_000,
            keep=[mail_id],
            format="anthropic",
            explain=True,
        )
    )
    assert [item.source for item in found.tools] == ["kept", "semantic"]
    assert [item["name"] for item in found.definitions] == ["send_mail", "get_forecast"]
    assert found.strategy == "semantic"
    assert found.tools[1].explanation is not None
    assert found.tools[1].matched_tags == ["sky"]


async def test_why_explains_a_tool(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL)
    [reason] = await any_client(lambda client: client.why("get_forecast", MESSAGE))
    assert (reason.included, reason.reason) == (True, "included")
    [reason] = await any_client(lambda client: client.why("send_mail", MESSAGE, limit=1))
    assert (reason.included, reason.name) == (False, "send_mail")


async def test_a_tool_runs_by_its_key_or_by_the_models_tool_call(
    any_client: AnyClient, user: TestUser, mcp: FakeMcpServer
) -> None:
    await user.connect(add_forecast_tools(mcp))
    key = (await user.tools())["get_forecast"]["id"]
    done = await any_client(lambda client: client.execute(key, {"place": "Oslo"}, timeout=20))
    assert (done.text, done.is_error, done.tool_key) == ("Oslo: snow", False, key)
    tool_call = {"type": "function", "function": {"name": "get_forecast", "arguments": '{"place": "Rome"}'}}
    assert (await any_client(lambda client: client.execute(tool_call=tool_call))).text == "Rome: snow"
    assert mcp.calls == [("get_forecast", {"place": "Oslo"}), ("get_forecast", {"place": "Rome"})]


async def test_a_name_that_several_tools_have_is_a_conflict_with_choices(
    any_client: AnyClient, user: TestUser, mcp: FakeMcpServer
) -> None:
    await user.connect(add_forecast_tools(mcp), "weather")
    await user.add_tools(FORECAST, server="sailing")
    call = {"type": "tool_use", "name": "get_forecast", "input": {"place": "Oslo"}}
    error = await expect_error(any_client(lambda client: client.execute(tool_call=call)), Conflict)
    assert [choice["name"] for choice in error.choices] == ["sailing.get_forecast", "weather.get_forecast"]
    chosen = call | {"name": error.choices[1]["name"]}
    assert (await any_client(lambda client: client.execute(tool_call=chosen))).text == "Oslo: snow"


async def test_each_execution_has_its_own_idempotency_key_by_default(
    any_client: AnyClient, user: TestUser, mcp: FakeMcpServer
) -> None:
    await user.connect(add_forecast_tools(mcp))
    key = (await user.tools())["get_forecast"]["id"]
    for _ in range(2):
        await any_client(lambda client: client.execute(key, {"place": "Oslo"}))
    assert len(mcp.calls) == 2
    for _ in range(2):
        await any_client(lambda client: client.execute(key, {"place": "Oslo"}, idempotency_key="the-same"))
    assert len(mcp.calls) == 3


class LosingTransport(httpx.HTTPTransport):
    """Loses the first response."""

    lost = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if not self.lost:
            self.lost = bool(response.read())
            raise httpx.ReadError("lost")
        return response


class AsyncLosingTransport(httpx.AsyncHTTPTransport):
    lost = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if not self.lost:
            self.lost = bool(await response.aread())
            raise httpx.ReadError("lost")
        return response


async def test_an_execution_whose_answer_is_lost_runs_once(
    kind: Kind, address: str, user: TestUser, mcp: FakeMcpServer
) -> None:
    await user.connect(add_forecast_tools(mcp))
    key = (await user.tools())["get_forecast"]["id"]
    transport = LosingTransport() if kind == "blocking" else AsyncLosingTransport()
    async with open_client(kind, address, user.key, transport=transport) as any_client:
        done = await any_client(lambda client: client.execute(key, {"place": "Oslo"}))
    assert transport.lost
    assert done.text == "Oslo: snow"
    assert mcp.calls == [("get_forecast", {"place": "Oslo"})]


async def test_a_result_with_is_error_is_returned(any_client: AnyClient, user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [MAIL]
    mcp.on_call["send_mail"] = lambda _: {"content": [{"type": "text", "text": "no such address"}], "isError": True}
    await user.connect(mcp)
    key = (await user.tools())["send_mail"]["id"]
    done = await any_client(lambda client: client.execute(key))
    assert (done.text, done.is_error) == ("no such address", True)


async def test_each_kind_of_failure_has_its_own_class(
    any_client: AnyClient, administrator: AnyClient, kind: Kind, address: str, user: TestUser
) -> None:
    await user.add_tools(FORECAST, MAIL)
    keys = {name: item["id"] for name, item in (await user.tools()).items()}
    invalid = await expect_error(
        any_client(lambda client: client.execute(keys["get_forecast"], {"place": 1})), ArgumentsInvalid
    )
    assert (invalid.code, invalid.status) == ("TOOL_VALIDATION_ERROR", 422)
    assert invalid.errors
    assert invalid.request_id
    assert str(invalid).startswith("TOOL_VALIDATION_ERROR: ")
    pushed = await expect_error(any_client(lambda client: client.execute(keys["send_mail"])), ToolFailed)
    assert (pushed.code, pushed.outcome, pushed.cause) == ("SERVER_CONNECTION_ERROR", "failed", "push")
    assert (pushed.server, pushed.tool) == ("files", "send_mail")
    missing = await expect_error(any_client(lambda client: client.execute(str(uuid.uuid4()))), NotFound)
    assert (missing.code, missing.server, missing.tool) == ("TOOL_NOT_FOUND", None, None)
    empty = await expect_error(any_client(lambda client: client.discover()), InvalidInput)
    assert empty.code == "invalid_input"
    await expect_error(any_client(lambda client: client.servers.create("files", "push")), Conflict)
    await expect_error(any_client.all(lambda client: client.users.list()), Forbidden)
    async with open_client(kind, address, "unknown-key") as unauthenticated:
        await expect_error(unauthenticated(lambda client: client.discover(MESSAGE)), Unauthenticated)


async def test_the_life_cycle_of_a_server(any_client: AnyClient) -> None:
    server: Server = await any_client(lambda client: client.servers.create("files", "push", tags=["disk"]))
    assert server.created_at.tzinfo is not None
    run = await any_client(lambda client: client.servers.push_tools(server.id, [FORECAST, MAIL], wait=True))
    assert (run.state, run.ended, run.counts["added"]) == ("succeeded", True, 2)
    run = await any_client(lambda client: client.servers.reindex(server.id, force=True))
    assert (await any_client(lambda client: client.runs.wait(run.id))).counts["embedded"] == 2
    assert (await any_client(lambda client: client.runs.get(run.id))).state == "succeeded"
    [again] = await any_client(lambda client: client.servers.reindex_all())
    assert (await any_client(lambda client: client.runs.wait(again.id))).server_id == server.id
    assert len(await any_client.all(lambda client: client.servers.runs(server.id))) == 3
    changed = await any_client(lambda client: client.servers.update(server.id, name="papers", tags=[]))
    assert (changed.name, changed.tags, changed.tool_count) == ("papers", [], 2)
    assert [item.name for item in await any_client.all(lambda client: client.servers.list())] == ["papers"]
    signed_in = await any_client(lambda client: client.servers.set_credentials(server.id, {"X-Key": "secret"}))
    assert signed_in.header_names == ["X-Key"]
    await any_client(lambda client: client.servers.delete_credentials(server.id))
    assert (await any_client(lambda client: client.servers.get(server.id))).header_names == []
    await any_client(lambda client: client.servers.delete(server.id))
    await expect_error(any_client(lambda client: client.servers.get(server.id)), NotFound)


async def test_a_configuration_is_imported(any_client: AnyClient) -> None:
    servers = {
        "tickets": {"url": "https://mcp.example.com/${TEAM}", "disabled": True, "timeout": 5},
        "local": {"command": "npx"},
    }
    result: ServerImport = await any_client(
        lambda client: client.import_servers({"mcpServers": servers}, {"TEAM": "a"})
    )
    [imported], [skipped] = result.imported, result.skipped
    assert (imported.name, imported.url, imported.enabled) == ("tickets", "https://mcp.example.com/a", False)
    assert (skipped.name, "TOOLSCOUT_STDIO_SERVERS" in skipped.reason) == ("local", True)
    assert [note.name for note in result.notes] == ["tickets", "tickets"]
    await expect_error(any_client(lambda client: client.import_servers({})), InvalidInput)


async def test_a_list_iterates_over_all_pages(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(*(tool(f"tool_{number}") for number in range(7)))
    names = [f"tool_{number}" for number in range(7)]
    assert [item.name for item in await any_client.all(lambda client: client.tools.list(limit=3))] == names
    assert [item.name for item in await any_client.all(lambda client: client.tools.list(name="_3"))] == ["tool_3"]


async def test_decisions_tell_what_was_chosen(any_client: AnyClient, user: TestUser, container: Container) -> None:
    await user.add_tools(tool("read_file", "Reads a file from the disk."))
    found = await user.discover("read a file")
    await user.discover("xyzzy plugh", strategy="bm25")
    await container.decisions.flush()
    nothing, chosen = await any_client.all(lambda client: client.decisions())
    assert (chosen.discovery_id, chosen.returned) == (found["discovery_id"], {"semantic": 1})
    assert [each.name for each in chosen.tools] == ["read_file"]
    assert await any_client.all(lambda client: client.decisions(no_match=True)) == [nothing]


async def test_a_tool_is_updated_and_a_changed_definition_is_approved(any_client: AnyClient, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST)
    [found] = await any_client.all(lambda client: client.tools.list(visible=True))
    disabled = await any_client(lambda client: client.tools.update(found.id, enabled=False, tags=["sky"], pinned=True))
    assert (disabled.enabled, disabled.enabled_by, disabled.own_tags, disabled.pinned) == (False, "user", ["sky"], True)
    reset = await any_client(lambda client: client.tools.update(found.id, enabled=None))
    assert (reset.enabled, reset.enabled_by) == (True, "default")
    assert [(item.tag, item.count) for item in await any_client(lambda client: client.tools.tags())] == [("sky", 1)]
    await user.push(server_id, [{**FORECAST, "description": "Something else."}])
    [change] = await any_client.all(lambda client: client.tools.history(found.id))
    assert change.fields == ["description"]
    changed = await any_client(lambda client: client.tools.get(found.id))
    assert changed.state == "changed"
    await expect_error(any_client(lambda client: client.tools.approve(found.id, found.definition_hash)), Conflict)
    approved = await any_client(lambda client: client.tools.approve(found.id, changed.definition_hash))
    assert approved.state == "approved"


async def test_texts_of_ones_own_are_written_and_reset(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(FORECAST)
    [found] = await any_client.all(lambda client: client.tools.list(own_texts=False))
    own = ToolTexts(None, "Do I need an umbrella?", {"readOnlyHint": True})
    edited = await any_client(
        lambda client: client.tools.update(found.id, description=own.description, annotations=own.annotations)
    )
    assert (edited.description, edited.own_texts, edited.warnings) == (own.description, own, [])
    assert edited.original == ToolTexts(found.title, found.description, found.annotations)
    assert (await any_client(lambda client: client.runs.wait(edited.run_id))).state == "succeeded"
    assert await any_client.all(lambda client: client.tools.list(original_changed=True)) == []
    reset = await any_client(lambda client: client.tools.update(found.id, description=None, annotations=None))
    assert (reset.description, reset.own_texts, reset.original) == (found.description, None, None)


async def test_a_known_tool_says_which_examples_it_comes_with(any_client: AnyClient, user: TestUser) -> None:
    [known] = pick_known_tools(1)
    await user.add_tools({**FORECAST, "name": known.name, "description": known.description}, FORECAST)
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    found = await any_client(lambda client: client.tools.get(keys[known.name]))
    assert found.known_examples == list(known.examples)
    unknown = await any_client(lambda client: client.tools.get(keys[FORECAST["name"]]))
    assert unknown.known_examples == []


async def test_examples_of_a_tool_are_replaced_read_and_forgotten(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(FORECAST)
    [found] = await any_client.all(lambda client: client.tools.list())
    await any_client(lambda client: client.tools.replace_examples(found.id, ["do I need an umbrella"]))
    discovery = await any_client(lambda client: client.discover("will it rain"))
    await any_client(lambda client: client.feedback(discovery.discovery_id, found.id, "succeeded"))
    assert await any_client(lambda client: client.tools.examples(found.id)) == ToolExamples(
        ["do I need an umbrella"], 1, 0
    )
    with pytest.raises(TypeError, match="a list of strings, not one string"):
        await any_client(lambda client: client.tools.replace_examples(found.id, "abc"))
    assert (await any_client(lambda client: client.tools.examples(found.id))).messages == ["do I need an umbrella"]
    await any_client(lambda client: client.tools.forget_examples(found.id, "use"))
    assert (await any_client(lambda client: client.tools.examples(found.id))).learned == 0
    await any_client(lambda client: client.tools.forget_all_examples())
    assert await any_client(lambda client: client.tools.examples(found.id)) == ToolExamples([], 0, 0)


async def test_rules_are_previewed_replaced_and_read(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL)
    rules: list[Rule] = [{"pattern": ["*mail*"], "enabled": False}]
    preview = await any_client(lambda client: client.rules.preview(rules, changed=True))
    assert [(item.name, item.visible) for item in preview.items] == [("send_mail", False)]
    put = await any_client(lambda client: client.rules.put([*rules, {"pattern": ["nothing"], "enabled": False}]))
    assert len(put.warnings) == 1
    current = await any_client(lambda client: client.rules.get())
    assert current.rules == put.rules
    assert (await any_client(lambda client: client.rules.put(current.rules))).rules == current.rules


async def test_the_life_cycle_of_a_project(any_client: AnyClient) -> None:
    created = await any_client(lambda client: client.projects.create("support", read_only=True, limit=3))
    assert (created.read_only, created.limit, created.optimization) == (True, 3, "hybrid")
    changed = await any_client(lambda client: client.projects.update(created.id, limit=None, optimization=None))
    assert (changed.limit, changed.optimization, changed.read_only) == (None, None, True)
    assert await any_client.all(lambda client: client.projects.list()) == [changed]
    assert await any_client(lambda client: client.projects.get(created.id)) == changed
    await any_client(lambda client: client.projects.delete(created.id))
    await expect_error(any_client(lambda client: client.projects.get(created.id)), NotFound)


async def test_core_tools_are_part_of_every_discovery(any_client: AnyClient) -> None:
    assert (await any_client(lambda client: client.tools.core())).tools == []
    put = await any_client(lambda client: client.tools.replace_core([MAIL]))
    assert [item["name"] for item in put.tools] == ["send_mail"]
    assert [item.source for item in (await any_client(lambda client: client.discover(MESSAGE))).tools] == ["core"]


async def test_the_life_cycle_of_users_and_keys(administrator: AnyClient, kind: Kind, address: str) -> None:
    user_id = f"user-{uuid.uuid4().hex[:12]}"
    await administrator(lambda client: client.users.create(user_id, "Alice"))
    changed = await administrator(lambda client: client.users.update(user_id, settings={"limit": 3}))
    assert (changed.name, changed.settings) == ("Alice", {"limit": 3})
    expiry = datetime.now(UTC) + timedelta(days=1)
    created = await administrator(lambda client: client.keys.create("user", user_id=user_id, expires_at=expiry))
    assert created.expires_at == expiry
    assert created.key not in repr(created)
    async with open_client(kind, address, created.key) as alice:
        assert await alice.all(lambda client: client.servers.list()) == []
        await administrator(lambda client: client.keys.revoke(created.id))
        await expect_error(alice.all(lambda client: client.servers.list()), Unauthenticated)
    listed = {item.id: item for item in await administrator.all(lambda client: client.keys.list())}
    assert (listed[created.id].key, listed[created.id].revoked_at is None) == (None, False)
    assert user_id in {item.id for item in await administrator.all(lambda client: client.users.list())}
    await administrator(lambda client: client.users.delete(user_id))
    await expect_error(administrator(lambda client: client.users.get(user_id)), NotFound)


async def test_the_life_cycle_of_a_shared_server(
    administrator: AnyClient, any_client: AnyClient, user: TestUser
) -> None:
    async def has_servers(count: int) -> bool:
        return len(await any_client.all(lambda client: client.servers.list())) == count

    async def is_ready() -> bool:
        server: SharedServer = await administrator(lambda client: client.shared_servers.get(shared.id))
        return server.members.ready == 1

    name = f"shared-{uuid.uuid4().hex[:8]}"
    shared = await administrator(
        lambda client: client.shared_servers.create(name, "push", user_ids=[user.id], credentials="operator")
    )
    assert isinstance(shared, SharedServer)
    assert (shared.name, shared.user_ids, shared.credentials, shared.everyone) == (name, [user.id], "operator", False)
    await administrator(lambda client: client.servers.push_tools(shared.id, [FORECAST], wait=True))
    await until(is_ready)
    read = await administrator(lambda client: client.shared_servers.get(shared.id))
    assert (read.members.total, read.members.ready, read.tool_count) == (1, 1, 1)
    [copy] = await any_client.all(lambda client: client.servers.list())
    assert (copy.name, copy.shared, copy.shared_credentials) == (name, True, "operator")
    await expect_error(any_client(lambda client: client.servers.delete(copy.id)), Forbidden)
    await expect_error(any_client(lambda client: client.shared_servers.get(shared.id)), Forbidden)
    changed = await administrator(lambda client: client.shared_servers.update(shared.id, groups=["staff"], user_ids=[]))
    assert (changed.groups, changed.user_ids) == (["staff"], [])
    assert (await administrator(lambda client: client.shared_servers.reindex(shared.id))).server_id == shared.id
    await until(lambda: has_servers(0))
    listed = await administrator.all(lambda client: client.shared_servers.list())
    assert shared.id in {each.id for each in listed}
    await administrator(lambda client: client.shared_servers.delete(shared.id))
    await expect_error(administrator(lambda client: client.shared_servers.get(shared.id)), NotFound)


async def test_one_client_acts_for_many_users(administrator: AnyClient, kind: Kind, address: str) -> None:
    service = await administrator(lambda client: client.keys.create("service"))
    names = [f"user-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    async with open_client(kind, address, service.key) as backend:
        alice, bob = (backend.for_user(name) for name in names)
        await alice(lambda client: client.servers.create("hers", "push"))
        await bob(lambda client: client.servers.create("his", "push"))
        assert [item.name for item in await alice.all(lambda client: client.servers.list())] == ["hers"]
        assert [item.name for item in await bob.all(lambda client: client.servers.list())] == ["his"]
        await expect_error(
            backend.all(lambda client: client.servers.list()), InvalidInput
        )  # a service key must name a user


async def test_health_and_other_endpoints(any_client: AnyClient) -> None:
    assert (await any_client(lambda client: client.health())).status == "ok"
    assert (await any_client(lambda client: client.ready())).model
    events = await any_client(lambda client: client.request("GET", "/audit", params={"action": "key.create"}))
    assert [item["action"] for item in events.json()["items"]] == ["key.create"]
    await expect_error(any_client(lambda client: client.request("POST", "/rules/preview", json={})), InvalidInput)


async def test_a_list_of_tools_is_searched_without_storing_it(any_client: AnyClient) -> None:
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    tools: list[CatalogTool] = [
        {
            "toolKey": "1",
            "toolName": "get_forecast",
            "serverName": "sky",
            "description": FORECAST["description"],
            "outputSchema": schema,
        },
        {"toolKey": "2", "toolName": "send_mail", "serverName": "post", "description": "Sends a mail to somebody."},
    ]
    found: CatalogSearch = await any_client(lambda client: client.catalog_search(MESSAGE, tools, max_results=1))
    [result] = found.results
    assert (result.tool_key, result.tool_name, result.server_name) == ("1", "get_forecast", "sky")
    assert (result.output_schema, result.annotations) == (schema, None)
    assert 0 < result.relevance <= 1
    assert (found.total_searched, found.no_match, found.refused) == (2, False, [])
    both = await any_client(
        lambda client: client.catalog_search([MESSAGE, "send a mail to Kim"], tools, context="Oslo")
    )
    assert {each.tool_key for each in both.results} == {"1", "2"}
    assert await any_client.all(lambda client: client.servers.list()) == []


async def test_labelled_messages_are_evaluated(any_client: AnyClient, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL, server="sky")
    items: list[LabelledMessage] = [
        {"id": "rain", "message": MESSAGE, "tools": ["sky.get_forecast"]},
        {"messages": [{"role": "user", "content": "thanks, that is all"}], "tools": []},
        {"message": MESSAGE, "tools": ["no_such_tool"]},
    ]
    result: Evaluation = await any_client(lambda client: client.evaluate(items, limit=1, suggest=True))
    assert (result.messages, result.abstained) == (3, 1.0)
    assert result.measures is not None
    assert result.measures.hit_at_1 == 0.5
    assert [answer.id for answer in result.answers] == ["rain", "2", "3"]
    assert result.answers[0].measures is not None
    assert result.answers[1].measures is None
    assert [(each.id, each.label) for each in result.unknown_labels] == [("3", "no_such_tool")]
    assert result.suggestions is not None
    assert result.suggestions.tools == 2
    assert (await any_client(lambda client: client.evaluate(items))).suggestions is None


async def test_statistics_audit_events_and_selections_are_read(
    any_client: AnyClient, administrator: AnyClient, user: TestUser, container: Container
) -> None:
    began = datetime.now(UTC)
    await user.add_tools(FORECAST, MAIL)
    await administrator(lambda client: client.users.update(user.id, settings={"selection_log": True}))
    for _ in range(2):
        await any_client(lambda client: client.discover(MESSAGE, limit=1))
    await container.usage_counters.flush()
    await container.selections.flush()

    stats: Stats = await any_client(lambda client: client.stats(since=began - timedelta(hours=1), step="hour"))
    assert (stats.totals.discoveries, stats.never_found_count) == (2, 1)
    assert sum(point.discoveries for point in stats.points) == 2
    assert [each.name for each in stats.never_found] == ["send_mail"]

    events: list[AuditEvent] = await any_client.all(lambda client: client.audit(action="server.create", limit=1))
    assert [(event.user_id, event.outcome) for event in events] == [(user.id, "succeeded")]
    assert await any_client.all(lambda client: client.audit(until=began - timedelta(days=1))) == []
    assert len(await any_client.all(lambda client: client.audit(limit=1))) > 2

    selections: list[Selection] = await any_client.all(lambda client: client.selections(since=began.isoformat()))
    assert [(each.message, each.tools[0].name) for each in selections] == [(MESSAGE, "get_forecast")] * 2
    assert await any_client.all(lambda client: client.selections(until=began)) == []
    await any_client(lambda client: client.delete_selections())
    assert await any_client.all(lambda client: client.selections()) == []


async def test_lists_are_generators_and_other_answers_are_complete(address: str, user: TestUser) -> None:
    """As the README says."""
    with Toolscout(address, user.key, verify=False) as blocking:
        for lazy in (blocking.servers.list(), blocking.tools.list(), blocking.audit(), blocking.selections()):
            assert isinstance(lazy, Iterator)
    async with AsyncToolscout(address, user.key, verify=False) as asyncio_client:
        assert isinstance(asyncio_client.audit(), AsyncIterator)
        assert isinstance(await asyncio_client.tools.tags(), list)


async def test_an_id_cannot_change_the_route(administrator: AnyClient) -> None:
    await expect_error(administrator(lambda client: client.users.get("../keys")), NotFound)
    assert (await administrator(lambda client: client.request("GET", "/users/../keys"))).status_code == 200


def test_the_client_has_every_route_of_the_service(container: Container) -> None:
    """A new route belongs into `resources.py`, into `reports.py` or into `ONLY_BY_REQUEST`."""
    paths = get_app(container).openapi()["paths"]
    routes = {(method.upper(), re.sub(r"{\w+}", "{}", path)) for path, methods in paths.items() for method in methods}
    source = "".join(inspect.getsource(module) for module in (resources, reports))
    implemented = set(re.findall(r'make_request\(\s*"([A-Z]+) (/[^"]*)"', source))
    assert len(implemented) > 35
    assert routes - implemented - ONLY_BY_REQUEST == set()
    assert implemented <= routes


async def test_both_clients_have_the_declared_types(address: str) -> None:
    """mypy checks `assert_type`; this test checks the values."""
    with Toolscout(address, ADMIN_KEY) as blocking:
        assert_type(blocking.for_user("alice"), Toolscout)
        assert isinstance(blocking.for_user("alice"), Toolscout)
    async with AsyncToolscout(address, ADMIN_KEY) as asyncio_client:
        found = await asyncio_client.for_user("alice").discover(MESSAGE)
        assert_type(found, Discovery)
        assert isinstance(found, Discovery)


def check_blocking_types(client: Toolscout) -> None:
    assert_type(client.discover(MESSAGE), Discovery)
    client.discover(MESSAGE, limt=3)  # type: ignore[call-arg]
    client.servers.create("files", "carrier pigeon")  # type: ignore[arg-type]
