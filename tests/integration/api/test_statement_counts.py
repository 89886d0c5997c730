"""How many SQL statements each main call sends, so that a change cannot add one unnoticed.

The beginning and the commit of a transaction count as one statement each. A number that goes down is welcome, too: put
the new one into the table.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.container import Container, open_container
from app.indexing import queue
from app.indexing.reindex import reindex_server
from app.local_postgres.postgres import EmbeddedPostgres
from tests.support.clients import TestUser, new_user
from tests.support.factories import make_database, make_settings, outbound_allow, resolve_nothing, tool
from tests.support.mcp_client import call_meta_tool
from tests.support.mcp_server import FakeMcpServer
from tests.support.sql_statements import recorded_statements

AUTHENTICATION = 3
"""The scope, the key and its user, in one round trip."""
LOAD = 3
"""The snapshot of a user who asks for the second time, in a transaction of its own, after the answer."""


@dataclass(frozen=True)
class Catalog:
    service: Container
    user: TestUser
    pushed_server: str
    listed_server: str
    tool_id: str = ""

    async def run_next(self) -> None:
        """Do what the worker does with the oldest queued run. The service has no worker, so that nothing is hidden."""
        async with self.service.database.system_transaction() as session:
            claim = await queue.claim_run(session, lease_s=60)
        assert claim is not None
        await reindex_server(self.service.indexer, claim)

    async def push(self, *names: str) -> None:
        body = {"tools": [tool(name, f"Does {name}.") for name in names]}
        answer = await self.user.http.put(f"/servers/{self.pushed_server}/tools", json=body)
        assert answer.status_code == 202, answer.text

    async def request_reindex(self) -> None:
        answer = await self.user.http.post(f"/servers/{self.listed_server}/reindex")
        assert answer.status_code == 202, answer.text

    async def execute(self, **headers: str) -> None:
        body = {"tool_key": self.tool_id}
        answer = await self.user.http.post("/execute", json=body, headers=headers)
        assert answer.status_code == 200, answer.text


@pytest.fixture
async def catalog(postgres: EmbeddedPostgres, mcp: FakeMcpServer, tmp_path: Path) -> AsyncIterator[Catalog]:
    settings = make_settings(tmp_path, index_concurrency=0, outbound_allow=outbound_allow(mcp))
    mcp.tools = [tool("echo", "Repeats a text."), tool("reverse", "Reverses a text.")]
    async with (
        open_container(settings, make_database(postgres), resolve_nothing) as service,
        new_user(service) as user,
    ):
        pushed_server = await user.add_server("pushed")
        listed_server = await user.add_server("listed", transport=mcp.transport, url=mcp.url)
        catalog = Catalog(service, user, pushed_server, listed_server)
        await catalog.run_next()
        await catalog.push("list_files", "read_file")
        await catalog.run_next()
        await open_connections(service)
        yield replace(catalog, tool_id=(await user.tools())["echo"]["id"])


async def open_connections(service: Container) -> None:
    """Open as many as a call uses at the same time: a new connection sends statements of its own."""
    async with AsyncExitStack() as stack:
        for owner in ("one", "two", "three"):  # nobody may hold all
            await stack.enter_async_context(service.database.transaction(owner))


async def nothing(catalog: Catalog) -> None:
    pass


async def ask_once(catalog: Catalog) -> None:
    await catalog.user.discover("list the files", fill=True)  # reads the definitions of all tools
    await catalog.service.discoverer.snapshots.wait_loaded()


async def ask_twice(catalog: Catalog) -> None:
    await ask_once(catalog)
    await ask_once(catalog)


async def ask_something_new(catalog: Catalog) -> None:
    await catalog.user.discover("reverse a text, please")
    await catalog.service.discoverer.snapshots.wait_loaded()


async def list_over_mcp(catalog: Catalog) -> None:
    """Make the three calls that MCP clients repeat."""
    for name, arguments in (
        ("list_servers", {}),
        ("list_tools", {"server": "pushed"}),
        ("get_tool_details", {"toolKey": catalog.tool_id}),
    ):
        assert "isError" not in await call_meta_tool(catalog.user.http, name, arguments, "/mcp/full")


async def push_one_tool(catalog: Catalog) -> None:
    await catalog.push("list_files", "read_file", "write_file")


Call = Callable[[Catalog], Awaitable[object]]
CALLS: dict[str, tuple[Call, Call, int]] = {
    "any request": (nothing, lambda c: c.user.http.get("/no-such-path"), 0),
    "discover: the first question": (nothing, ask_once, AUTHENTICATION + 7),
    "discover: the second question, a new one": (ask_once, ask_something_new, AUTHENTICATION + 4 + LOAD),
    "discover: the second question, the same": (ask_once, ask_once, AUTHENTICATION + 2 + LOAD),
    "discover: a new question in memory": (ask_twice, ask_something_new, AUTHENTICATION),
    "discover: a cached question in memory": (ask_twice, ask_once, AUTHENTICATION),
    "three lists over MCP: the first time": (nothing, list_over_mcp, 3 * (AUTHENTICATION + 4)),
    "three lists over MCP: cached, only the version is read": (list_over_mcp, list_over_mcp, 3 * (AUTHENTICATION + 3)),
    "push: the request": (nothing, push_one_tool, AUTHENTICATION + 6),
    "push: the run, one new tool": (push_one_tool, Catalog.run_next, 57),
    "reindex: the request": (nothing, Catalog.request_reindex, AUTHENTICATION + 7),
    "reindex: the run, nothing changed": (Catalog.request_reindex, Catalog.run_next, 36),
    "execute": (nothing, Catalog.execute, AUTHENTICATION + 8),
    "execute: with an idempotency key": (
        nothing,
        lambda c: c.execute(**{"Idempotency-Key": "one"}),
        AUTHENTICATION + 15,
    ),
    "execute: the same idempotency key again": (
        lambda c: c.execute(**{"Idempotency-Key": "one"}),
        lambda c: c.execute(**{"Idempotency-Key": "one"}),
        AUTHENTICATION + 3,
    ),
}


@pytest.mark.parametrize(("prepare", "call", "expected"), CALLS.values(), ids=CALLS.keys())
async def test_a_call_sends_exactly_its_statements(catalog: Catalog, prepare: Call, call: Call, expected: int) -> None:
    await prepare(catalog)
    with recorded_statements() as statements:
        await call(catalog)
    assert len(statements) == expected, "\n".join(statements)


async def test_statements_of_both_ways_to_the_database_are_recorded(catalog: Catalog) -> None:
    with recorded_statements() as statements:
        async with catalog.service.database.transaction(catalog.user.id) as session:
            await session.rows("SELECT 1")
            assert [row async for row in session.stream("SELECT 2", {})] == [(2,)]
    begin, *selects, commit = statements
    assert begin.startswith("BEGIN;")
    assert (selects, commit) == (["SELECT 1", "SELECT 2"], "COMMIT")
    async with catalog.service.database.transaction(catalog.user.id) as session:
        await session.rows("SELECT 3")
    assert len(statements) == 4
