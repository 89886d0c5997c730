"""`PUT` and `DELETE /servers/{id}/credentials`: a backend that signs its users in itself hands in what it has."""

from typing import Any

import pytest

from app.container import Container
from tests.support.calls import assert_ok, connect_with_tools
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.mcp_server import FakeMcpServer
from tests.support.worker_steps import until

CANARY = "canary-81f0-token"


def sent_tokens(mcp: FakeMcpServer, method: str) -> list[str | None]:
    return [each.headers.get("authorization") for each in mcp.requests if each.rpc_method == method]


async def test_new_credentials_are_used_by_the_next_call_and_change_nothing_else(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await connect_with_tools(user, mcp, "read")
    before = (await user.http.get(f"/servers/{server_id}")).json()
    assert_ok(await user.execute("read"))

    headers = {"Authorization": f"Bearer {CANARY}"}
    answer = await user.http.put(f"/servers/{server_id}/credentials", json={"headers": headers})
    changed = assert_ok(answer)
    assert changed["header_names"] == ["Authorization"]
    assert CANARY not in answer.text
    kept = ("name", "description", "transport", "url", "tags", "tool_permissions", "enabled", "tool_count")
    assert {name: changed[name] for name in kept} == {name: before[name] for name in kept}

    assert_ok(await user.execute("read"))
    assert sent_tokens(mcp, "tools/call") == [None, f"Bearer {CANARY}"]


async def test_new_credentials_queue_a_listing_with_them(user: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await connect_with_tools(user, mcp, "read")
    headers = {"Authorization": f"Bearer {CANARY}"}
    assert_ok(await user.http.put(f"/servers/{server_id}/credentials", json={"headers": headers}))

    async def is_listed() -> bool:
        return f"Bearer {CANARY}" in sent_tokens(mcp, "tools/list")

    await until(is_listed)


async def test_new_credentials_replace_all_old_ones_and_can_be_deleted(user: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await user.connect(mcp, headers={"X-Key": "old", "Authorization": "Bearer old"})
    path = f"/servers/{server_id}/credentials"
    assert assert_ok(await user.http.put(path, json={"headers": {"X-Key": "new"}}))["header_names"] == ["X-Key"]
    deleted = await user.http.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await user.http.get(f"/servers/{server_id}")).json()["header_names"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"headers": {}},
        {"headers": None},
        {"headers": {"a b": "x"}},
        {"headers": {"Host": "elsewhere.example.com"}},
        {"headers": {"X-Key": f"{CANARY}\nsecond line"}},
        {"headers": {"X-Key": CANARY}, "url": "https://elsewhere.example.com/mcp"},
        {"access_token": CANARY},
    ],
    ids=str,
)
async def test_credentials_that_are_not_headers_are_refused_and_not_repeated(
    user: TestUser, body: dict[str, Any]
) -> None:
    server_id = await user.add_server(headers={"X-Key": "old"})
    answer = await user.http.put(f"/servers/{server_id}/credentials", json=body)
    assert_problem(answer, 422, "invalid_input")
    assert CANARY not in answer.text
    assert (await user.http.get(f"/servers/{server_id}")).json()["header_names"] == ["X-Key"]


async def test_credentials_are_in_no_audit_row(user: TestUser, container: Container) -> None:
    server_id = await user.add_server()
    await user.http.put(f"/servers/{server_id}/credentials", json={"headers": {"X-Key": CANARY}})
    async with container.database.transaction(user.id) as session:
        rows = await session.rows("SELECT e::text FROM audit_events e WHERE user_id = %(id)s", {"id": user.id})
    assert any("server.credentials.replace" in text for (text,) in rows)
    assert not any(CANARY in text for (text,) in rows)
