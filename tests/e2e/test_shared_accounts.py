"""Shared servers that want OAuth: whose account a call uses, and what happens when an account is missing or lost."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.container import Container
from app.db.tables import SHARED_OWNER
from tests.support.accounts import PUBLIC_URL, Account, get_query
from tests.support.calls import result_text
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.console_client import open_console
from tests.support.factories import ADMIN_KEY
from tests.support.oidc_provider import OidcProvider, Person
from tests.support.protected_server import ProtectedServer
from tests.support.shared_servers import list_shared, settle, share
from tests.support.worker_steps import rows, until

pytestmark = pytest.mark.needs_npm

ADMINISTRATOR_MUST = "an administrator must sign in to this shared server"


@dataclass(frozen=True)
class Team:
    """Two users and an administrator, who shares the server with both."""

    container: Container
    server: ProtectedServer
    admin: httpx.AsyncClient
    users: dict[str, TestUser]
    browser: httpx.AsyncClient

    async def share(self, credentials: str) -> "Shared":
        ids = [user.id for user in self.users.values()]
        fields = {"transport": "streamable_http", "url": self.server.url, "credentials": credentials, "user_ids": ids}
        shared = await share(self.admin, "notes", **fields)
        owner = TestUser(SHARED_OWNER, ADMIN_KEY, self.admin)
        operator = Account(owner, Person("root"), shared["id"], self.browser)
        await operator.wait_for_status("needs_authorization")
        await settle(self.container)
        return Shared(self, operator, **{name: await self.find_copy(name) for name in self.users})

    async def find_copy(self, name: str) -> Account:
        user = self.users[name]
        return Account(user, Person(name), (await list_shared(user))["notes"]["id"], self.browser)


@dataclass(frozen=True)
class Shared:
    """The shared server's account, and the copies of its members."""

    team: Team
    operator: Account
    ada: Account
    bob: Account

    async def sign_in_operator(self) -> None:
        await self.operator.sign_in()
        await settle(self.team.container)

    async def change(self, **fields: Any) -> None:
        answer = await self.team.admin.patch(f"/shared-servers/{self.operator.server_id}", json=fields)
        assert answer.status_code == 200, answer.text
        await settle(self.team.container)


@pytest.fixture
async def team(accounts_service: Container, provider: OidcProvider, server: ProtectedServer) -> AsyncIterator[Team]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(open_client(accounts_service, Authorization=f"Bearer {ADMIN_KEY}"))
        browser = await stack.enter_async_context(open_client(accounts_service))
        users = {name: await stack.enter_async_context(new_user(accounts_service)) for name in ("ada", "bob")}
        yield Team(accounts_service, server, admin, users, browser)
        for shared in (await admin.get("/shared-servers")).json()["items"]:
            assert (await admin.delete(f"/shared-servers/{shared['id']}")).status_code == 204
        await settle(accounts_service)


def assert_administrator_must(answer: httpx.Response) -> None:
    problem = assert_problem(answer, 502, "SERVER_CONNECTION_ERROR")
    assert ADMINISTRATOR_MUST in problem["detail"]
    assert "authorization_url" not in problem


# --- the operator's account


async def test_members_calls_use_the_account_of_the_operator(team: Team, server: ProtectedServer) -> None:
    shared = await team.share("operator")
    before = await shared.ada.read_server()
    assert before["status"] == "error"
    assert ADMINISTRATOR_MUST in before["last_error"]
    await shared.sign_in_operator()
    for account in (shared.ada, shared.bob):
        assert (await account.read_server())["status"] == "connected"
        assert set(await account.user.tools()) == {"list_notes", "add_note", "delete_note"}
        assert result_text(await account.execute()) == "the notes of root"
    assert server.calls[-2:] == [("root", "list_notes")] * 2


async def test_the_console_connects_and_disconnects_the_operators_account(team: Team, provider: OidcProvider) -> None:
    shared = await team.share("operator")
    path = f"/console/shared-servers/{shared.operator.server_id}"
    async with open_console(team.container, ADMIN_KEY) as console:
        assert "This server wants you to sign in." in await console.get_page(path)
        page = (await console.submit(f"{path}/connect")).text
        assert "all members" in page
        [link] = re.findall(rf'href="({re.escape(provider.url)}/auth[^"]*)"', page)
        callback = await shared.operator.authorize(html.unescape(link))
        done = await console.http.get(callback.removeprefix(PUBLIC_URL))
        assert (done.status_code, f"{PUBLIC_URL}{path}" in done.text) == (200, True)
        await shared.operator.wait_for_status("connected")
        await settle(team.container)
        assert result_text(await shared.ada.execute()) == "the notes of root"
        assert "Reconnect" in await console.get_page(path)
        assert (await console.submit(f"{path}/disconnect")).headers["location"] == f"{path}?notice=server-disconnected"
        assert "This server wants you to sign in." in await console.get_page(path)
    assert_administrator_must(await shared.ada.execute())


