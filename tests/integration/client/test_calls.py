"""Every room of the client against the real application behind a socket."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import httpx
import pytest

from app.container import Container
from tests.integration.client.conftest import Kind, Speaker, failure, speaking
from tests.support.checks import MCP_PATHS
from tests.support.clients import TestUser, get_app
from tests.support.factories import ADMIN_KEY, tool
from tests.support.mcp_server import FakeMcpServer
from toolscout_client import (
    ArgumentsInvalid,
    AsyncToolscout,
    Conflict,
    Discovery,
    Forbidden,
    InvalidInput,
    NotFound,
    Rule,
    Server,
    ToolFailed,
    Toolscout,
    Unauthenticated,
    rooms,
)

MESSAGE = "what's the weather in Oslo tomorrow?"
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
FORECAST = tool("get_forecast", "The expected weather at a place for the coming days: rain, wind.", inputSchema=PLACE)
MAIL = tool("send_mail", "Sends a mail to somebody.")


def forecasting(mcp: FakeMcpServer) -> FakeMcpServer:
    mcp.tools = [FORECAST, MAIL]
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"{arguments['place']}: snow"}]
    }
    return mcp


async def test_a_message_leads_to_definitions_and_their_names_lead_back(speaker: Speaker, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, MAIL, server="weather")
    found: Discovery = await speaker(lambda client: client.discover(MESSAGE, limit=1, format="openai"))
    assert [each.server_id for each in found.tools] == [server_id]
    assert [each["function"]["name"] for each in found.definitions] == ["get_forecast"]
    assert found.key_of("get_forecast") == found.tools[0].tool_key == found.tool_keys[0]
    assert found.tokens.all > found.tokens.selected > 0
    with pytest.raises(NotFound) as unknown:
        found.key_of("an_invention")
    assert unknown.value.code == "TOOL_NOT_FOUND"


async def test_what_became_of_a_tool_is_counted(speaker: Speaker, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL)
    found: Discovery = await speaker(lambda client: client.discover(MESSAGE, limit=1))
    key = found.tools[0].tool_key
    for _ in range(2):
        await speaker(lambda client: client.feedback(found.discovery_id, key, "succeeded"))
    [used] = (await user.http.get("/stats")).json()["most_used"]
    assert (used["tool_key"], used["called"], used["succeeded"]) == (key, 1, 1)
    await failure(speaker(lambda client: client.feedback(str(uuid.uuid4()), key, "called")), NotFound)


async def test_every_wish_reaches_the_service(speaker: Speaker, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST, MAIL, tags=["sky"])
    project_id = (await speaker(lambda client: client.projects.create("all"))).id
    mail_id = (await user.tools())["send_mail"]["id"]
    found = await speaker(
        lambda client: client.discover(
            messages=[{"role": "user", "content": MESSAGE}],
            limit=1,
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
    assert [each.source for each in found.tools] == ["kept", "semantic"]
    assert [each["name"] for each in found.definitions] == ["send_mail", "get_forecast"]
    assert found.strategy == "semantic"
    assert found.tools[1].explanation is not None
    assert found.tools[1].matched_tags == ["sky"]


async def test_why_a_tool_is_not_found(speaker: Speaker, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL)
    [reason] = await speaker(lambda client: client.why("get_forecast", MESSAGE))
    assert (reason.included, reason.reason) == (True, "included")
    [reason] = await speaker(lambda client: client.why("send_mail", MESSAGE, limit=1))
    assert (reason.included, reason.name) == (False, "send_mail")


async def test_a_tool_runs_by_its_key_or_by_the_models_own_call(
    speaker: Speaker, user: TestUser, mcp: FakeMcpServer
) -> None:
    await user.connect(forecasting(mcp))
    key = (await user.tools())["get_forecast"]["id"]
    done = await speaker(lambda client: client.execute(key, {"place": "Oslo"}, timeout=20))
    assert (done.text, done.is_error, done.tool_key) == ("Oslo: snow", False, key)
    own = {"type": "function", "function": {"name": "get_forecast", "arguments": '{"place": "Rome"}'}}
    assert (await speaker(lambda client: client.execute(tool_call=own))).text == "Rome: snow"
    assert mcp.calls == [("get_forecast", {"place": "Oslo"}), ("get_forecast", {"place": "Rome"})]


async def test_each_execution_has_a_key_of_its_own_unless_one_is_given(
    speaker: Speaker, user: TestUser, mcp: FakeMcpServer
) -> None:
    await user.connect(forecasting(mcp))
    key = (await user.tools())["get_forecast"]["id"]
    for _ in range(2):
        await speaker(lambda client: client.execute(key, {"place": "Oslo"}))
    assert len(mcp.calls) == 2
    for _ in range(2):
        await speaker(lambda client: client.execute(key, {"place": "Oslo"}, idempotency_key="the-same"))
    assert len(mcp.calls) == 3


class LosingOnce(httpx.HTTPTransport):
    """The first answer arrives at nobody's."""

    lost = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if not self.lost:
            self.lost = bool(response.read())
            raise httpx.ReadError("lost")
        return response


