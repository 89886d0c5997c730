"""Access tokens: refreshed before they end, by one request at a time, and removed when they are of no use."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from app.connections import repository
from app.connections.models import ServerConnection, Tokens
from app.container import Container, open_container
from app.db.tables import SHARED_OWNER
from app.mcp_client.resolver import Resolve
from tests.support.authorization_server import AuthorizationServer
from tests.support.checks import assert_problem
from tests.support.clients import open_client
from tests.support.factories import ADMIN_KEY, resolve_nothing
from tests.support.mcp_server import hang
from tests.support.shared_servers import settle, share
from tests.support.sign_in import SignIn
from tests.support.worker_steps import until

EXPIRED = 3_601
ABOUT_TO_EXPIRE = 3_590
HALF_OF_ITS_LIFE = 1_800


def count_refreshes(authorization: AuthorizationServer) -> int:
    return len(authorization.find_requests("/token", grant_type="refresh_token"))


def get_text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["result"]["content"][0]["text"]
    return text


async def wait_for_refresh(sign_in: SignIn) -> None:
    async def is_refreshed() -> bool:
        statement = "SELECT version FROM server_connections WHERE user_id = %(user_id)s AND lease_until IS NULL"
        async with sign_in.service.database.transaction(sign_in.user.id) as session:
            return await session.rows(statement, {"user_id": sign_in.user.id}) == [(2,)]

    await until(is_refreshed)


async def test_a_token_that_lives_is_used_as_it_is(sign_in: SignIn) -> None:
    await sign_in.connect()
    await sign_in.age_token(HALF_OF_ITS_LIFE)
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    assert count_refreshes(sign_in.authorization) == 0


async def test_an_expired_token_is_refreshed_before_the_call(sign_in: SignIn) -> None:
    await sign_in.connect()
    await sign_in.age_token(EXPIRED)
    before = len(sign_in.protected.tokens)
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    assert count_refreshes(sign_in.authorization) == 1
    [used] = set(sign_in.protected.tokens[before:])
    assert used not in sign_in.protected.tokens[:before], "the session sends the newest token"


async def test_a_token_is_refreshed_before_it_ends_while_the_old_one_serves(sign_in: SignIn) -> None:
    await sign_in.connect()
    await sign_in.age_token(ABOUT_TO_EXPIRE)
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    await wait_for_refresh(sign_in)
    assert count_refreshes(sign_in.authorization) == 1


async def test_a_session_is_kept_when_only_the_token_changes(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    await sign_in.user.execute("list_notes")
    entry = sign_in.service.mcp_pool._entries[sign_in.user.id, server_id]
    await sign_in.age_token(EXPIRED)
    await sign_in.user.execute("list_notes")
    assert sign_in.service.mcp_pool._entries[sign_in.user.id, server_id] is entry


@asynccontextmanager
async def open_replica(service: Container, resolve: Resolve = resolve_nothing) -> AsyncIterator[Container]:
    """Open another process's container over the same database."""
    url = service.database.engine.url.render_as_string(hide_password=False)
    async with open_container(service.settings, url.replace("+psycopg", ""), resolve, working=False) as replica:
        yield replica


