"""A user has only so many servers, projects, keys and tags, whichever interface creates them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService, tool

LIMIT = 3


@pytest.fixture
async def service(open_service: OpenService) -> AsyncIterator[Container]:
    limits = dict.fromkeys(("max_servers", "max_projects", "max_keys", "max_tags"), LIMIT)
    async with open_service(**limits) as container:
        yield container


@pytest.fixture
async def user(service: Container) -> AsyncIterator[TestUser]:
    async with new_user(service) as created:
        yield created


@pytest.fixture
async def admin(service: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as client:
        yield client


def check_refused(answer: httpx.Response, what: str) -> None:
    detail = assert_problem(answer, 422, "invalid_input")["detail"]
    assert detail.startswith(f"a user has at most {LIMIT} {what}")


async def create_many(create: Any) -> list[httpx.Response]:
    """Send twice as many requests as are allowed, at the same time. Return those that were refused."""
    answers = await asyncio.gather(*(create(number) for number in range(2 * LIMIT)))
    return [answer for answer in answers if answer.status_code != 201]


def new_server(number: int, **fields: Any) -> dict[str, Any]:
    return {"name": f"server-{number}", "transport": "push", **fields}


async def test_servers_are_limited_although_requests_arrive_together(service: Container, user: TestUser) -> None:
    refused = await create_many(lambda number: user.http.post("/servers", json=new_server(number)))
    assert len(refused) == LIMIT
    for answer in refused:
        check_refused(answer, "servers")
    servers = (await user.http.get("/servers")).json()["items"]
    await user.http.delete(f"/servers/{servers[0]['id']}")
    assert (await user.http.post("/servers", json=new_server(9))).status_code == 201
    async with new_user(service) as other:
        assert (await other.http.post("/servers", json=new_server(0))).status_code == 201


async def test_an_import_takes_as_many_servers_as_there_is_room_for(user: TestUser) -> None:
    servers = {f"s{number}": {"url": f"https://s{number}.example/mcp", "disabled": True} for number in range(LIMIT + 2)}
    result = (await user.http.post("/servers/import", json={"config": {"mcpServers": servers}})).json()
    assert [each["name"] for each in result["imported"]] == ["s0", "s1", "s2"]
    assert [each["name"] for each in result["skipped"]] == ["s3", "s4"]
    assert "at most 3 servers" in result["skipped"][0]["reason"]


async def test_projects_are_limited_although_requests_arrive_together(user: TestUser) -> None:
    def create(number: int) -> Any:
        return user.http.post("/projects", json={"name": f"p{number}", "server_ids": None})

    refused = await create_many(create)
    assert len(refused) == LIMIT
    for answer in refused:
        check_refused(answer, "projects")


async def test_active_keys_of_a_user_are_limited(user: TestUser, admin: httpx.AsyncClient) -> None:
    body = {"kind": "user", "user_id": user.id}
    refused = await create_many(lambda _: admin.post("/keys", json=body))
    assert len(refused) == LIMIT + 1, "the user has one already"
    for answer in refused:
        check_refused(answer, "active keys")
    keys = [key for key in (await admin.get("/keys")).json()["items"] if key["user_id"] == user.id]
    other = next(key for key in keys if not user.key.startswith(key["prefix"]))
    assert (await admin.delete(f"/keys/{other['id']}")).status_code in (200, 204)
    assert (await admin.post("/keys", json=body)).status_code == 201
    assert (await admin.post("/keys", json={"kind": "service"})).status_code == 201, "those of no user are not counted"


async def test_different_tags_are_limited_wherever_they_are_given(user: TestUser) -> None:
    server_id = await user.add_tools(tool("read", "Read a file."), tags=["a", "b"])
    tool_id = (await user.tools())["read"]["id"]
    assert (await user.http.patch(f"/tools/{tool_id}", json={"tags": ["c"]})).status_code == 200
    rule = {"pattern": ["*"], "tags": ["d"]}
    for answer in (
        await user.http.post("/servers", json=new_server(1, tags=["d"])),
        await user.http.patch(f"/servers/{server_id}", json={"tags": ["d"]}),
        await user.http.patch(f"/tools/{tool_id}", json={"tags": ["c", "d"]}),
        await user.http.put("/rules", json={"rules": [rule]}),
        await user.http.post("/projects", json={"name": "p", "server_ids": None, "rules": [rule]}),
    ):
        check_refused(answer, "different tags")
    allowed = {"pattern": ["*"], "tags": ["a", "b", "c"]}
    assert (await user.http.put("/rules", json={"rules": [allowed]})).status_code == 200
    project = await user.http.post("/projects", json={"name": "p", "server_ids": None, "rules": [allowed]})
    assert project.status_code == 201
    changed = await user.http.patch(f"/projects/{project.json()['id']}", json={"rules": [rule]})
    check_refused(changed, "different tags")


async def test_a_user_above_a_limit_keeps_and_changes_what_it_has(service: Container, user: TestUser) -> None:
    server_id = await user.add_server()
    tags = [f"tag-{number}" for number in range(2 * LIMIT)]
    async with service.database.transaction(user.id) as session:
        await session.rows("UPDATE mcp_servers SET tags = %(tags)s", {"tags": tags})
    for kept in (tags, tags[:-1]):
        assert (await user.http.patch(f"/servers/{server_id}", json={"tags": kept})).status_code == 200
    check_refused(await user.http.patch(f"/servers/{server_id}", json={"tags": ["new"]}), "different tags")
