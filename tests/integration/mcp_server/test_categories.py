"""Categories over MCP: their names in the description of `tool_discovery`, and its argument `category`."""

import re
from typing import Any

import orjson

from app.container import Container
from app.indexing.categories.maker import make_categories
from tests.support.categories import BRANCHES, EVENTS, add_categories
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_client import Json, call_meta_tool, make_message, send_message

VERBS = ("create", "list", "rename", "move", "delete", "copy", "share", "print")
QUERY = "create a branch of the repository, and an event in the calendar"


async def list_meta_tools(user: TestUser) -> list[Json]:
    answer = await send_message(user.http, make_message("tools/list"), "/mcp")
    tools: list[Json] = answer.json()["result"]["tools"]
    return tools


async def find(user: TestUser, **arguments: Any) -> set[str]:
    found = await call_meta_tool(user.http, "tool_discovery", {"query": QUERY, **arguments})
    return {each["toolName"] for each in found["structuredContent"]["results"]}


async def test_a_model_searches_in_a_category(container: Container, user: TestUser) -> None:
    ids = await add_categories(container, user)
    names = {each["id"]: each["name"] for each in (await user.http.get("/categories")).json()["items"]}
    everything = await find(user)
    assert "create_branch" in everything
    assert "create_event" in everything
    in_events = await find(user, category=names[ids["event"]].upper())
    assert "create_event" in in_events
    assert in_events <= {each["name"] for each in EVENTS}
    assert await find(user, category=ids["branch"]) <= {each["name"] for each in BRANCHES}
    assert await find(user, category="") == everything, "models leave an argument empty that they do not use"


async def test_a_model_is_told_the_categories_if_it_names_an_unknown_one(container: Container, user: TestUser) -> None:
    ids = await add_categories(container, user)
    await user.http.patch(f"/categories/{ids['event']}", json={"name": "My week"})
    answer = await call_meta_tool(user.http, "tool_discovery", {"query": "create", "category": "my weak"})
    assert answer["isError"]
    assert "My week" in answer["content"][0]["text"]


async def test_the_list_names_the_categories_of_a_large_catalogue(container: Container, user: TestUser) -> None:
    for verb in VERBS:
        await user.add_tools(tool(f"{verb}_event", f"{verb.title()} an event of the calendar."), server=f"{verb} days")
        branch = tool(f"{verb}_branch", f"{verb.title()} a branch of a git repository.")
        await user.add_tools(branch, server=f"{verb} code")
    assert " Tools of " in (await list_meta_tools(user))[0]["description"], "there are no categories yet"
    await make_categories(container.database, user.id, container.model.id)
    names = [each["name"] for each in (await user.http.get("/categories")).json()["items"]]
    tools = await list_meta_tools(user)
    assert len(names) > 1
    assert tools[0]["description"].endswith(f" Categories: {'; '.join(sorted(names))}.")
    assert len(orjson.dumps(tools)) / 4 < 600
    for name in re.split("; ", tools[0]["description"].partition(" Categories: ")[2].removesuffix(".")):
        assert await find(user, category=name), "what the list names is found"
