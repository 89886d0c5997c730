"""`POST /feedback`: an outcome counts once, for the discovery's own user, on visible tools."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.container import Container
from app.discovery.ids import new_discovery_id
from tests.support.checks import Json, assert_problem, without_request_id
from tests.support.clients import TestUser, open_client
from tests.support.factories import tool
from tests.support.usage import uses

QUERY = "read a file"


@dataclass(frozen=True)
class World:
    container: Container
    user: TestUser
    discovery_id: str
    ids: dict[str, str]

    async def give_feedback(self, outcome: Any, **changes: Any) -> httpx.Response:
        body = {"discovery_id": self.discovery_id, "tool_key": self.ids["read_file"], "outcome": outcome, **changes}
        return await self.user.http.post("/feedback", json=body)

    async def count_outcomes(self, name: str = "read_file") -> dict[str, int]:
        counts = await uses(self.container.database, self.user.id)
        return {use: n for use, n in counts.get(self.ids[name], {}).items() if use != "discovered"}


@pytest.fixture
async def world(container: Container, user: TestUser) -> World:
    await user.add_tools(tool("read_file", "Reads a file."), tool("hidden", "Reads a file, too."))
    core = await user.http.put("/core-tools", json={"tools": [tool("browse")]})
    ids = {name: each["id"] for name, each in (await user.tools()).items()}
    ids["browse"] = (await user.discover(QUERY))["tools"][0]["tool_key"]
    assert core.status_code == 200
    assert (await user.http.patch(f"/tools/{ids['hidden']}", json={"enabled": False})).status_code == 200
    return World(container, user, (await user.discover(QUERY))["discovery_id"], ids)


@pytest.mark.parametrize(
    ("outcomes", "counts"),
    [
        (["called"], {"called": 1}),
        (["succeeded"], {"called": 1, "succeeded": 1}),
        (["failed"], {"called": 1, "failed": 1}),
        (["irrelevant"], {"irrelevant": 1}),
        (["called", "succeeded"], {"called": 1, "succeeded": 1}),
        (["succeeded", "called"], {"called": 1, "succeeded": 1}),
        (["failed", "failed", "succeeded"], {"called": 1, "succeeded": 1, "failed": 1}),
        (["irrelevant", "irrelevant"], {"irrelevant": 1}),
    ],
    ids=str,
)
async def test_each_outcome_counts_once_for_a_discovery(
    world: World, outcomes: list[str], counts: dict[str, int]
) -> None:
    for outcome in outcomes:
        answer = await world.give_feedback(outcome)
        assert (answer.status_code, answer.content) == (204, b"")
    assert await world.count_outcomes() == counts


async def test_each_discovery_counts_separately(world: World) -> None:
    assert (await world.give_feedback("succeeded")).status_code == 204
    again = (await world.user.discover(QUERY))["discovery_id"]
    assert (await world.give_feedback("succeeded", discovery_id=again)).status_code == 204
    assert await world.count_outcomes() == {"called": 2, "succeeded": 2}


async def test_an_unknown_discovery_or_another_users_is_not_found(world: World, other_user: TestUser) -> None:
    await other_user.add_tools(tool("read_file", "Reads a file."))
    invalid = [
        (await other_user.discover(QUERY))["discovery_id"],
        new_discovery_id(world.container.sealer, world.user.id, now=0),
        world.discovery_id.upper(),
        "nothing",
    ]
    missing = await world.give_feedback("called", discovery_id=str(uuid.uuid4()))
    assert_problem(missing, 404)
    for each in invalid:
        assert without_request_id(await world.give_feedback("called", discovery_id=each)) == without_request_id(missing)
    assert await world.count_outcomes() == {}
    assert (await world.give_feedback("called")).status_code == 204


async def test_a_tool_that_is_not_visible_is_not_found(world: World, other_user: TestUser) -> None:
    await other_user.add_tools(tool("read_file", "Reads a file."))
    theirs = (await other_user.tools())["read_file"]["id"]
    missing = await world.give_feedback("called", tool_key=str(uuid.uuid4()))
    assert_problem(missing, 404)
    for key in (world.ids["hidden"], theirs, "read_file"):
        assert without_request_id(await world.give_feedback("called", tool_key=key)) == without_request_id(missing)
    assert await world.count_outcomes("hidden") == {}
    assert (await world.user.http.patch(f"/tools/{world.ids['hidden']}", json={"enabled": True})).status_code == 200
    assert (await world.give_feedback("called", tool_key=world.ids["hidden"])).status_code == 204
    assert await world.count_outcomes("hidden") == {"called": 1}


async def test_feedback_on_a_core_tool_is_accepted_and_not_counted(world: World) -> None:
    assert (await world.give_feedback("succeeded", tool_key=world.ids["browse"])).status_code == 204
    assert await world.count_outcomes("browse") == {}


@pytest.fixture
async def project_client(world: World, admin: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a key of a project in which only `read_file` is visible."""
    rules = [{"pattern": ["read_file"], "enabled": True}]
    project = await world.user.http.post("/projects", json={"name": "p", "optimization": "hybrid", "rules": rules})
    assert project.status_code == 201, project.text
    body = {"kind": "user", "user_id": world.user.id, "project_id": project.json()["id"]}
    key = (await admin.post("/keys", json=body)).json()["key"]
    async with open_client(world.container, **{"X-API-Key": key}) as http:
        yield http


async def test_a_key_of_a_project_gives_feedback_on_the_projects_tools(
    world: World, project_client: httpx.AsyncClient
) -> None:
    await world.user.http.patch(f"/tools/{world.ids['hidden']}", json={"enabled": True})
    found = (await project_client.post("/discover", json={"query": QUERY})).json()

    async def give_feedback(name: str) -> httpx.Response:
        body: Json = {"discovery_id": found["discovery_id"], "tool_key": world.ids[name], "outcome": "succeeded"}
        return await project_client.post("/feedback", json=body)

    assert_problem(await give_feedback("hidden"), 404)
    assert (await give_feedback("read_file")).status_code == 204
    assert await world.count_outcomes() == {"called": 1, "succeeded": 1}
    assert_problem(await project_client.get("/stats"), 403)
    assert (await world.give_feedback("succeeded", tool_key=world.ids["hidden"])).status_code == 204


@pytest.mark.parametrize(
    "changes",
    [{"outcome": "loved"}, {"outcome": None}, {"tool_key": ""}, {"tool_key": 7}, {"discovery_id": None}, {"more": 1}],
    ids=str,
)
async def test_invalid_feedback_is_rejected(world: World, changes: Json) -> None:
    assert_problem(await world.give_feedback(**{"outcome": "called"} | changes), 422)
    assert (await world.give_feedback("called")).status_code == 204