class LosingOnceAwaited(httpx.AsyncHTTPTransport):
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
    await user.connect(forecasting(mcp))
    key = (await user.tools())["get_forecast"]["id"]
    transport = LosingOnce() if kind == "blocking" else LosingOnceAwaited()
    async with speaking(kind, address, user.key, transport=transport) as speaker:
        done = await speaker(lambda client: client.execute(key, {"place": "Oslo"}))
    assert transport.lost
    assert done.text == "Oslo: snow"
    assert mcp.calls == [("get_forecast", {"place": "Oslo"})]


async def test_a_tool_that_says_itself_that_it_failed_is_a_result(
    speaker: Speaker, user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [MAIL]
    mcp.on_call["send_mail"] = lambda _: {"content": [{"type": "text", "text": "no such address"}], "isError": True}
    await user.connect(mcp)
    key = (await user.tools())["send_mail"]["id"]
    done = await speaker(lambda client: client.execute(key))
    assert (done.text, done.is_error) == ("no such address", True)


async def test_each_kind_of_failure_has_a_class_of_its_own(
    speaker: Speaker, administrator: Speaker, kind: Kind, address: str, user: TestUser
) -> None:
    await user.add_tools(FORECAST, MAIL)
    keys = {name: each["id"] for name, each in (await user.tools()).items()}
    wrong = await failure(speaker(lambda client: client.execute(keys["get_forecast"], {"place": 1})), ArgumentsInvalid)
    assert (wrong.code, wrong.status) == ("TOOL_VALIDATION_ERROR", 422)
    assert wrong.errors
    assert wrong.request_id
    assert str(wrong).startswith("TOOL_VALIDATION_ERROR: ")
    pushed = await failure(speaker(lambda client: client.execute(keys["send_mail"])), ToolFailed)
    assert (pushed.code, pushed.outcome, pushed.cause) == ("SERVER_CONNECTION_ERROR", "failed", "push")
    missing = await failure(speaker(lambda client: client.execute(str(uuid.uuid4()))), NotFound)
    assert missing.code == "TOOL_NOT_FOUND"
    unsaid = await failure(speaker(lambda client: client.discover()), InvalidInput)
    assert unsaid.code == "invalid_input"
    await failure(speaker(lambda client: client.servers.create("files", "push")), Conflict)
    await failure(speaker.all(lambda client: client.users.list()), Forbidden)
    async with speaking(kind, address, "no-key-of-ours") as stranger:
        await failure(stranger(lambda client: client.discover(MESSAGE)), Unauthenticated)


async def test_a_server_from_its_making_to_its_end(speaker: Speaker) -> None:
    server: Server = await speaker(lambda client: client.servers.create("files", "push", tags=["disk"]))
    assert server.created_at.tzinfo is not None
    run = await speaker(lambda client: client.servers.push_tools(server.id, [FORECAST, MAIL], wait=True))
    assert (run.state, run.ended, run.counts["added"]) == ("succeeded", True, 2)
    run = await speaker(lambda client: client.servers.reindex(server.id, force=True))
    assert (await speaker(lambda client: client.runs.wait(run.id))).counts["embedded"] == 2
    assert (await speaker(lambda client: client.runs.get(run.id))).state == "succeeded"
    [again] = await speaker(lambda client: client.servers.reindex_all())
    assert (await speaker(lambda client: client.runs.wait(again.id))).server_id == server.id
    assert len(await speaker.all(lambda client: client.servers.runs(server.id))) == 3
    changed = await speaker(lambda client: client.servers.update(server.id, name="papers", tags=[]))
    assert (changed.name, changed.tags, changed.tool_count) == ("papers", [], 2)
    assert [each.name for each in await speaker.all(lambda client: client.servers.list())] == ["papers"]
    await speaker(lambda client: client.servers.delete(server.id))
    await failure(speaker(lambda client: client.servers.get(server.id)), NotFound)


async def test_a_list_goes_on_over_all_pages(speaker: Speaker, user: TestUser) -> None:
    await user.add_tools(*(tool(f"tool_{number}") for number in range(7)))
    names = [f"tool_{number}" for number in range(7)]
    assert [each.name for each in await speaker.all(lambda client: client.tools.list(limit=3))] == names
    assert [each.name for each in await speaker.all(lambda client: client.tools.list(name="_3"))] == ["tool_3"]


async def test_a_tool_is_switched_and_a_changed_one_approved(speaker: Speaker, user: TestUser) -> None:
    server_id = await user.add_tools(FORECAST)
    [found] = await speaker.all(lambda client: client.tools.list(visible=True))
    off = await speaker(lambda client: client.tools.update(found.id, enabled=False, tags=["sky"], pinned=True))
    assert (off.enabled, off.enabled_by, off.own_tags, off.pinned) == (False, "user", ["sky"], True)
    given_back = await speaker(lambda client: client.tools.update(found.id, enabled=None))
    assert (given_back.enabled, given_back.enabled_by) == (True, "default")
    assert [(each.tag, each.count) for each in await speaker(lambda client: client.tools.tags())] == [("sky", 1)]
    await user.push(server_id, [{**FORECAST, "description": "Something else."}])
    [change] = await speaker.all(lambda client: client.tools.history(found.id))
    assert change.fields == ["description"]
    changed = await speaker(lambda client: client.tools.get(found.id))
    assert changed.state == "changed"
    await failure(speaker(lambda client: client.tools.approve(found.id, found.definition_hash)), Conflict)
    approved = await speaker(lambda client: client.tools.approve(found.id, changed.definition_hash))
    assert approved.state == "approved"


async def test_rules_are_previewed_and_put_and_got_as_they_were(speaker: Speaker, user: TestUser) -> None:
    await user.add_tools(FORECAST, MAIL)
    rules: list[Rule] = [{"pattern": ["*mail*"], "enabled": False}]
    preview = await speaker(lambda client: client.rules.preview(rules, changed=True))
    assert [(each.name, each.visible) for each in preview.items] == [("send_mail", False)]
    put = await speaker(lambda client: client.rules.put([*rules, {"pattern": ["nothing"], "enabled": False}]))
    assert len(put.warnings) == 1
    got = await speaker(lambda client: client.rules.get())
    assert got.rules == put.rules
    assert (await speaker(lambda client: client.rules.put(got.rules))).rules == got.rules


async def test_a_project_from_its_making_to_its_end(speaker: Speaker) -> None:
    made = await speaker(lambda client: client.projects.create("support", read_only=True, limit=3))
    assert (made.read_only, made.limit, made.optimization) == (True, 3, "hybrid")
    changed = await speaker(lambda client: client.projects.update(made.id, limit=None, optimization=None))
    assert (changed.limit, changed.optimization, changed.read_only) == (None, None, True)
    assert await speaker.all(lambda client: client.projects.list()) == [changed]
    assert await speaker(lambda client: client.projects.get(made.id)) == changed
    await speaker(lambda client: client.projects.delete(made.id))
    await failure(speaker(lambda client: client.projects.get(made.id)), NotFound)


async def test_core_tools_are_part_of_every_answer(speaker: Speaker) -> None:
    assert (await speaker(lambda client: client.tools.core())).tools == []
    put = await speaker(lambda client: client.tools.replace_core([MAIL]))
    assert [each["name"] for each in put.tools] == ["send_mail"]
    assert [each.source for each in (await speaker(lambda client: client.discover(MESSAGE))).tools] == ["core"]


async def test_users_and_keys_are_made_and_end(administrator: Speaker, kind: Kind, address: str) -> None:
    user_id = f"user-{uuid.uuid4().hex[:12]}"
    await administrator(lambda client: client.users.create(user_id, "Alice"))
    changed = await administrator(lambda client: client.users.update(user_id, settings={"limit": 3}))
    assert (changed.name, changed.settings) == ("Alice", {"limit": 3})
    expiry = datetime.now(UTC) + timedelta(days=1)
    made = await administrator(lambda client: client.keys.create("user", user_id=user_id, expires_at=expiry))
    assert made.expires_at == expiry
    assert made.key not in repr(made)
    async with speaking(kind, address, made.key) as alice:
        assert await alice.all(lambda client: client.servers.list()) == []
        await administrator(lambda client: client.keys.revoke(made.id))
        await failure(alice.all(lambda client: client.servers.list()), Unauthenticated)
    listed = {each.id: each for each in await administrator.all(lambda client: client.keys.list())}
    assert (listed[made.id].key, listed[made.id].revoked_at is None) == (None, False)
    assert user_id in {each.id for each in await administrator.all(lambda client: client.users.list())}
    await administrator(lambda client: client.users.delete(user_id))
    await failure(administrator(lambda client: client.users.get(user_id)), NotFound)


async def test_one_client_acts_for_many_users(administrator: Speaker, kind: Kind, address: str) -> None:
    service = await administrator(lambda client: client.keys.create("service"))
    names = [f"user-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    async with speaking(kind, address, service.key) as backend:
        alice, bob = (backend.for_user(name) for name in names)
        await alice(lambda client: client.servers.create("hers", "push"))
        await bob(lambda client: client.servers.create("his", "push"))
        assert [each.name for each in await alice.all(lambda client: client.servers.list())] == ["hers"]
        assert [each.name for each in await bob.all(lambda client: client.servers.list())] == ["his"]
        await failure(backend.all(lambda client: client.servers.list()), InvalidInput)  # for nobody in particular


async def test_health_and_whatever_else_there_is(speaker: Speaker) -> None:
    assert (await speaker(lambda client: client.health())).status == "ok"
    assert (await speaker(lambda client: client.ready())).model
    events = await speaker(lambda client: client.request("GET", "/audit", params={"action": "key.create"}))
    assert [each["action"] for each in events.json()["items"]] == ["key.create"]
    await failure(speaker(lambda client: client.request("POST", "/rules/preview", json={})), InvalidInput)


async def test_an_id_cannot_lead_to_another_route(administrator: Speaker) -> None:
    await failure(administrator(lambda client: client.users.get("../keys")), NotFound)
    assert (await administrator(lambda client: client.request("GET", "/users/../keys"))).status_code == 200


LEFT_TO_REQUEST = {
    ("GET", "/audit"),
    ("GET", "/metrics"),
    ("GET", "/stats"),
    ("POST", "/catalog/search"),
    ("POST", "/eval"),
    ("GET", "/selections"),
    ("GET", "/selections/export"),
    ("DELETE", "/selections"),
    ("GET", "/runs/{}/events"),
    *((method, re.sub(r"{\w+}", "{}", path)) for path in MCP_PATHS for method in ("GET", "POST", "DELETE")),
}
"""For people, for Prometheus, for MCP clients."""


def test_the_client_knows_every_route_of_the_service(container: Container) -> None:
    """One that is added belongs into `rooms.py`, or into what is left to `request`."""
    paths = get_app(container).openapi()["paths"]
    offered = {(method.upper(), re.sub(r"{\w+}", "{}", path)) for path, methods in paths.items() for method in methods}
    source = Path(rooms.__file__).read_text()
    known = set(re.findall(r'to\(\s*"([A-Z]+) (/[^"]*)"', source))
    assert len(known) > 35
    assert offered - known - LEFT_TO_REQUEST == set()
    assert known <= offered


async def test_both_clients_have_the_types_that_they_say(address: str) -> None:
    """Checked by mypy; here, that it is true."""
    with Toolscout(address, ADMIN_KEY) as blocking:
        assert_type(blocking.for_user("alice"), Toolscout)
        assert isinstance(blocking.for_user("alice"), Toolscout)
    async with AsyncToolscout(address, ADMIN_KEY) as awaited:
        found = await awaited.for_user("alice").discover(MESSAGE)
        assert_type(found, Discovery)
        assert isinstance(found, Discovery)


def blocking_types(client: Toolscout) -> None:
    assert_type(client.discover(MESSAGE), Discovery)
    client.discover(MESSAGE, limt=3)  # type: ignore[call-arg]
    client.servers.create("files", "carrier pigeon")  # type: ignore[arg-type]
