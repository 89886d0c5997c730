"""Core tools, which every answer includes: those of a user, and those of everyone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool

CLOCK = tool("clock", "Tells the time.")
ASK = tool("ask_user", "Asks the user something.")
SetEveryones = Callable[[list[dict[str, Any]]], Awaitable[None]]


@pytest.fixture
async def set_everyones(admin: httpx.AsyncClient) -> AsyncIterator[SetEveryones]:
    """All tests share one database: remove the tools afterwards."""

    async def put(tools: list[dict[str, Any]]) -> None:
        answer = await admin.put("/core-tools", json={"tools": tools})
        assert answer.status_code == 200, answer.text

    yield put
    await put([])


async def put(http: httpx.AsyncClient, *tools: Any, **headers: str) -> httpx.Response:
    return await http.put("/core-tools", json={"tools": list(tools)}, headers=headers)


async def core(user: TestUser, **fields: Any) -> dict[str, str]:
    """Return descriptions by name, in the order of the answer."""
    answer = await user.discover("something that no tool does", **fields)
    return {hit["tool"]["name"]: hit["tool"]["description"] for hit in answer["tools"] if hit["source"] == "core"}


async def test_core_tools_are_returned_as_they_were_set(user: TestUser) -> None:
    assert (await user.http.get("/core-tools")).json() == {"tools": []}
    titled = {**ASK, "title": "Ask", "annotations": {"readOnlyHint": True}}
    answer = await put(user.http, CLOCK, titled)
    assert (answer.status_code, answer.json()) == (200, {"tools": [CLOCK, titled]})
    assert (await user.http.get("/core-tools")).json() == {"tools": [CLOCK, titled]}


async def test_setting_core_tools_replaces_all_of_them(user: TestUser) -> None:
    await put(user.http, CLOCK, ASK)
    await put(user.http, ASK)
    assert (await user.http.get("/core-tools")).json() == {"tools": [ASK]}
    await put(user.http)
    assert (await user.http.get("/core-tools")).json() == {"tools": []}


async def test_one_of_several_concurrent_lists_is_stored_as_a_whole(user: TestUser) -> None:
    lists = [[tool("clock", f"Clock {number}."), tool("ask_user", f"Asks {number}.")] for number in range(5)]
    answers = await asyncio.gather(*(put(user.http, *tools) for tools in lists))
    assert [answer.status_code for answer in answers] == [200] * 5
    assert (await user.http.get("/core-tools")).json()["tools"] in lists


async def test_core_tools_are_in_every_answer_unless_excluded(user: TestUser) -> None:
    await put(user.http, CLOCK, ASK)
    await user.add_tools(tool("read_file", "Reads a file."))
    assert list(await core(user)) == ["clock", "ask_user"]
    assert list(await core(user, similarity_threshold=1, tags=["none"], server_ids=[])) == ["clock", "ask_user"]
    assert await core(user, include_core_tools=False) == {}
    answer = await user.discover("read a file", similarity_threshold=0)
    assert [hit["source"] for hit in answer["tools"]][:2] == ["core", "core"]
    assert {hit["tool"]["name"] for hit in answer["tools"]} == {"clock", "ask_user", "read_file"}


async def test_core_tools_of_one_user_are_not_shown_to_another(user: TestUser, other_user: TestUser) -> None:
    await put(user.http, CLOCK)
    await put(other_user.http, ASK)
    assert (await core(user), await core(other_user)) == (
        {"clock": CLOCK["description"]},
        {"ask_user": ASK["description"]},
    )


async def test_core_tools_of_everyone_are_in_all_answers(
    user: TestUser, other_user: TestUser, set_everyones: SetEveryones
) -> None:
    await put(user.http, ASK)
    await set_everyones([CLOCK])
    assert set(await core(user)) == {"clock", "ask_user"}
    assert set(await core(other_user)) == {"clock"}
    await set_everyones([])
    assert (set(await core(user)), set(await core(other_user))) == ({"ask_user"}, set())


async def test_a_users_core_tool_replaces_one_of_everyone_with_the_same_name(
    user: TestUser, other_user: TestUser, set_everyones: SetEveryones
) -> None:
    await set_everyones([CLOCK])
    await put(user.http, tool("clock", "My own clock."))
    assert await core(user) == {"clock": "My own clock."}
    assert await core(other_user) == {"clock": "Tells the time."}


async def test_core_tools_of_everyone_and_of_a_user_are_listed_separately(
    user: TestUser, admin: httpx.AsyncClient, set_everyones: SetEveryones
) -> None:
    await set_everyones([CLOCK])
    await put(user.http, ASK)
    assert (await admin.get("/core-tools")).json() == {"tools": [CLOCK]}
    assert (await user.http.get("/core-tools")).json() == {"tools": [ASK]}
    assert (await admin.get("/core-tools", headers={"X-User-Id": user.id})).json() == {"tools": [ASK]}


async def test_a_user_key_cannot_set_core_tools_of_everyone(
    user: TestUser, other_user: TestUser, admin: httpx.AsyncClient
) -> None:
    assert (await put(user.http, CLOCK)).status_code == 200
    assert (await put(user.http, CLOCK, **{"X-User-Id": user.id})).status_code == 200
    assert_problem(await put(user.http, CLOCK, **{"X-User-Id": ""}), 403)
    assert_problem(await put(user.http, CLOCK, **{"X-User-Id": other_user.id}), 403)
    assert (await admin.get("/core-tools")).json() == {"tools": []}
    assert await core(other_user) == {}


async def test_a_service_key_must_name_a_user_and_cannot_set_those_of_everyone(
    user: TestUser, admin: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    for method, body in (("GET", None), ("PUT", {"tools": [CLOCK]})):
        assert_problem(await client.request(method, "/core-tools", json=body, headers={"X-API-Key": key}), 400)
        named = {"X-API-Key": key, "X-User-Id": user.id}
        assert (await client.request(method, "/core-tools", json=body, headers=named)).status_code == 200
    assert (await admin.get("/core-tools")).json() == {"tools": []}
    assert list(await core(user)) == ["clock"]


async def test_an_admin_key_sets_core_tools_of_the_user_that_it_names(
    user: TestUser, other_user: TestUser, admin: httpx.AsyncClient
) -> None:
    assert (await put(admin, CLOCK, **{"X-User-Id": user.id})).status_code == 200
    assert (list(await core(user)), list(await core(other_user))) == (["clock"], [])


@pytest.mark.parametrize(
    "tools",
    [
        [{"description": "nameless"}],
        ["clock"],
        [tool("n" * 129)],
        [tool("clock", "x" * 300_000)],
        [{**CLOCK, "inputSchema": []}],
        [CLOCK, CLOCK],
        [tool(f"tool_{number}") for number in range(51)],
    ],
    ids=["no name", "no object", "long name", "too large", "bad schema", "doubled", "too many"],
)
async def test_an_invalid_core_tool_rejects_the_whole_list(user: TestUser, tools: list[Any]) -> None:
    await put(user.http, ASK)
    assert_problem(await put(user.http, *tools), 422)
    assert (await user.http.get("/core-tools")).json() == {"tools": [ASK]}
    assert (await put(user.http, *(tool(f"tool_{number}") for number in range(50)))).status_code == 200
