"""Helpers for tests that run tools: connect a server, check a response, read the audit events."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from app.container import Container
from app.execution.argument_validation import check_arguments, remove_invalid_parts
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

Json = dict[str, Any]


async def connect_with_tools(user: TestUser, mcp: FakeMcpServer, *names: str, server: str = "files") -> str:
    """Give the fake server tools of these names, register it and return its server id."""
    mcp.tools = [tool(name) for name in names]
    return await user.connect(mcp, server)


@contextmanager
def stopped_server(mcp: FakeMcpServer) -> Iterator[None]:
    mcp.stop()
    try:
        yield
    finally:
        mcp.start()


def raise_disk_full(_arguments: Json) -> Json:
    """A handler for `FakeMcpServer.on_call` that answers with a JSON-RPC error."""
    raise MCPError(INTERNAL_ERROR, "the disk is full")


def assert_ok(response: httpx.Response) -> Json:
    """Check that the status is 200 and return the body."""
    assert response.status_code == 200, response.text
    body: Json = response.json()
    return body


def result_text(response: httpx.Response) -> str:
    """Return the text of a result that consists of one text block."""
    [block] = assert_ok(response)["result"]["content"]
    text: str = block["text"]
    return text


def check_call(schema: Json, arguments: Json) -> None:
    """Check arguments as `execute` does."""
    check_arguments(remove_invalid_parts(json.dumps(schema)), arguments)


async def list_executions(container: Container, user_id: str) -> list[tuple[Any, ...]]:
    """Return the outcome and the target of each audited call, oldest first."""
    statement = (
        "SELECT outcome, target FROM audit_events"
        " WHERE user_id = %(user_id)s AND action = 'tool.execute' ORDER BY at, id"
    )
    async with container.database.transaction(user_id) as session:
        return await session.rows(statement, {"user_id": user_id})


@contextmanager
def audit_insert_revoked(container: Container) -> Iterator[None]:
    """Make Postgres refuse new audit events."""
    url = container.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("REVOKE INSERT ON audit_events FROM toolscout_app")
        try:
            yield
        finally:
            owner.execute("GRANT INSERT ON audit_events TO toolscout_app")


async def wait_for_calls(mcp: FakeMcpServer, count: int = 1) -> None:
    """Wait until this many calls have reached the fake server."""
    async with asyncio.timeout(60):
        while len(mcp.calls) < count:  # noqa: ASYNC110 the fake server runs in another thread
            await asyncio.sleep(0.005)