async def test_no_member_can_connect_or_disconnect_the_operators_account(team: Team) -> None:
    shared = await team.share("operator")
    await shared.sign_in_operator()
    path = f"/servers/{shared.ada.server_id}"
    assert_problem(await shared.ada.user.http.post(f"{path}/connect", json={}), 403, "forbidden")
    assert_problem(await shared.ada.user.http.delete(f"{path}/connection"), 404, "not_found")
    source = f"/servers/{shared.operator.server_id}"
    assert_problem(await shared.ada.user.http.post(f"{source}/connect", json={}), 404, "not_found")
    assert_problem(await shared.ada.user.http.delete(f"{source}/connection"), 404, "not_found")
    assert result_text(await shared.ada.execute()) == "the notes of root"
    assert (await team.admin.delete(f"{source}/connection")).status_code == 204


async def test_calls_of_many_members_refresh_the_operators_token_once(team: Team, provider: OidcProvider) -> None:
    shared = await team.share("operator")
    await shared.sign_in_operator()
    await shared.operator.expire_token(team.container)
    refreshes = len(provider.find_requests("/token", grant_type="refresh_token"))
    answers = await asyncio.gather(*(account.execute() for account in (shared.ada, shared.bob) * 4))
    assert {result_text(answer) for answer in answers} == {"the notes of root"}
    assert len(provider.find_requests("/token", grant_type="refresh_token")) == refreshes + 1


@pytest.mark.parametrize("token_format", ["opaque", "jwt"])
async def test_a_lost_account_of_the_operator_is_the_administrators_to_connect_again(
    team: Team, provider: OidcProvider, server: ProtectedServer, token_format: str
) -> None:
    provider.change(accessTokenFormat=token_format)
    shared = await team.share("operator")
    await shared.sign_in_operator()
    assert result_text(await shared.ada.execute()) == "the notes of root"
    provider.revoke_grants()
    await shared.operator.expire_token(team.container)
    calls = len(server.calls)
    assert_administrator_must(await shared.ada.execute())
    assert len(server.calls) == calls
    assert (await shared.operator.read_server())["status"] == "needs_authorization"
    await settle(team.container)
    for account in (shared.ada, shared.bob):
        found = await account.read_server()
        assert (found["status"], ADMINISTRATOR_MUST in found["last_error"]) == ("error", True)
    await shared.sign_in_operator()
    for account in (shared.ada, shared.bob):
        assert (await account.read_server())["status"] == "connected"
        assert result_text(await account.execute()) == "the notes of root"


