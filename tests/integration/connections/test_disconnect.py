"""What ends an account at a server: signing out, another address, deletion."""

import pytest
from starlette.responses import Response

from tests.support.checks import assert_problem
from tests.support.mcp_server import hang
from tests.support.sign_in import SignIn


async def count_rows(sign_in: SignIn) -> int:
    async with sign_in.service.database.transaction(sign_in.user.id) as session:
        [(count,)] = await session.rows("SELECT count(*) FROM server_connections")
    return int(count)


async def test_signing_out_revokes_both_tokens_and_removes_the_account(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    assert (await sign_in.user.http.delete(f"/servers/{server_id}/connection")).status_code == 204
    revoked = [sent["token_type_hint"] for sent in sign_in.authorization.find_requests("/revoke")]
    assert revoked == ["refresh_token", "access_token"]
    assert (sign_in.authorization.access_tokens, sign_in.authorization.refresh_tokens) == ({}, {})
    assert await count_rows(sign_in) == 0
    assert (sign_in.user.id, server_id) not in sign_in.service.mcp_pool._entries
    assert (await sign_in.get_server(server_id))["status"] == "needs_authorization"
    problem = await sign_in.user.execute("list_notes")
    assert (problem.status_code, problem.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    assert_problem(await sign_in.user.http.delete(f"/servers/{server_id}/connection"), 404)
    actions = [each["action"] for each in (await sign_in.user.http.get("/audit")).json()["items"]]
    assert {"server.connect", "server.disconnect"} <= set(actions)


@pytest.mark.parametrize("fault", [hang, Response(status_code=500)], ids=["hangs", "500"])
async def test_signing_out_works_without_the_authorization_server(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch, fault: Response
) -> None:
    monkeypatch.setattr("app.connections.sign_in._REVOKE_TIMEOUT_S", 0.2)
    server_id = await sign_in.connect()
    sign_in.authorization.faults["/revoke"] = fault
    assert (await sign_in.user.http.delete(f"/servers/{server_id}/connection")).status_code == 204
    assert await count_rows(sign_in) == 0


async def test_another_origin_drops_the_account_and_another_path_does_not(sign_in: SignIn) -> None:
    server_id, authorization = await sign_in.connect(), sign_in.authorization
    await sign_in.user.http.patch(f"/servers/{server_id}", json={"url": f"{sign_in.protected.url}?tenant=1"})
    assert await count_rows(sign_in) == 1
    await sign_in.user.http.patch(f"/servers/{server_id}", json={"url": f"{authorization.url}/mcp"})
    assert await count_rows(sign_in) == 0


async def test_deleting_a_server_drops_its_account(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    assert await count_rows(sign_in) == 1
    await sign_in.user.http.delete(f"/servers/{server_id}")
    assert await count_rows(sign_in) == 0
