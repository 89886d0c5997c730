"""Users sign in to their servers: oidc-provider authorizes, servers of the SDK and of FastMCP are protected."""

import asyncio
import json
import time
from typing import Any

import pytest
from pydantic import SecretStr

from app.connections.requests import limit_time
from app.container import Container
from tests.support.accounts import BACKEND, OPERATOR_CLIENT, PUBLIC_URL, Account, get_query, new_account
from tests.support.calls import result_text
from tests.support.factories import OpenService
from tests.support.fastmcp_server import running_fastmcp_server
from tests.support.http_server import serve_app
from tests.support.oidc_provider import OidcProvider
from tests.support.protected_server import ProtectedServer, read_claims
from tests.support.worker_steps import until

pytestmark = pytest.mark.needs_npm


# --- connect, list, execute


async def test_a_server_that_wants_oauth_needs_authorization_and_says_what_to_do(ada: Account) -> None:
    found = await ada.read_server()
    assert found["status"] == "needs_authorization"
    assert "wants you to sign in" in found["last_error"]
    assert (await ada.user.tools()) == {}


async def test_a_user_signs_in_and_the_tools_are_listed_found_and_run(ada: Account, server: ProtectedServer) -> None:
    page = await ada.sign_in()
    assert page.status_code == 200
    assert "You have signed in to notes." in page.text
    assert set(await ada.user.tools()) == {"list_notes", "add_note", "delete_note"}
    [best, *_] = (await ada.user.discover("list my notes"))["tools"]
    assert (best["tool"]["name"], best["server_status"]) == ("list_notes", "connected")
    assert result_text(await ada.execute()) == "the notes of ada"
    assert server.calls[-1] == ("ada", "list_notes")


async def test_the_request_names_the_resource_and_proves_the_key(
    ada: Account, provider: OidcProvider, server: ProtectedServer
) -> None:
    url = await ada.start()
    asked = get_query(url)
    assert url.startswith(f"{provider.url}/auth?")
    assert (asked["resource"], asked["response_type"], asked["code_challenge_method"]) == (server.url, "code", "S256")
    assert asked["redirect_uri"] == f"{PUBLIC_URL}/oauth/callback"
    assert "tools:read" in asked["scope"].split()
    await ada.finish(await ada.authorize(url))
    exchange = provider.find_requests("/token", grant_type="authorization_code")[-1]
    assert (exchange["status"], exchange["params"]["resource"]) == (200, server.url)
    assert exchange["params"]["code_verifier"]


async def test_each_user_has_an_account_of_their_own(ada: Account, bob: Account, server: ProtectedServer) -> None:
    await ada.sign_in()
    assert (await bob.read_server())["status"] == "needs_authorization"
    await bob.sign_in()
    assert result_text(await ada.execute()) == "the notes of ada"
    assert result_text(await bob.execute()) == "the notes of bob"


async def test_a_server_of_fastmcp_that_is_its_own_authorization_server_is_connected(open_service: OpenService) -> None:
    with running_fastmcp_server() as tasks:
        async with (
            open_service(outbound_allow=tasks.address, public_url=PUBLIC_URL) as opened,
            new_account(opened, tasks.url, "ada") as ada,
        ):
            await ada.sign_in()
            assert result_text(await ada.execute("add_task", title="milk")) == "added milk"
            assert len(tasks.auth.access_tokens) == 1
            answer = await ada.user.http.delete(f"/servers/{ada.server_id}/connection")
            assert answer.status_code == 204
            assert tasks.auth.access_tokens == {}


# --- who we are to the authorization server


async def test_a_client_id_metadata_document_takes_the_place_of_a_registration(
    open_service: OpenService, provider: OidcProvider, server: ProtectedServer
) -> None:
    public_url = "https://tools.example.com"
    allowed = f"{provider.address},{server.address}"
    async with (
        open_service(outbound_allow=allowed, public_url=public_url) as opened,
        serve_app(opened) as running,
        new_account(opened, server.url, "ada") as ada,
    ):
        provider.change(clientIdMetadataDocuments=True, rewrite={public_url: running.url})
        registrations = len(provider.find_requests("/reg"))
        url = await ada.start()
        assert get_query(url)["client_id"].startswith(f"{public_url}/")
        await ada.finish(await ada.authorize(url))
        await ada.wait_for_status("connected")
        assert result_text(await ada.execute()) == "the notes of ada"
        assert len(provider.find_requests("/reg")) == registrations


