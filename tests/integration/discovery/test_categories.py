"""The filter by categories, in `/discover` and `/tools`."""

import uuid
from typing import Any

from app.container import Container
from tests.support.categories import BRANCHES, EVENTS, add_categories
from tests.support.checks import assert_problem
from tests.support.clients import TestUser


async def find(user: TestUser, categories: Any, **fields: Any) -> set[str]:
    answer = await user.discover("create something new", similarity_threshold=0, categories=categories, **fields)
    return {each["tool"]["name"] for each in answer["tools"]}


async def test_only_tools_of_the_categories_are_searched(container: Container, user: TestUser) -> None:
    ids = await add_categories(container, user)
    assert ids.keys() == {"event", "branch"}
    everything = {each["name"] for each in (*EVENTS, *BRANCHES)}
    assert await find(user, None) == everything
    assert await find(user, [ids["event"]]) == {each["name"] for each in EVENTS}
    assert await find(user, list(ids.values())) == everything
    assert await find(user, []) == set()
    for strategy in ("semantic", "bm25", "hybrid"):
        answer = await user.discover("create", categories=[ids["branch"]], strategy=strategy, similarity_threshold=0)
        assert answer["total_searched"] == 3
        assert {each["server_name"] for each in answer["tools"]} <= {"code"}


async def test_a_search_in_memory_does_not_answer_for_a_filtered_one(container: Container, user: TestUser) -> None:
    ids = await add_categories(container, user)
    for _ in range(3):
        await find(user, None)
        await container.discoverer.snapshots.wait_loaded()
    assert await find(user, [ids["event"]]) == {each["name"] for each in EVENTS}


async def test_a_category_is_named_in_any_case(container: Container, user: TestUser) -> None:
    ids = await add_categories(container, user)
    renamed = await user.http.patch(f"/categories/{ids['event']}", json={"name": "My Week"})
    assert renamed.status_code == 200
    assert await find(user, ["my week"]) == {each["name"] for each in EVENTS}
    listed = await user.http.get("/tools", params={"categories": ["MY WEEK", ids["branch"]]})
    assert len(listed.json()["items"]) == 6


async def test_an_unknown_name_is_an_error_that_lists_the_names_and_an_unknown_id_is_ignored(
    container: Container, user: TestUser
) -> None:
    ids = await add_categories(container, user)
    problem = await user.http.post("/discover", json={"query": "create", "categories": ["calender"]})
    assert_problem(problem, 422)
    assert "branch" in problem.json()["detail"]
    assert_problem(await user.http.get("/tools", params={"categories": "calender"}), 422)
    assert await find(user, [str(uuid.uuid4())]) == set()
    assert await find(user, [str(uuid.uuid4()), ids["event"]]) == {each["name"] for each in EVENTS}


async def test_why_tells_that_a_tool_is_in_another_category(container: Container, user: TestUser) -> None:
    ids = await add_categories(container, user)
    body = {"query": "create a branch", "tool": "create_branch", "categories": [ids["event"]]}
    [reason] = (await user.http.post("/discover/why", json=body)).json()["items"]
    assert (reason["reason"], reason["included"]) == ("outside_filter", False)
    assert "categories" in reason["message"]
    [reason] = (await user.http.post("/discover/why", json=body | {"categories": [ids["branch"]]})).json()["items"]
    assert reason["included"]


async def test_a_category_of_hidden_tools_is_neither_listed_nor_found(container: Container, user: TestUser) -> None:
    ids = await add_categories(container, user)
    assert (await user.http.get(f"/categories/{ids['event']}")).status_code == 200
    rules = [{"pattern": ["*_event"], "enabled": False}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200
    assert [each["id"] for each in (await user.http.get("/categories")).json()["items"]] == [ids["branch"]]
    assert_problem(await user.http.get(f"/categories/{ids['event']}"), 404)
    assert_problem(await user.http.patch(f"/categories/{ids['event']}", json={"name": "hidden"}), 404)
    assert await find(user, [ids["event"]]) == set()
