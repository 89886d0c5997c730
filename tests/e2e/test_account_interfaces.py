"""Every interface leads a user to the sign-in of a real server, and the same call runs afterwards."""

import html
import re
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import URL_ELICITATION_REQUIRED, ElicitRequestURLParams, ElicitResult

from app.connections import links
from app.container import Container
from tests.support.accounts import PUBLIC_URL, Account, get_query
from tests.support.calls import assert_ok, result_text
from tests.support.checks import assert_problem
from tests.support.clients import open_client
from tests.support.console_client import open_console
from tests.support.http_server import serve_app
from tests.support.mcp_client import connect_client, get_error, get_text
from tests.support.oidc_provider import OidcProvider
from tests.support.protected_server import ProtectedServer

pytestmark = pytest.mark.needs_npm


async def know_tools(ada: Account) -> str:
    """Sign in and out: the tools stay known. Return the key of one."""
    await ada.sign_in()
    await ada.user.http.delete(f"/servers/{ada.server_id}/connection")
    key: str = (await ada.user.tools())["list_notes"]["id"]
    return key


async def test_a_call_without_a_sign_in_answers_with_a_link_and_runs_after_it(
    ada: Account, provider: OidcProvider, server: ProtectedServer
) -> None:
    key = await know_tools(ada)
    call: dict[str, Any] = {"json": {"tool_key": key}, "headers": {"Idempotency-Key": "one"}}
    calls = len(server.calls)
    problem = assert_problem(await ada.user.http.post("/execute", **call), 403, "AUTHORIZATION_REQUIRED")
    assert problem["authorization_url"].startswith(f"{provider.url}/auth?")
    assert (problem["server"], problem["tool"]) == ("notes", "list_notes")
    assert problem["expires_at"] is not None
    assert len(server.calls) == calls
    again = assert_problem(await ada.user.http.post("/execute", **call), 403, "AUTHORIZATION_REQUIRED")
    assert again["authorization_url"] == problem["authorization_url"]  # a model that repeats itself begins no other one

    await ada.finish(await ada.authorize(problem["authorization_url"]))
    assert result_text(await ada.user.http.post("/execute", **call)) == "the notes of ada"
    assert len(server.calls) == calls + 1


async def test_a_call_that_needs_more_rights_answers_with_a_link_that_asks_for_them(
    ada: Account, server: ProtectedServer
) -> None:
    await ada.sign_in()
    calls = len(server.calls)
    problem = assert_problem(await ada.execute("delete_note", name="old"), 403, "AUTHORIZATION_REQUIRED")
    assert {"tools:read", "tools:write"} <= set(get_query(problem["authorization_url"])["scope"].split())
    assert len(server.calls) == calls
    await ada.finish(await ada.authorize(problem["authorization_url"]))
    assert result_text(await ada.execute("delete_note", name="old")) == "ada deleted old"


