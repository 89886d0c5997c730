"""Tools: listed, filtered, enabled, tagged and pinned."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from app.container import Container
from tests.support.checks import assert_problem, pages
from tests.support.clients import TestUser, new_user
from tests.support.factories import tool


@dataclass(frozen=True)
class Filled:
    user: TestUser
    servers: dict[str, str]
    """Ids by name."""


@pytest.fixture(scope="module")
async def filled(container: Container) -> AsyncIterator[Filled]:
    """Five tools on two servers, for tests that only read."""
    names = {"files": ["read_file", "write_file", "100%_sure"], "mail": ["read_mail", "send_mail"]}
    async with new_user(container) as user:
        servers = {name: await user.add_tools(*map(tool, tools), server=name) for name, tools in names.items()}
        await change_tool(user, "read_file", tags=["safe"])
        await change_tool(user, "read_mail", tags=["safe", "private"])
        await change_tool(user, "send_mail", enabled=False)
        yield Filled(user, servers)


async def change_tool(user: TestUser, name: str, **changes: Any) -> dict[str, Any]:
    tool_id = (await user.tools())[name]["id"]
    answer = await user.http.patch(f"/tools/{tool_id}", json=changes)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    del shown["run_id"], shown["warnings"]
    return shown


async def test_a_tool_is_returned_as_its_server_defined_it(user: TestUser) -> None:
    definition = {
        "name": "read_file",
        "title": "Read a file",
        "description": "Reads a file.",
        "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    }
    server_id = await user.add_tools(definition)
    shown = (await user.tools())["read_file"]
    assert {
        "name": shown["name"],
        "title": shown["title"],
        "description": shown["description"],
        "inputSchema": shown["input_schema"],
        "outputSchema": shown["output_schema"],
        "annotations": shown["annotations"],
    } == definition
    assert (shown["server_id"], shown["server_name"]) == (server_id, "files")
    decided = {key: shown[key] for key in ("enabled", "enabled_by", "tags", "pinned", "state", "flags", "embedded")}
    assert decided == {
        "enabled": True,
        "enabled_by": "default",
        "tags": [],
        "pinned": False,
        "state": "approved",
        "flags": [],
        "embedded": True,
    }
    assert shown["tokens"] > 0
    details = (await user.http.get(f"/tools/{shown['id']}")).json()
    more = {"icons": None, "execution": None, "known_examples": details["known_examples"], "own_findings": []}
    assert details == shown | more


async def test_tools_are_listed_in_pages_by_name(user: TestUser) -> None:
    names = [f"tool_{number}" for number in range(7)]
    await user.add_tools(*map(tool, reversed(names)))
    found = await pages(user.http, "/tools", limit=3)
    assert [[shown["name"] for shown in page] for page in found] == [names[:3], names[3:6], names[6:]]


async def test_pages_hold_all_tools_of_the_same_name(user: TestUser) -> None:
    servers = {await user.add_tools(tool("search"), server=f"server-{number}") for number in range(5)}
    found = await pages(user.http, "/tools", limit=2)
    assert {shown["server_id"] for page in found for shown in page} == servers


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, ["read_file", "write_file", "100%_sure", "read_mail", "send_mail"]),
        ({"name": "read"}, ["read_file", "read_mail"]),
        ({"name": "READ"}, ["read_file", "read_mail"]),
        ({"name": "%"}, ["100%_sure"]),
        ({"name": "d_f"}, ["read_file"]),
        ({"name": "nothing"}, []),
        ({"tag": "safe"}, ["read_file", "read_mail"]),
        ({"tag": "private"}, ["read_mail"]),
        ({"tag": "saf"}, []),
        ({"enabled": False}, ["send_mail"]),
        ({"enabled": True}, ["read_file", "write_file", "100%_sure", "read_mail"]),
        ({"server_id": "files"}, ["read_file", "write_file", "100%_sure"]),
        ({"server_id": "mail", "enabled": True}, ["read_mail"]),
        ({"server_id": "files", "tag": "safe", "name": "file"}, ["read_file"]),
        ({"server_id": "files", "tag": "private"}, []),
    ],
    ids=str,
)
async def test_filters_can_be_combined(filled: Filled, query: dict[str, Any], names: list[str]) -> None:
    named = {"server_id": filled.servers[query["server_id"]]} if "server_id" in query else {}
    found = await pages(filled.user.http, "/tools", limit=2, **{**query, **named})
    assert sorted(shown["name"] for page in found for shown in page) == sorted(names)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (
            {"enabled": False},
            {"enabled": False, "enabled_by": "user", "visible": False, "hidden_by": "user"},
        ),
        ({"enabled": True}, {"enabled": True, "enabled_by": "user"}),
        ({"enabled": None}, {}),
        ({"tags": ["safe", "daily"]}, {"tags": ["safe", "daily"], "own_tags": ["safe", "daily"]}),
        ({"tags": []}, {"tags": []}),
        ({"pinned": True}, {"pinned": True}),
        ({}, {}),
    ],
    ids=str,
)
async def test_a_patch_changes_only_the_fields_that_it_names(
    user: TestUser, changes: dict[str, Any], shown: dict[str, Any]
) -> None:
    await user.add_tools(tool("read_file"), tool("write_file"))
    before = await user.tools()
    after = await change_tool(user, "read_file", **changes)
    assert after == {**before["read_file"], **shown, "updated_at": after["updated_at"]}
    assert await user.tools() == {**before, "read_file": after}


@pytest.mark.parametrize(
    "changes",
    [
        {"enabled": "no"},
        {"enabled": 0},
        {"pinned": None},
        {"tags": None},
        {"tags": "safe"},
        {"tags": [7]},
        {"tags": [""]},
        {"tags": ["x" * 65]},
        {"tags": ["x"] * 65},
        {"name": "renamed"},
        {"input_schema": {}},
        {"state": "approved"},
    ],
    ids=str,
)
async def test_an_invalid_patch_changes_nothing(user: TestUser, changes: dict[str, Any]) -> None:
    await user.add_tools(tool("read_file"))
    before = await user.tools()
    assert_problem(await user.http.patch(f"/tools/{before['read_file']['id']}", json=changes), 422)
    assert await user.tools() == before


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PATCH", {"pinned": True})])
async def test_a_tool_that_does_not_exist_is_not_found(
    user: TestUser, method: str, body: dict[str, Any] | None
) -> None:
    await user.add_tools(tool("read_file"))
    tool_id = (await user.tools())["read_file"]["id"]
    for missing in (str(uuid.uuid4()), "read_file", "%20"):
        assert_problem(await user.http.request(method, f"/tools/{missing}", json=body), 404)
    assert (await user.http.request(method, f"/tools/{tool_id}", json=body)).status_code == 200


async def test_a_persons_settings_survive_a_new_definition(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read_file", "Reads a file."), tool("write_file"))
    decided = {"enabled": False, "tags": ["safe"], "pinned": True}
    await change_tool(user, "read_file", **decided)
    await user.push(server_id, [tool("read_file", "Reads a file, now faster."), tool("write_file")])
    after = (await user.tools())["read_file"]
    assert after["description"] == "Reads a file, now faster."
    assert {key: after[key] for key in decided} == decided