async def test_an_administrator_who_signs_out_ends_the_calls_of_all_members(
    team: Team, provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(accessTokenFormat="opaque")
    shared = await team.share("operator")
    await shared.sign_in_operator()
    await shared.ada.execute()
    token = server.tokens[-1]
    assert server.accepts(token)
    answer = await team.admin.delete(f"/servers/{shared.operator.server_id}/connection")
    assert answer.status_code == 204
    assert not server.accepts(token)
    assert_administrator_must(await shared.ada.execute())
    await settle(team.container)
    assert ADMINISTRATOR_MUST in (await shared.bob.read_server())["last_error"]


async def test_a_call_that_needs_more_rights_is_the_administrators_to_allow(
    team: Team, server: ProtectedServer
) -> None:
    shared = await team.share("operator")
    await shared.sign_in_operator()
    calls = len(server.calls)
    assert_administrator_must(await shared.ada.execute("delete_note", name="plan"))
    assert len(server.calls) == calls
    assert result_text(await shared.ada.execute()) == "the notes of root"
    assert "tools:write" in get_query(await shared.operator.start())["scope"].split()
    await shared.sign_in_operator()
    assert result_text(await shared.ada.execute("delete_note", name="plan")) == "root deleted plan"


# --- members' accounts


async def test_each_member_signs_in_with_an_account_of_its_own(team: Team, server: ProtectedServer) -> None:
    shared = await team.share("member")
    await shared.sign_in_operator()
    for account in (shared.ada, shared.bob):
        assert set(await account.user.tools()) == {"list_notes", "add_note", "delete_note"}
        assert (await account.read_server())["status"] == "needs_authorization"
    await shared.ada.sign_in()
    assert result_text(await shared.ada.execute()) == "the notes of ada"
    calls = len(server.calls)
    refused = assert_problem(await shared.bob.execute(), 403, "AUTHORIZATION_REQUIRED")
    assert len(server.calls) == calls
    [best, *_] = (await shared.bob.user.discover("list my notes", connect=True))["tools"]
    assert (best["tool"]["name"], best["server_status"]) == ("list_notes", "needs_authorization")
    assert best["connect_url"]
    await shared.bob.finish(await shared.bob.authorize(refused["authorization_url"]))
    await shared.bob.wait_for_status("connected")
    assert result_text(await shared.bob.execute()) == "the notes of bob"
    assert result_text(await shared.ada.execute()) == "the notes of ada"


async def test_the_operators_account_lists_for_members_and_runs_nothing(team: Team, server: ProtectedServer) -> None:
    shared = await team.share("member")
    await shared.sign_in_operator()
    await shared.ada.sign_in()
    await shared.ada.execute()
    assert ("root", "list_notes") not in server.calls
    answer = await team.admin.delete(f"/servers/{shared.operator.server_id}/connection")
    assert answer.status_code == 204
    await settle(team.container)
    assert (await shared.ada.read_server())["status"] == "connected"
    assert (await shared.bob.read_server())["status"] == "needs_authorization"
    assert result_text(await shared.ada.execute()) == "the notes of ada"


async def test_a_members_lost_account_concerns_this_member_alone(
    team: Team, provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(accessTokenFormat="opaque")
    shared = await team.share("member")
    await shared.sign_in_operator()
    await shared.ada.sign_in()
    await shared.ada.execute()
    provider.revoke_grants()
    await shared.bob.sign_in()
    refused = assert_problem(await shared.ada.execute(), 403, "AUTHORIZATION_REQUIRED")
    assert (await shared.ada.read_server())["status"] == "needs_authorization"
    assert result_text(await shared.bob.execute()) == "the notes of bob"
    await shared.ada.finish(await shared.ada.authorize(refused["authorization_url"]))
    await shared.ada.wait_for_status("connected")
    assert result_text(await shared.ada.execute()) == "the notes of ada"


async def test_an_account_survives_changes_of_the_shared_server(team: Team) -> None:
    shared = await team.share("member")
    await shared.sign_in_operator()
    await shared.ada.sign_in()
    await shared.change(name="memos", tags=["writing"])
    found = await shared.ada.read_server()
    assert (found["name"], found["tags"], found["status"]) == ("memos", ["writing"], "connected")
    assert result_text(await shared.ada.execute()) == "the notes of ada"


async def test_a_member_who_leaves_loses_the_account_and_signs_in_again_on_return(
    team: Team, provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(accessTokenFormat="opaque")
    shared = await team.share("member")
    await shared.sign_in_operator()
    tokens = {}
    for account in (shared.ada, shared.bob):
        await account.sign_in()
        await account.execute()
        tokens[account.person.account] = server.tokens[-1]
    await shared.change(user_ids=[shared.bob.user.id])
    assert await list_shared(shared.ada.user) == {}
    stored = "SELECT count(*) FROM server_connections WHERE user_id = %(id)s"
    assert await rows(team.container, stored, id=shared.ada.user.id) == [(0,)]

    async def is_revoked() -> bool:
        return not await asyncio.to_thread(server.accepts, tokens["ada"])

    await until(is_revoked)
    assert server.accepts(tokens["bob"])
    assert result_text(await shared.bob.execute()) == "the notes of bob"
    await shared.change(user_ids=[shared.ada.user.id, shared.bob.user.id])
    assert (await team.find_copy("ada")).server_id == shared.ada.server_id
    assert (await shared.ada.read_server())["status"] == "needs_authorization"
    assert_problem(await shared.ada.execute(), 403, "AUTHORIZATION_REQUIRED")


async def test_a_link_that_a_member_got_before_leaving_connects_nothing(team: Team) -> None:
    shared = await team.share("member")
    await shared.sign_in_operator()
    callback = await shared.ada.authorize(await shared.ada.start())
    kept = await shared.bob.authorize(await shared.bob.start())
    await shared.change(user_ids=[shared.bob.user.id])
    assert (await shared.ada.finish(callback)).status_code == 400
    assert (await shared.bob.finish(kept)).status_code == 200


async def test_credentials_that_become_the_operators_end_the_use_of_the_members(
    team: Team, server: ProtectedServer
) -> None:
    shared = await team.share("member")
    await shared.sign_in_operator()
    await shared.ada.sign_in()
    assert result_text(await shared.ada.execute()) == "the notes of ada"
    await shared.change(credentials="operator")
    assert result_text(await shared.ada.execute()) == "the notes of root"
    assert result_text(await shared.bob.execute()) == "the notes of root"
    await shared.change(credentials="member")
    assert_problem(await shared.bob.execute(), 403, "AUTHORIZATION_REQUIRED")