async def test_many_calls_on_two_replicas_refresh_once(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    await sign_in.age_token(EXPIRED)
    async with open_replica(sign_in.service) as replica:
        endpoints = await asyncio.gather(
            *(
                each.connector.get_endpoint(sign_in.user.id, server_id)
                for _ in range(10)
                for each in (sign_in.service, replica)
            )
        )
    assert count_refreshes(sign_in.authorization) == 1
    assert len({endpoint.headers["Authorization"] for endpoint in endpoints}) == 1
    assert {endpoint.credential_version for endpoint in endpoints} == {2}


async def test_a_lease_of_a_process_that_has_died_expires(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    await sign_in.age_token(EXPIRED)
    async with sign_in.service.database.transaction(sign_in.user.id) as session:
        await session.rows("UPDATE server_connections SET lease_until = now() + interval '300 milliseconds'")
    endpoint = await sign_in.service.connector.get_endpoint(sign_in.user.id, server_id)
    assert endpoint.credential_version == 2


async def test_the_old_token_serves_while_the_token_endpoint_hangs(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in.connect()
    monkeypatch.setattr("app.connections.requests.TIMEOUT_S", 0.5)
    sign_in.authorization.faults["/token"] = hang
    await sign_in.age_token(ABOUT_TO_EXPIRE)
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    sign_in.authorization.faults.clear()


@pytest.mark.parametrize(
    "fault",
    [
        hang,
        Response("rubbish", media_type="application/json"),
        Response("<html>", media_type="text/html"),
        JSONResponse({"access_token": 7}),
        JSONResponse({"access_token": "two\nlines"}),
        JSONResponse({"access_token": "ok", "token_type": "mac"}),
        JSONResponse({"error": "temporarily_unavailable"}, 503),
        Response(status_code=302, headers={"Location": "http://169.254.169.254/"}),
        Response(b"x" * 300_000, media_type="application/json"),
    ],
    ids=["hangs", "rubbish", "html", "number", "two-lines", "mac", "503", "redirect", "huge"],
)
async def test_an_expired_token_that_cannot_be_refreshed_fails_the_call_and_keeps_the_account(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch, fault: Response
) -> None:
    monkeypatch.setattr("app.connections.requests.TIMEOUT_S", 0.5)
    await sign_in.connect()
    await sign_in.age_token(EXPIRED)
    sign_in.authorization.faults["/token"] = fault
    assert_problem(await sign_in.user.execute("list_notes"), 502, "SERVER_CONNECTION_ERROR")
    assert sign_in.protected.calls == []
    sign_in.authorization.faults.clear()
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"


async def test_a_refused_refresh_token_means_that_the_user_must_sign_in_again(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    sign_in.authorization.refresh_tokens.clear()
    await sign_in.age_token(EXPIRED)
    problem = await sign_in.user.execute("list_notes")
    assert (problem.status_code, problem.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    server = await sign_in.get_server(server_id)
    assert server["status"] == "needs_authorization"
    assert sign_in.protected.calls == []
    again = await sign_in.user.execute("list_notes")
    assert (again.status_code, count_refreshes(sign_in.authorization)) == (403, 1)
    assert (await sign_in.finish_runs(server_id))["state"] == "succeeded"
    await sign_in.connect(server_id)
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"


async def test_a_rejected_token_is_refreshed_and_the_call_runs_once(sign_in: SignIn) -> None:
    await sign_in.connect()
    await sign_in.age_token(HALF_OF_ITS_LIFE)
    sign_in.authorization.end_tokens()
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    assert count_refreshes(sign_in.authorization) == 1
    assert sign_in.protected.calls == [("ada", "list_notes")]


async def test_a_rejected_token_that_is_new_is_not_refreshed(sign_in: SignIn) -> None:
    await sign_in.connect()
    sign_in.authorization.end_tokens()
    problem = await sign_in.user.execute("list_notes")
    assert (problem.status_code, problem.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    assert count_refreshes(sign_in.authorization) == 0


async def test_an_expired_token_without_a_refresh_token_ends_the_account(sign_in: SignIn) -> None:
    sign_in.authorization.on_token = lambda answer: {**answer, "refresh_token": None}
    server_id = await sign_in.connect()
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    await sign_in.age_token(EXPIRED)
    assert (await sign_in.user.execute("list_notes")).status_code == 403
    assert (await sign_in.get_server(server_id))["status"] == "needs_authorization"


async def test_a_token_without_an_end_is_used_until_it_is_rejected(sign_in: SignIn) -> None:
    sign_in.authorization.expires_in = None
    await sign_in.connect()
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    assert count_refreshes(sign_in.authorization) == 0


async def test_a_call_that_needs_more_rights_asks_for_them_at_the_next_sign_in(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    sign_in.protected.scopes_of_tools = {"delete_note": "tools:write"}
    refused = await sign_in.user.execute("delete_note", {"name": "plan"})
    assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    assert "more rights" in refused.json()["detail"]
    assert sign_in.protected.calls == []
    # other calls still work
    assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
    await sign_in.connect(server_id)
    assert set(next(iter(sign_in.authorization.access_tokens.values())).scope.split()) == {"tools:read"}
    assert set(list(sign_in.authorization.access_tokens.values())[-1].scope.split()) == {"tools:read", "tools:write"}


async def test_a_refresh_that_ends_late_does_not_touch_the_account_that_was_connected_meanwhile(
    sign_in: SignIn,
) -> None:
    """Its tokens may be those of another person, or of the server's former address."""
    server_id, service, user_id = await sign_in.connect(), sign_in.service, sign_in.user.id

    async def read() -> ServerConnection:
        async with service.database.transaction(user_id) as session:
            found = await repository.read_connection(session, service.sealer, user_id, server_id)
        assert found is not None
        return found

    async def store(refreshed: ServerConnection) -> bool:
        tokens = Tokens("late", None, None, 3600)
        async with service.database.transaction(user_id) as session:
            return await repository.replace_tokens(session, service.sealer, refreshed, tokens)

    former = await read()
    assert (await sign_in.user.http.delete(f"/servers/{server_id}/connection")).status_code == 204
    await sign_in.connect(server_id)
    current = await read()
    assert (former.version, former.has_same_token(current)) == (current.version, False)
    assert not await store(former)
    assert (await read()).tokens == current.tokens
    assert await store(current)


async def share_notes(sign_in: SignIn, admin: httpx.AsyncClient) -> str:
    """Share the server with the user, sign in to it as the operator, and return its id."""
    fields = {"transport": "streamable_http", "url": sign_in.protected.url, "credentials": "operator"}
    shared = await share(admin, "team-notes", user_ids=[sign_in.user.id], **fields)
    link = await admin.post(f"/servers/{shared['id']}/connect")
    assert link.status_code == 200, link.text
    callback = sign_in.authorization.approve(link.json()["authorization_url"])
    assert (await sign_in.come_back(callback)).status_code == 200
    await settle(sign_in.service)
    return str(shared["id"])


async def test_a_member_is_not_asked_to_sign_in_when_the_operators_account_is_lost(sign_in: SignIn) -> None:
    async with open_client(sign_in.service, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        shared_id = await share_notes(sign_in, admin)
        assert get_text(await sign_in.user.execute("list_notes")) == "the notes of ada"
        more_rights = await sign_in.user.execute("delete_note", {"name": "plan"})
        sign_in.authorization.refresh_tokens.clear()
        async with sign_in.service.database.transaction(SHARED_OWNER) as session:
            await session.rows("UPDATE server_connections SET expires_at = now()")
        for refused in (
            more_rights,
            await sign_in.user.execute("list_notes"),
            await sign_in.user.execute("list_notes"),
        ):
            problem = assert_problem(refused, 502, "SERVER_CONNECTION_ERROR")
            assert (problem["cause"], "administrator" in problem["detail"]) == ("operator_credentials", True)
        assert (await admin.delete(f"/shared-servers/{shared_id}")).status_code == 204