async def test_the_operators_client_is_used_where_nobody_can_register(
    open_service: OpenService, provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(registration=False)
    allowed = {"outbound_allow": f"{provider.address},{server.address}", "public_url": PUBLIC_URL}
    async with open_service(**allowed) as opened, new_account(opened, server.url, "ada") as ada:
        refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={})
        assert refused.status_code == 502
        assert "TOOLSCOUT_OAUTH_CLIENTS" in refused.json()["detail"]
    clients = SecretStr(json.dumps({provider.url: OPERATOR_CLIENT}))
    async with (
        open_service(**allowed, oauth_clients=clients) as opened,
        new_account(opened, server.url, "ada") as ada,
    ):
        await ada.sign_in()
        assert result_text(await ada.execute()) == "the notes of ada"


# --- without an account


async def test_a_call_without_an_account_runs_nothing_and_returns_a_link_that_works(
    ada: Account, server: ProtectedServer
) -> None:
    await ada.sign_in()
    assert (await ada.user.http.delete(f"/servers/{ada.server_id}/connection")).status_code == 204
    before = len(server.calls)
    refused = await ada.execute()
    assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    assert len(server.calls) == before
    await ada.finish(await ada.authorize(refused.json()["authorization_url"]))
    await ada.wait_for_status("connected")
    assert result_text(await ada.execute()) == "the notes of ada"


async def test_tools_of_a_lost_account_are_found_and_marked_with_a_link(ada: Account, bob: Account) -> None:
    await ada.sign_in()
    await ada.user.http.delete(f"/servers/{ada.server_id}/connection")
    [best, *_] = (await ada.user.discover("list my notes", connect=True))["tools"]
    assert (best["tool"]["name"], best["server_status"]) == ("list_notes", "needs_authorization")
    page = await ada.open(best["connect_url"])
    assert ada.user.id in page.text
    follow = f"{best['connect_url']}&continue=1"
    stolen = await ada.authorize((await ada.open(follow)).headers["Location"])
    assert (await bob.finish(stolen)).status_code == 400, "another browser has not begun it"
    await ada.finish(await ada.authorize((await ada.open(follow)).headers["Location"]))
    await ada.wait_for_status("connected")
    [best, *_] = (await ada.user.discover("list my notes", connect=True))["tools"]
    assert (best["server_status"], best["connect_url"]) == ("connected", None)


# --- revocation


