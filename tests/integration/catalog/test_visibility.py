"""Which tools a discovery may find: switches and tags of tools and servers, on every level of the fallback chain."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest

from app.container import Container
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.checks import finished_run
from tests.support.clients import TestUser
from tests.support.factories import tool

READ = tool("read_file", "Reads a file from the disk.")
WRITE = tool("write_file", "Writes a file to the disk.")
MAIL = tool("send_mail", "Sends a mail to somebody.")
ASKED = "read and write files on the disk, and send a mail"


async def found(user: TestUser, **fields: Any) -> set[str]:
    """Return the names of all visible tools: a threshold of 0 lets all pass."""
    answer = await user.discover(ASKED, **{"similarity_threshold": 0, **fields})
    names = {hit["tool"]["name"] for hit in answer["tools"]}
    assert answer["total_searched"] == len(names)
    return names


async def change_tool(user: TestUser, name: str, **changes: Any) -> None:
    answer = await user.http.patch(f"/tools/{(await user.tools())[name]['id']}", json=changes)
    assert answer.status_code == 200, answer.text


async def change_server(user: TestUser, server_id: str, **changes: Any) -> None:
    answer = await user.http.patch(f"/servers/{server_id}", json=changes)
    assert answer.status_code == 200, answer.text


@pytest.fixture
async def files(user: TestUser) -> str:
    """The id of a server with two tools; the user has another server with one tool."""
    await user.add_tools(MAIL, server="mail")
    return await user.add_tools(READ, WRITE)


@pytest.mark.parametrize("strategy", ["hybrid", "semantic", "bm25"])
async def test_a_disabled_server_hides_its_tools_until_it_is_enabled(user: TestUser, files: str, strategy: str) -> None:
    assert await found(user, strategy=strategy) == {"read_file", "write_file", "send_mail"}
    await change_server(user, files, enabled=False)
    assert await found(user, strategy=strategy) == {"send_mail"}
    await change_server(user, files, enabled=True)
    assert await found(user, strategy=strategy) == {"read_file", "write_file", "send_mail"}


@pytest.mark.parametrize("strategy", ["hybrid", "semantic", "bm25"])
async def test_a_disabled_tool_is_hidden_until_it_is_enabled(user: TestUser, files: str, strategy: str) -> None:
    await change_tool(user, "read_file", enabled=False)
    assert await found(user, strategy=strategy) == {"write_file", "send_mail"}
    await change_tool(user, "read_file", enabled=True)
    assert await found(user, strategy=strategy) == {"read_file", "write_file", "send_mail"}


async def test_a_hidden_tool_is_found_neither_by_its_name_nor_through_keep(user: TestUser, files: str) -> None:
    key = (await user.tools())["read_file"]["id"]
    shown = await user.discover("`read_file`", keep=[key])
    assert (shown["tools"][0]["tool"]["name"], shown["tools"][0]["source"]) == ("read_file", "kept")
    await change_tool(user, "read_file", enabled=False)
    hidden = await user.discover("`read_file`", keep=[key])
    assert "read_file" not in {hit["tool"]["name"] for hit in hidden["tools"]}


async def test_a_hidden_tool_stays_hidden_from_a_user_without_discovery(
    user: TestUser, admin: httpx.AsyncClient, files: str
) -> None:
    await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})
    assert await found(user) == {"read_file", "write_file", "send_mail"}
    await change_tool(user, "read_file", enabled=False)
    assert await found(user) == {"write_file", "send_mail"}


async def test_a_tool_is_visible_only_if_both_switches_are_on(user: TestUser, files: str) -> None:
    await change_tool(user, "read_file", enabled=False)
    await change_server(user, files, enabled=False)
    await change_server(user, files, enabled=True)
    assert await found(user) == {"write_file", "send_mail"}
    await change_server(user, files, enabled=False)
    await change_tool(user, "read_file", enabled=True)
    assert await found(user) == {"send_mail"}


async def test_tools_pushed_to_a_disabled_server_are_hidden_from_the_start(user: TestUser) -> None:
    server_id = await user.add_tools(READ, enabled=False)
    assert await found(user) == set()
    await user.push(server_id, [READ, WRITE])
    assert await found(user) == set()
    assert (await user.tools()).keys() == {"read_file", "write_file"}
    await change_server(user, server_id, enabled=True)
    assert await found(user) == {"read_file", "write_file"}


async def test_a_disabled_tool_stays_hidden_when_its_definition_changes(user: TestUser, files: str) -> None:
    await change_tool(user, "read_file", enabled=False)
    run = await user.push(files, [{**READ, "description": "Reads a file from any disk."}, WRITE])
    assert run["counts"]["changed"] == 1
    assert await found(user) == {"write_file", "send_mail"}


async def tag_the_tool(user: TestUser, _server_id: str, tags: list[str]) -> None:
    await change_tool(user, "read_file", tags=tags)


async def tag_the_server(user: TestUser, server_id: str, tags: list[str]) -> None:
    await change_server(user, server_id, tags=tags)


@pytest.mark.parametrize(
    ("tag", "tagged"), [(tag_the_tool, {"read_file"}), (tag_the_server, {"read_file", "write_file"})]
)
async def test_tags_of_a_tool_and_of_its_server_filter_alike(
    user: TestUser, files: str, tag: Callable[[TestUser, str, list[str]], Awaitable[None]], tagged: set[str]
) -> None:
    assert await found(user, tags=["disk"]) == set()
    await tag(user, files, ["disk", "daily"])
    assert await found(user, tags=["disk"]) == tagged
    assert await found(user, tags=["disk", "unknown"]) == tagged
    assert await found(user, tags=["unknown"]) == set()
    assert await found(user) == {"read_file", "write_file", "send_mail"}
    await tag(user, files, [])
    assert await found(user, tags=["disk"]) == set()


async def test_an_answer_names_the_matched_tags_of_tool_and_server(user: TestUser, files: str) -> None:
    await change_tool(user, "read_file", tags=["disk", "daily"])
    await change_server(user, files, tags=["work"])
    answer = await user.discover(ASKED, tags=["work", "disk", "other"], similarity_threshold=0)
    assert {hit["tool"]["name"]: hit["matched_tags"] for hit in answer["tools"]} == {
        "read_file": ["disk", "work"],
        "write_file": ["work"],
    }


async def test_tools_pushed_later_have_their_servers_tags(user: TestUser) -> None:
    server_id = await user.add_tools(READ, tags=["disk"])
    await user.push(server_id, [READ, WRITE])
    assert await found(user, tags=["disk"]) == {"read_file", "write_file"}


async def test_a_request_can_be_limited_to_servers(user: TestUser, files: str) -> None:
    assert await found(user, server_ids=[files]) == {"read_file", "write_file"}
    assert await found(user, server_ids=[files, "unknown"]) == {"read_file", "write_file"}
    assert await found(user, server_ids=["unknown"]) == set()
    assert await found(user, server_ids=[]) == set()
    assert await found(user, server_ids=None) == {"read_file", "write_file", "send_mail"}


async def test_pinned_tools_come_first_for_a_user_without_discovery(
    user: TestUser, admin: httpx.AsyncClient, files: str
) -> None:
    await admin.patch(f"/users/{user.id}", json={"discovery_enabled": False})
    for pinned in ("write_file", "send_mail"):
        await change_tool(user, pinned, pinned=True)
        [first] = (await user.discover("anything", limit=1))["tools"]
        assert first["tool"]["name"] == pinned
        await change_tool(user, pinned, pinned=False)


@dataclass(frozen=True)
class LockedRow:
    """A search row that the test locks, so that an index run stops in the middle of its writes."""

    connection: psycopg.AsyncConnection[Any]

    async def count_waiting(self) -> int:
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        await self.connection.execute("SELECT pg_stat_clear_snapshot()")  # or the same snapshot would be read again
        cursor = await self.connection.execute(statement)
        [(count,)] = await cursor.fetchall()
        return int(count)

    async def until(self, there: int, ended: asyncio.Task[Any] | None = None) -> None:
        """Wait until so many sessions wait for a lock, or until the task has ended without waiting."""
        for _ in range(3_000):
            if await self.count_waiting() >= there or (ended is not None and ended.done()):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("nothing came to wait for the held row")

    async def release(self) -> None:
        await self.connection.rollback()


@asynccontextmanager
async def lock_row(postgres: EmbeddedPostgres, container: Container, tool_id: str) -> AsyncIterator[LockedRow]:
    url = postgres.url.replace("/toolscout?", f"/{container.database.engine.url.database}?")
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        statement = "SELECT 1 FROM mcp_tool_embeddings WHERE tool_id = %s FOR UPDATE"
        assert await (await connection.execute(statement, [tool_id])).fetchone() is not None
        yield LockedRow(connection)


@pytest.mark.parametrize("hidden_before", [False, True])
async def test_a_server_that_is_disabled_during_a_run_is_hidden_afterwards(
    user: TestUser, postgres: EmbeddedPostgres, container: Container, hidden_before: bool
) -> None:
    """The run has read the switches, and waits in the middle of its writes, when the server is disabled."""
    server_id = await user.add_tools(READ)
    await change_tool(user, "read_file", enabled=not hidden_before)
    async with lock_row(postgres, container, (await user.tools())["read_file"]["id"]) as row:
        changed = {**READ, "description": "Reads a file from any disk."}
        pushed = await user.http.put(f"/servers/{server_id}/tools", json={"tools": [WRITE, changed]})
        await row.until(there=1)
        disabling = asyncio.create_task(user.http.patch(f"/servers/{server_id}", json={"enabled": False}))
        await row.until(there=2, ended=disabling)
        await row.release()
    answer = await disabling
    assert answer.status_code == 200, answer.text
    assert (await finished_run(user.http, pushed.json()["id"]))["state"] == "succeeded"
    assert await found(user) == set()
    await change_server(user, server_id, enabled=True)
    assert await found(user) == ({"write_file"} if hidden_before else {"read_file", "write_file"})
