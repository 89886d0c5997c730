"""Tags are searched: they stand in the words and in the text of a tool, and one that the message names counts."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.worker_steps import until

PLAIN = tool("list_items", "List the items of an account.")
OTHER = tool("list_people", "List the people of a team.")
WORD = "frobnication"


def names(answer: dict[str, Any]) -> list[str]:
    return [found["tool"]["name"] for found in answer["tools"]]


async def find_by_word(user: TestUser, **fields: Any) -> list[str]:
    return names(await user.discover(WORD, strategy="bm25", **fields))


async def tag_tool(user: TestUser, server_id: str, tags: list[str]) -> None:
    tool_id = (await user.tools())["list_items"]["id"]
    assert (await user.http.patch(f"/tools/{tool_id}", json={"tags": tags})).status_code == 200


async def tag_server(user: TestUser, server_id: str, tags: list[str]) -> None:
    assert (await user.http.patch(f"/servers/{server_id}", json={"tags": tags})).status_code == 200


async def tag_by_rule(user: TestUser, server_id: str, tags: list[str]) -> None:
    rules = [{"pattern": ["list_items"], "tags": tags}, {"pattern": ["nothing"], "enabled": False}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200


@pytest.mark.parametrize("tag", [tag_tool, tag_server, tag_by_rule])
async def test_a_tool_is_found_by_its_tag_soon_after_it_was_tagged_and_not_after_it_was_untagged(
    user: TestUser, tag: Callable[[TestUser, str, list[str]], Awaitable[None]]
) -> None:
    server_id = await user.add_tools(PLAIN, server="accounts")
    await user.add_tools(OTHER, server="teams")
    assert await find_by_word(user) == []
    await tag(user, server_id, [WORD])

    async def is_found() -> bool:
        return await find_by_word(user) == ["list_items"]

    async def is_not_found() -> bool:
        return await find_by_word(user) == []

    await until(is_found)
    await tag(user, server_id, [])
    await until(is_not_found)


async def test_tags_that_a_server_and_rules_have_beforehand_are_indexed_with_its_tools(user: TestUser) -> None:
    rules = [{"pattern": ["list_people"], "tags": ["quuxly"]}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
    await user.add_tools(PLAIN, OTHER, tags=[WORD])
    assert await find_by_word(user) == ["list_items", "list_people"]
    assert names(await user.discover("quuxly", strategy="bm25")) == ["list_people"]


async def test_a_tag_that_is_already_there_causes_no_run(user: TestUser) -> None:
    server_id = await user.add_tools(PLAIN, tags=["a", "b"])

    async def count_runs() -> int:
        return len((await user.http.get(f"/servers/{server_id}/runs")).json()["items"])

    assert await count_runs() == 1
    await tag_server(user, server_id, ["b", "a"])
    await tag_tool(user, server_id, [])
    await tag_by_rule(user, server_id, [])
    rule = {"pattern": ["list_items"], "enabled": True}
    assert (await user.http.put("/rules", json={"rules": [rule]})).status_code == 200
    assert await count_runs() == 1
    await tag_tool(user, server_id, ["c"])
    assert await count_runs() == 2


async def test_a_tag_that_the_message_names_counts_a_little(user: TestUser) -> None:
    await user.add_tools(PLAIN, server="aardvark", tags=["payroll"])
    await user.add_tools(PLAIN, server="zebra", tags=["warehouse"])
    search: dict[str, Any] = {"similarity_threshold": 0, "explain": True}

    async def rank(message: str) -> list[tuple[str, float]]:
        found = (await user.discover(message, **search))["tools"]
        return [(each["server_name"], each["explanation"]["tag_boost"]) for each in found]

    assert await rank("list the items of the warehouse") == [("zebra", 0.05), ("aardvark", 0)]
    assert await rank("list the items of the payroll") == [("aardvark", 0.05), ("zebra", 0)]
    assert {boost for _, boost in await rank("list the items")} == {0}


async def test_a_named_tag_counts_from_the_moment_that_a_tool_has_it(user: TestUser) -> None:
    server_id = await user.add_tools(PLAIN)

    async def get_boost() -> float:
        [found] = (await user.discover("items of the warehouse", similarity_threshold=0, explain=True))["tools"]
        boost: float = found["explanation"]["tag_boost"]
        return boost

    for tags, boost in ((["payroll"], 0), (["warehouse"], 0.05), ([], 0)):
        await tag_server(user, server_id, tags)
        assert await get_boost() == boost


async def test_a_named_tag_of_a_projects_rule_counts_in_the_project_alone(user: TestUser) -> None:
    await user.add_tools(PLAIN, server="zebra")
    project = {"name": "stock", "optimization": "hybrid", "rules": [{"pattern": ["list_*"], "tags": ["warehouse"]}]}
    project_id = (await user.http.post("/projects", json=project)).json()["id"]
    search: dict[str, Any] = {"similarity_threshold": 0, "explain": True}
    for fields, boost in (({"project_id": project_id}, 0.05), ({}, 0)):
        [found] = (await user.discover("items of the warehouse", **search, **fields))["tools"]
        assert found["explanation"]["tag_boost"] == boost


async def test_the_boost_of_a_filter_is_added_to_that_of_a_named_tag(user: TestUser) -> None:
    await user.add_tools(PLAIN, tags=["warehouse"])
    fields: dict[str, Any] = {"tags": ["warehouse"], "explain": True}
    [found] = (await user.discover("list the items of the warehouse", **fields))["tools"]
    assert found["explanation"]["tag_boost"] == pytest.approx(0.25)
    assert found["matched_tags"] == ["warehouse"]