async def test_disconnecting_revokes_the_tokens_of_this_account_alone(
    ada: Account, bob: Account, provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(accessTokenFormat="opaque")
    await ada.sign_in()
    await bob.sign_in()
    await ada.execute()
    token = server.tokens[-1]
    assert server.accepts(token)
    assert (await ada.user.http.delete(f"/servers/{ada.server_id}/connection")).status_code == 204
    assert not server.accepts(token)
    assert (await ada.read_server())["status"] == "needs_authorization"
    assert result_text(await bob.execute()) == "the notes of bob"
    again = await ada.user.http.delete(f"/servers/{ada.server_id}/connection")
    assert again.status_code == 404


async def test_an_account_that_the_provider_revokes_asks_for_a_new_sign_in(
    ada: Account, provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(accessTokenFormat="opaque")
    await ada.sign_in()
    assert result_text(await ada.execute()) == "the notes of ada"
    provider.revoke_grants()
    calls = len(server.calls)
    refused = await ada.execute()
    assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    assert len(server.calls) == calls
    await ada.finish(await ada.authorize(refused.json()["authorization_url"]))
    await ada.wait_for_status("connected")
    assert result_text(await ada.execute()) == "the notes of ada"


# --- expiry, refresh


async def test_an_expired_token_is_refreshed_without_the_user(
    ada: Account, provider: OidcProvider, server: ProtectedServer
) -> None:
    provider.change(accessTokenTtl=3)
    await ada.sign_in()
    assert result_text(await ada.execute()) == "the notes of ada"
    expired = server.tokens[-1]
    refreshes = len(provider.find_requests("/token", grant_type="refresh_token"))

    async def has_expired() -> bool:
        return not server.accepts(expired) and time.time() > read_claims(expired)["exp"] + 1

    await until(has_expired)
    provider.change(accessTokenTtl=3600)
    for _ in range(2):
        assert result_text(await ada.execute()) == "the notes of ada"
    assert server.tokens[-1] != expired
    refreshed = provider.find_requests("/token", grant_type="refresh_token")[refreshes:]
    assert [(each["status"], each["params"]["resource"]) for each in refreshed] == [(200, server.url)]


async def test_many_calls_at_once_refresh_once(
    ada: Account, accounts_service: Container, provider: OidcProvider, server: ProtectedServer
) -> None:
    await ada.sign_in()
    await ada.expire_token(accounts_service)
    refreshes = len(provider.find_requests("/token", grant_type="refresh_token"))
    answers = await asyncio.gather(*(ada.execute() for _ in range(10)))
    assert {result_text(answer) for answer in answers} == {"the notes of ada"}
    assert len(provider.find_requests("/token", grant_type="refresh_token")) == refreshes + 1


async def test_a_refresh_token_that_the_provider_no_longer_accepts_asks_for_a_new_sign_in(
    ada: Account, accounts_service: Container, provider: OidcProvider
) -> None:
    await ada.sign_in()
    provider.revoke_grants()
    await ada.expire_token(accounts_service)
    refused = await ada.execute()
    assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    assert (await ada.read_server())["status"] == "needs_authorization"
    await ada.sign_in()
    assert result_text(await ada.execute()) == "the notes of ada"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"status": 200, "body": "<html>rubbish</html>"},
        {"status": 200, "body": '{"access_token": 7}'},
        {"status": 200, "body": '{"token_type": "Bearer"}'},
        {"status": 200, "body": '{"access_token": "a b\\r\\nX-Injected: 1", "token_type": "Bearer"}'},
        {"status": 200, "body": "[" * 100_000},
        {"status": 503, "body": "down"},
        {"status": 404, "body": "not here"},
        {"status": 302, "headers": {"location": "http://127.0.0.1:9/token"}},
    ],
    ids=["hangs", "html", "number", "no-token", "header", "nested", "unavailable", "missing", "redirect"],
)
async def test_a_token_endpoint_that_fails_loses_no_account(
    ada: Account,
    accounts_service: Container,
    provider: OidcProvider,
    answer: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limit_time.__wrapped__, "__defaults__", (1.0,))  # type: ignore[attr-defined]
    await ada.sign_in()
    await ada.expire_token(accounts_service)
    with provider.failing("/token", **answer):
        failed = await ada.execute()
    assert (failed.status_code, failed.json()["code"]) == (502, "SERVER_CONNECTION_ERROR")
    assert result_text(await ada.execute()) == "the notes of ada"


# --- rights


async def test_a_call_that_needs_more_rights_asks_for_them_and_keeps_the_others(
    ada: Account, provider: OidcProvider, server: ProtectedServer
) -> None:
    await ada.sign_in()
    calls = len(server.calls)
    refused = await ada.execute("delete_note", name="plan")
    assert (refused.status_code, refused.json()["code"]) == (403, "AUTHORIZATION_REQUIRED")
    assert len(server.calls) == calls
    assert result_text(await ada.execute()) == "the notes of ada"
    link = refused.json()["authorization_url"]
    assert {"tools:read", "tools:write"} <= set(get_query(link)["scope"].split())
    await ada.finish(await ada.authorize(link))
    await ada.wait_for_status("connected")
    assert result_text(await ada.execute("delete_note", name="plan")) == "ada deleted plan"
    assert result_text(await ada.execute()) == "the notes of ada"


# --- where the browser goes


async def test_the_browser_is_sent_back_to_the_backend(ada: Account) -> None:
    url = await ada.start(redirect_url=f"{BACKEND}/settings?tab=tools")
    answer = await ada.finish(await ada.authorize(url))
    assert answer.status_code in (302, 303)
    location = answer.headers["Location"]
    assert location.startswith(f"{BACKEND}/settings?tab=tools&")
    assert get_query(location)["status"] == "connected"
    assert "code" not in get_query(location)
    await ada.wait_for_status("connected")


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example.com/",
        f"{BACKEND}.evil.example.com/",
        f"{BACKEND}@evil.example.com/",
        "http://chat.example.com/",
        f"{BACKEND}:8443/",
        "javascript:alert(1)",
        "//evil.example.com/",
    ],
)
async def test_a_redirect_to_a_foreign_origin_is_refused(ada: Account, url: str) -> None:
    refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={"redirect_url": url})
    assert refused.status_code == 422
    assert "TOOLSCOUT_REDIRECT_ORIGINS" in refused.json()["detail"]
    assert await ada.start(redirect_url=f"{BACKEND}/settings")