async def test_if_the_sign_in_is_slow_the_link_is_one_of_ours_and_leads_there_later(
    ada: Account, accounts_service: Container, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await know_tools(ada)
    with monkeypatch.context() as patched:
        patched.setattr(links, "_TIMEOUT_S", 0)
        answer = await ada.user.http.post("/execute", json={"tool_key": key})
    link = assert_problem(answer, 403, "AUTHORIZATION_REQUIRED")["authorization_url"]
    await follow_link(ada, accounts_service, provider, link)
    assert result_text(await ada.execute()) == "the notes of ada"


async def test_the_link_of_a_discovery_leads_to_the_sign_in(
    ada: Account, accounts_service: Container, provider: OidcProvider
) -> None:
    await know_tools(ada)
    [found, *_] = (await ada.user.discover("list my notes", connect=True))["tools"]
    assert found["server_status"] == "needs_authorization"
    await follow_link(ada, accounts_service, provider, found["connect_url"])
    assert result_text(await ada.execute()) == "the notes of ada"
    [found, *_] = (await ada.user.discover("list my notes", connect=True))["tools"]
    assert (found["server_status"], found["connect_url"]) == ("connected", None)


async def follow_link(ada: Account, service: Container, provider: OidcProvider, link: str) -> None:
    """Open a link of ours, continue, and sign in. A browser that has not opened it cannot finish."""
    assert link.startswith(f"{PUBLIC_URL}/oauth/start?ticket=")
    page = await ada.browser.get(link.removeprefix(PUBLIC_URL))
    assert page.status_code == 200, page.text
    [target] = re.findall(r'href="(/oauth/start[^"]*continue=1)"', page.text)
    async with open_client(service) as stranger:
        opened = await stranger.get(html.unescape(target))
        callback = await ada.authorize(opened.headers["location"])
        refused = await ada.finish(callback)
        assert (refused.status_code, "another browser" in refused.text) == (400, True)
    opened = await ada.browser.get(html.unescape(target))
    assert opened.status_code == 303
    assert opened.headers["location"].startswith(f"{provider.url}/auth?")
    done = await ada.finish(await ada.authorize(opened.headers["location"]))
    assert (done.status_code, "You have signed in to notes" in done.text) == (200, True)
    await ada.wait_for_status("connected")


async def test_a_client_of_the_newest_protocol_asks_its_user_and_repeats_the_call(
    ada: Account, accounts_service: Container
) -> None:
    key = await know_tools(ada)
    asked: list[ElicitRequestURLParams] = []

    async def sign_in(_context: Any, params: Any) -> ElicitResult:
        asked.append(params)
        await ada.finish(await ada.authorize(params.url))
        return ElicitResult(action="accept")

    async with (
        serve_app(accounts_service) as running,
        connect_client(f"{running.url}/mcp", ada.user.key, elicitation_callback=sign_in) as client,
    ):
        result = await client.call_tool("tool_execute", {"toolKey": key})
    assert get_text(result) == "the notes of ada"
    [params] = asked
    assert params.mode == "url"
    assert params.message == "Sign in to notes, so that the tool list_notes can run."


@pytest.mark.parametrize("action", ["decline", "accept"])
async def test_a_user_who_does_not_sign_in_is_asked_once_and_the_model_gets_the_link_in_words(
    ada: Account, accounts_service: Container, action: Any
) -> None:
    key = await know_tools(ada)
    asked: list[str] = []

    async def do_nothing(_context: Any, params: Any) -> ElicitResult:
        asked.append(params.url)
        return ElicitResult(action=action)

    async with (
        serve_app(accounts_service) as running,
        connect_client(f"{running.url}/mcp", ada.user.key, elicitation_callback=do_nothing) as client,
    ):
        result = await client.call_tool("tool_execute", {"toolKey": key})
    assert get_error(result)["code"] == "AUTHORIZATION_REQUIRED"
    assert asked == [get_error(result)["authorization_url"]]
    assert asked[0] in get_text(result)


async def test_an_older_client_that_can_open_urls_gets_the_error_of_its_protocol(
    ada: Account, accounts_service: Container
) -> None:
    key = await know_tools(ada)

    async def never(_context: Any, _params: Any) -> ElicitResult:
        raise AssertionError("the older protocol answers with an error")

    async with (
        serve_app(accounts_service) as running,
        connect_client(f"{running.url}/mcp", ada.user.key, "legacy", elicitation_callback=never) as client,
    ):
        with pytest.raises(MCPError) as caught:
            await client.call_tool("tool_execute", {"toolKey": key})
        assert caught.value.code == URL_ELICITATION_REQUIRED
        [elicitation] = caught.value.data["elicitations"]
        assert (elicitation["mode"], bool(elicitation["elicitationId"])) == ("url", True)
        await ada.finish(await ada.authorize(elicitation["url"]))
        assert get_text(await client.call_tool("tool_execute", {"toolKey": key})) == "the notes of ada"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_cannot_open_urls_gets_the_link_in_words(
    ada: Account, accounts_service: Container, provider: OidcProvider, mode: Any
) -> None:
    key = await know_tools(ada)
    async with (
        serve_app(accounts_service) as running,
        connect_client(f"{running.url}/mcp", ada.user.key, mode) as client,
    ):
        text = get_text(await client.call_tool("tool_execute", {"toolKey": key}))
    assert "Show the user this link to sign in" in text
    assert f"{provider.url}/auth?" in text


async def test_the_console_connects_and_disconnects(
    ada: Account, accounts_service: Container, provider: OidcProvider
) -> None:
    path = f"/console/servers/{ada.server_id}"
    async with open_console(accounts_service, ada.user.key) as console:
        assert "Connect" in await console.get_page(path)
        page = (await console.submit(f"{path}/connect")).text
        [link] = re.findall(rf'href="({re.escape(provider.url)}/auth[^"]*)"', page)
        callback = await ada.authorize(html.unescape(link))
        done = await console.http.get(callback.removeprefix(PUBLIC_URL))
        assert done.status_code == 200
        assert f"{PUBLIC_URL}{path}" in done.text
        await ada.wait_for_status("connected")
        page = await console.get_page(path)
        assert ("Reconnect" in page, "Disconnect" in page) == (True, True)
        assert (await console.submit(f"{path}/disconnect")).headers["location"] == f"{path}?notice=server-disconnected"
        assert "This server wants you to sign in." in await console.get_page(path)
    assert (await ada.read_server())["signed_in"] is False


async def test_credentials_of_a_backend_take_the_place_of_a_sign_in(ada: Account, server: ProtectedServer) -> None:
    await ada.sign_in()
    assert_ok(await ada.execute())
    headers = {"Authorization": f"Bearer {server.tokens[-1]}", "X-Own": "1"}
    await ada.user.http.delete(f"/servers/{ada.server_id}/connection")
    answer = await ada.user.http.put(f"/servers/{ada.server_id}/credentials", json={"headers": headers})
    assert (assert_ok(answer)["signed_in"], answer.json()["status"]) == (False, "disconnected")
    assert result_text(await ada.execute()) == "the notes of ada"
