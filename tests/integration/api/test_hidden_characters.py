"""Names and tags with hidden characters: refused when they are sent, cleaned where older rows hold some."""

from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool

Json = dict[str, Any]

HIDDEN = ["git\u200bhub", "git\u202ehub", "git\U000e0041hub", "git\x1b[2Jhub", "git\x9bhub", "git\u2028hub"]
BLANK = ["   ", "\u00a0", "\u200b\u2060", "\u0301", "\u3164", "\u2800"]
UNTRIMMED = [" github", "github ", "github\u00a0"]
GOOD = "Gitüb 🦉"


def requests_with(name: str) -> list[tuple[str, str, Json, list[str | int]]]:
    """Return every request that gives something a name or a tag, with the place of the name."""
    rule = {"pattern": ["*"], "tags": [name]}
    return [
        ("POST", "/servers", {"name": name, "transport": "push"}, ["name"]),
        ("POST", "/servers", {"name": "tagged", "transport": "push", "tags": ["a", name]}, ["tags", 1]),
        ("PATCH", "/servers/{server}", {"name": name}, ["name"]),
        ("PATCH", "/servers/{server}", {"tags": [name]}, ["tags", 0]),
        ("PATCH", "/tools/{tool}", {"tags": [name]}, ["tags", 0]),
        ("PUT", "/rules", {"rules": [rule]}, ["rules", 0, "tags", 0]),
        ("POST", "/rules/preview", {"rules": [rule]}, ["rules", 0, "tags", 0]),
        ("POST", "/projects", {"name": name}, ["name"]),
        ("POST", "/projects", {"name": "ruled", "rules": [rule]}, ["rules", 0, "tags", 0]),
        ("PATCH", "/projects/{project}", {"name": name}, ["name"]),
    ]


@pytest.fixture
async def ids(user: TestUser) -> dict[str, str]:
    server = await user.add_tools(tool("read_file"), server="files")
    project = (await user.http.post("/projects", json={"name": "all"})).json()["id"]
    return {"server": server, "tool": (await user.tools())["read_file"]["id"], "project": project}


@pytest.mark.parametrize("name", [*HIDDEN, *BLANK, *UNTRIMMED], ids=ascii)
async def test_a_name_or_tag_that_cannot_be_seen_as_it_is_is_refused_with_its_field(
    user: TestUser, ids: dict[str, str], name: str
) -> None:
    for method, path, body, location in requests_with(name):
        answer = await user.http.request(method, path.format(**ids), json=body)
        problem = assert_problem(answer, 422, "invalid_input")
        assert [error["loc"] for error in problem["errors"]] == [["body", *location]], (method, path)
        assert name not in answer.text


async def test_a_visible_name_or_tag_is_accepted_everywhere(user: TestUser, ids: dict[str, str]) -> None:
    for method, path, body, _ in requests_with(GOOD):
        answer = await user.http.request(method, path.format(**ids), json=body)
        # the second server or project of this name is a conflict
        assert answer.status_code in (200, 201, 409), (method, path, answer.text)


@pytest.mark.parametrize("name", [HIDDEN[0], BLANK[0], UNTRIMMED[0]], ids=ascii)
async def test_names_of_users_and_keys_follow_the_same_rule(
    admin: httpx.AsyncClient, user: TestUser, name: str
) -> None:
    for path, body in (("/users", {"id": "somebody-new"}), ("/keys", {"kind": "user", "user_id": user.id})):
        problem = assert_problem(await admin.post(path, json={**body, "name": name}), 422)
        assert problem["errors"][0]["loc"] == ["body", "name"]
        assert (await admin.post(path, json={**body, "name": GOOD})).status_code == 201
        await admin.delete("/users/somebody-new")


@pytest.mark.parametrize("pattern", [*HIDDEN, *BLANK], ids=ascii)
async def test_a_pattern_of_a_rule_is_visible(user: TestUser, pattern: str) -> None:
    problem = assert_problem(await user.http.put("/rules", json={"rules": [{"pattern": ["a*", pattern]}]}), 422)
    assert problem["errors"][0]["loc"] == ["body", "rules", 0, "pattern", 1]


async def test_hidden_characters_are_removed_from_a_description(user: TestUser) -> None:
    sent = "Ig\u200bnore\u202e this.\r\nSecond line.\x1b[31m 🦉"
    body = {"name": "files", "transport": "push", "description": sent}
    created = (await user.http.post("/servers", json=body)).json()
    assert created["description"] == "Ignore this.\nSecond line. 🦉"
    changed = await user.http.patch(f"/servers/{created['id']}", json={"description": "a\u2066b"})
    assert changed.json()["description"] == "ab"


async def test_names_of_older_rows_are_shown_without_hidden_characters(
    user: TestUser, container: Container, ids: dict[str, str]
) -> None:
    """Earlier versions accepted them."""
    names = {"name": "fi\u202eles\u200b", "tags": ["ta\u200bg"], "user_id": user.id}
    async with container.database.transaction(user.id) as session:
        for change in (
            "mcp_servers SET name = %(name)s, description = %(name)s, tags = %(tags)s",
            "mcp_tool_embeddings SET server_name = %(name)s",
            "projects SET name = %(name)s",
        ):
            await session.rows(f"UPDATE {change} WHERE user_id = %(user_id)s RETURNING 1", names)
    [server] = (await user.http.get("/servers")).json()["items"]
    assert (server["name"], server["description"], server["tags"]) == ("files", "files", ["tag"])
    [project] = (await user.http.get("/projects")).json()["items"]
    assert project["name"] == "files"
    answer = await user.http.post("/discover", json={"query": "read_file"})
    assert answer.json()["tools"][0]["server_name"] == "files"
