"""What MCP clients list is cached for each user and project, and a change is seen at once on every replica."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from app.catalog.listing_cache import ListingCache
from app.catalog.visibility import Scope
from app.container import Container, open_container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import OpenService, make_database, make_settings, outbound_allow, resolve_nothing, tool
from tests.support.mcp_client import Json, call_meta_tool
from tests.support.mcp_server import FakeMcpServer, Fault, status

FULL = "/mcp/full"


async def list_servers(user: TestUser, path: str = FULL) -> list[Json]:
    servers: list[Json] = (await call_meta_tool(user.http, "list_servers", {}, path))["structuredContent"]["servers"]
    return servers


async def list_tools(user: TestUser, server: str, path: str = FULL) -> list[str]:
    result = await call_meta_tool(user.http, "list_tools", {"server": server}, path)
    return [each["name"] for each in result["structuredContent"]["tools"]]


async def get_details(user: TestUser, tool_key: str) -> Json:
    result: Json = await call_meta_tool(user.http, "get_tool_details", {"toolKey": tool_key}, FULL)
    return result


@dataclass(frozen=True)
class Replicas:
    """Two services on one database, and a user with a client of each."""

    first: TestUser
    second: TestUser
    server_id: str


@pytest.fixture
async def replicas(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, mcp: FakeMcpServer
) -> AsyncIterator[Replicas]:
    mcp.tools = [tool("echo", "Repeats a text."), tool("reverse", "Reverses a text.")]
    database = make_database(postgres)
    settings = make_settings(tmp_path_factory.mktemp("replicas"), outbound_allow=outbound_allow(mcp))
    async with (
        open_container(settings, database, resolve_nothing) as one,
        open_container(settings, database, resolve_nothing) as other,
        new_user(one) as user,
        open_client(other, Authorization=f"Bearer {user.key}") as http,
    ):
        server_id = await user.connect(mcp, "texts")
        yield Replicas(user, TestUser(user.id, user.key, http), server_id)


async def change_description(user: TestUser, server_id: str, _mcp: FakeMcpServer) -> None:
    await patch(user, f"/servers/{server_id}", description="Other words.")


async def rename_server(user: TestUser, server_id: str, _mcp: FakeMcpServer) -> None:
    await patch(user, f"/servers/{server_id}", name="writings")


async def disable_tool(user: TestUser, _server_id: str, _mcp: FakeMcpServer) -> None:
    await patch(user, f"/tools/{(await user.tools())['echo']['id']}", enabled=False)


async def replace_rules(user: TestUser, _server_id: str, _mcp: FakeMcpServer) -> None:
    rules = [{"pattern": ["echo"], "enabled": False}]
    assert (await user.http.put("/rules", json={"rules": rules})).status_code == 200


async def list_other_tools(user: TestUser, server_id: str, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("shout", "Writes a text in capitals.")]
    assert (await user.reindex(server_id))["state"] == "succeeded"


async def break_server(user: TestUser, server_id: str, mcp: FakeMcpServer) -> None:
    """Its status changes with a failed run, and nothing else does."""
    mcp.fault = Fault(status(503))
    assert (await user.reindex(server_id))["state"] == "failed"


async def delete_server(user: TestUser, server_id: str, _mcp: FakeMcpServer) -> None:
    assert (await user.http.delete(f"/servers/{server_id}")).status_code == 204


async def patch(user: TestUser, path: str, **changes: Any) -> None:
    answer = await user.http.patch(path, json=changes)
    assert answer.status_code == 200, answer.text


Change = Callable[[TestUser, str, FakeMcpServer], Awaitable[None]]


@pytest.mark.parametrize(
    "change",
    [
        change_description,
        rename_server,
        disable_tool,
        replace_rules,
        list_other_tools,
        break_server,
        delete_server,
    ],
)
async def test_a_change_is_seen_at_once_on_another_replica(
    replicas: Replicas, mcp: FakeMcpServer, change: Change
) -> None:
    before = await list_servers(replicas.second)
    assert await list_servers(replicas.second) == before
    await change(replicas.first, replicas.server_id, mcp)
    after = await list_servers(replicas.second)
    assert after != before
    assert after == await list_servers(replicas.first)


async def test_details_and_tools_follow_a_new_definition(replicas: Replicas, mcp: FakeMcpServer) -> None:
    key = (await replicas.first.tools())["echo"]["id"]
    assert await list_tools(replicas.second, "texts") == ["echo", "reverse"]
    assert (await get_details(replicas.second, key))["structuredContent"]["description"] == "Repeats a text."
    mcp.tools = [tool("echo", "Says it again.")]
    await replicas.first.reindex(replicas.server_id)
    assert await list_tools(replicas.second, "texts") == ["echo"]
    assert (await get_details(replicas.second, key))["structuredContent"]["description"] == "Says it again."
    await patch(replicas.first, f"/tools/{key}", enabled=False)
    assert (await get_details(replicas.second, key))["isError"]


async def test_long_integers_of_a_schema_stay_exact(user: TestUser) -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 10**30 + 1}}}
    await user.add_tools(tool("pay", inputSchema=schema))
    key = (await user.tools())["pay"]["id"]
    for _ in range(2):  # read, then cached
        details = (await get_details(user, key))["structuredContent"]
        assert details["inputSchema"]["properties"]["amount"]["maximum"] == 10**30 + 1


async def test_users_and_projects_do_not_share_entries(container: Container, user: TestUser) -> None:
    await user.add_tools(tool("read_file"), tool("write_file"), server="files")
    rules = [{"pattern": ["read_*"], "enabled": True}]
    body = {"name": "reading", "server_ids": None, "rules": rules}
    project = (await user.http.post("/projects", json=body)).json()["id"]
    async with new_user(container) as other:
        await other.add_tools(tool("burn_file"), server="files")
        for _ in range(2):  # read, then cached
            assert await list_tools(user, "files") == ["read_file", "write_file"]
            assert await list_tools(user, "files", f"/projects/{project}/mcp/full") == ["read_file"]
            assert await list_tools(other, "files") == ["burn_file"]
        key = (await user.tools())["write_file"]["id"]
        assert "isError" not in await get_details(user, key)
        assert (await get_details(other, key))["isError"]


@pytest.mark.parametrize(("ttl_s", "repeated"), [(3600, 0), (0, 1)])
async def test_lists_are_cached_for_their_time_and_details_until_they_change(
    open_service: OpenService, ttl_s: float, repeated: int
) -> None:
    async with open_service(mcp_list_cache_s=ttl_s) as service, new_user(service) as user:
        await user.add_tools(tool("read_file"))
        scope, cache, reads = Scope(user.id, service.model.id), ListingCache(ttl_s), []

        async def read() -> Json:
            reads.append(1)
            return {"tools": []}

        async with service.database.transaction(user.id) as session:
            for _ in range(2):
                await cache.get_list(session, scope, ("files",), read)
            assert len(reads) == 1 + repeated
            reads.clear()
            for _ in range(2):
                await cache.get_details(session, scope, "key", read)
            assert len(reads) == 1
            await cache.get_details(session, scope, "other", read)
            assert len(reads) == 2


async def test_what_is_larger_than_the_cache_is_returned_and_not_kept(
    container: Container, user: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.catalog.listing_cache._MAX_LIST_BYTES", 5_000)
    cache, scope, reads = ListingCache(3600), Scope(user.id, container.model.id), []

    async def read() -> Json:
        reads.append(1)
        return {"text": "x" * size}

    async with container.database.transaction(user.id) as session:
        for size, expected in ((1_000, 1), (10_000, 3)):
            for _ in range(2):
                assert await cache.get_list(session, scope, (str(size),), read) == {"text": "x" * size}
            assert len(reads) == expected
        for number in range(20):
            size = 1_000
            await cache.get_list(session, scope, (str(number),), read)
        assert cache._lists.bytes <= 5_000
