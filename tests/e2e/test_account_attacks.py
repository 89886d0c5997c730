"""Forged and replayed answers, and metadata that leads elsewhere: none connects an account or reaches our network."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.container import Container
from tests.support.accounts import Account, get_query
from tests.support.calls import result_text
from tests.support.mcp_server import listener
from tests.support.oidc_provider import OidcProvider
from tests.support.protected_server import ProtectedServer

pytestmark = pytest.mark.needs_npm


def change_query(url: str, **changes: str | None) -> str:
    query = {name: value for name, value in {**get_query(url), **changes}.items() if value is not None}
    return str(httpx.URL(url).copy_with(params=query))


def count_exchanges(provider: OidcProvider) -> int:
    return len(provider.find_requests("/token", grant_type="authorization_code"))


async def assert_not_connected(account: Account, answer: httpx.Response) -> None:
    """The browser shows that it failed, and the server still wants a sign-in."""
    assert "You have signed in" not in answer.text
    assert answer.status_code in (200, 400, 403)
    assert (await account.read_server())["status"] == "needs_authorization"


async def assert_connects(account: Account, callback: str) -> None:
    await account.finish(callback)
    await account.wait_for_status("connected")
    assert result_text(await account.execute()) == f"the notes of {account.person.account}"


# --- what comes back with the browser


@pytest.mark.parametrize(
    "forge",
    [lambda _: None, lambda _: "", lambda _: "guess", lambda state: state[:-4] + "AAAA", str.swapcase],
    ids=["missing", "empty", "guessed", "tampered", "other-case"],
)
async def test_a_wrong_state_connects_nothing_and_the_right_one_does(
    ada: Account, provider: OidcProvider, forge: Callable[[str], str | None]
) -> None:
    callback = await ada.authorize(await ada.start())
    exchanges = count_exchanges(provider)
    forged = change_query(callback, state=forge(get_query(callback)["state"]))
    await assert_not_connected(ada, await ada.finish(forged))
    assert count_exchanges(provider) == exchanges
    await assert_connects(ada, callback)


@pytest.mark.parametrize("iss", ["https://evil.example.com", "", None], ids=["other", "empty", "missing"])
async def test_an_answer_of_another_issuer_connects_nothing_and_sends_no_code(
    ada: Account, provider: OidcProvider, iss: str | None
) -> None:
    callback = await ada.authorize(await ada.start())
    assert get_query(callback)["iss"] == provider.url
    exchanges = count_exchanges(provider)
    await assert_not_connected(ada, await ada.finish(change_query(callback, iss=iss)))
    assert count_exchanges(provider) == exchanges
    await assert_connects(ada, await ada.authorize(await ada.start()))


async def test_an_answer_works_once(ada: Account, provider: OidcProvider) -> None:
    callback = await ada.authorize(await ada.start())
    await assert_connects(ada, callback)
    exchanges = count_exchanges(provider)
    again = await ada.finish(callback)
    assert "You have signed in" not in again.text
    assert count_exchanges(provider) == exchanges
    assert result_text(await ada.execute()) == "the notes of ada"


async def test_an_answer_that_arrives_twice_at_once_is_used_once(ada: Account, provider: OidcProvider) -> None:
    callback = await ada.authorize(await ada.start())
    exchanges = count_exchanges(provider)
    await asyncio.gather(*(ada.finish(callback) for _ in range(5)))
    await ada.wait_for_status("connected")
    assert count_exchanges(provider) == exchanges + 1


async def test_a_code_that_was_used_connects_nothing(ada: Account) -> None:
    used = await ada.authorize(await ada.start())
    await assert_connects(ada, used)
    await ada.user.http.delete(f"/servers/{ada.server_id}/connection")
    fresh = await ada.authorize(await ada.start())
    await assert_not_connected(ada, await ada.finish(change_query(fresh, code=get_query(used)["code"])))
    await assert_connects(ada, await ada.authorize(await ada.start()))


async def test_a_code_of_another_user_connects_nothing(ada: Account, bob: Account) -> None:
    """Bob's code proves Bob's request, not Ada's (PKCE)."""
    hers, his = await ada.authorize(await ada.start()), await bob.authorize(await bob.start())
    mixed = change_query(hers, code=get_query(his)["code"])
    await assert_not_connected(ada, await ada.finish(mixed))
    await assert_not_connected(bob, await ada.finish(mixed))
    await assert_connects(ada, await ada.authorize(await ada.start()))
    await assert_connects(bob, await bob.authorize(await bob.start()))


async def test_a_user_cannot_begin_or_end_the_sign_in_of_another(ada: Account, bob: Account) -> None:
    for method, path in (("POST", "connect"), ("DELETE", "connection")):
        foreign = await bob.user.http.request(method, f"/servers/{ada.server_id}/{path}")
        missing = await bob.user.http.request(method, f"/servers/00000000-0000-4000-8000-000000000000/{path}")
        assert foreign.status_code == missing.status_code == 404
    await assert_connects(ada, await ada.authorize(await ada.start()))
    assert (await bob.user.http.delete(f"/servers/{ada.server_id}/connection")).status_code == 404
    assert result_text(await ada.execute()) == "the notes of ada"


async def test_an_answer_that_comes_too_late_connects_nothing(
    ada: Account, provider: OidcProvider, accounts_service: Container
) -> None:
    callback = await ada.authorize(await ada.start())
    exchanges = count_exchanges(provider)
    async with accounts_service.database.system_transaction() as session:
        statement = "UPDATE authorization_requests SET expires_at = now() - interval '1 s' WHERE user_id = %(user)s"
        await session.rows(f"{statement} RETURNING id", {"user": ada.user.id})
    await assert_not_connected(ada, await ada.finish(callback))
    assert count_exchanges(provider) == exchanges
    await assert_connects(ada, await ada.authorize(await ada.start()))


async def test_a_person_who_refuses_connects_nothing(ada: Account) -> None:
    denied = await asyncio.to_thread(ada.person.deny, await ada.start())
    await assert_not_connected(ada, await ada.finish(denied))
    await assert_connects(ada, await ada.authorize(await ada.start()))


async def test_an_error_in_the_answer_is_not_shown_as_the_server_wrote_it(ada: Account) -> None:
    denied = await asyncio.to_thread(ada.person.deny, await ada.start())
    script = "<script>alert(1)</script>"
    answer = await ada.finish(change_query(denied, error=script, error_description=script))
    await assert_not_connected(ada, answer)
    assert "<script>alert" not in answer.text


# --- metadata that leads into our network


Redirect = Callable[[OidcProvider, ProtectedServer, str], None]


def point_challenge(_: OidcProvider, server: ProtectedServer, url: str) -> None:
    server.challenge = f'Bearer error="invalid_token", resource_metadata="{url}"'


def point_authorization_server(_: OidcProvider, server: ProtectedServer, url: str) -> None:
    server.metadata = {"authorization_servers": [url]}


def point_member(name: str) -> Redirect:
    def point(provider: OidcProvider, _: ProtectedServer, url: str) -> None:
        provider.change(metadata={name: url})

    return point


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "0x7f.1"])
@pytest.mark.parametrize(
    "point",
    [point_challenge, point_authorization_server, point_member("registration_endpoint")],
    ids=["resource_metadata", "authorization_servers", "registration_endpoint"],
)
async def test_metadata_that_points_into_our_network_begins_no_sign_in(
    ada: Account, provider: OidcProvider, server: ProtectedServer, point: Redirect, host: str
) -> None:
    with listener() as inside:
        point(provider, server, f"http://{host}:{inside.port}/x")
        refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={})
        assert refused.status_code in (422, 502), refused.text
        assert inside.connects == 0
    provider.reset()
    server.reset()
    await assert_connects(ada, await ada.authorize(await ada.start()))


async def test_a_token_endpoint_in_our_network_gets_no_code(ada: Account, provider: OidcProvider) -> None:
    with listener() as inside:
        provider.change(metadata={"token_endpoint": f"http://127.0.0.1:{inside.port}/token"})
        callback = await ada.authorize(await ada.start())
        await assert_not_connected(ada, await ada.finish(callback))
        assert inside.connects == 0
    provider.reset()
    await assert_connects(ada, await ada.authorize(await ada.start()))


async def test_a_revocation_endpoint_in_our_network_gets_no_token(ada: Account, provider: OidcProvider) -> None:
    with listener() as inside:
        provider.change(metadata={"revocation_endpoint": f"http://127.0.0.1:{inside.port}/revoke"})
        await assert_connects(ada, await ada.authorize(await ada.start()))
        assert (await ada.user.http.delete(f"/servers/{ada.server_id}/connection")).status_code == 204
        assert inside.connects == 0
    provider.reset()
    revocations = len(provider.find_requests("/token/revocation"))
    await assert_connects(ada, await ada.authorize(await ada.start()))
    await ada.user.http.delete(f"/servers/{ada.server_id}/connection")
    assert len(provider.find_requests("/token/revocation")) > revocations


@pytest.mark.parametrize("url", ["javascript:alert(1)", "http://127.0.0.1:9/auth", "file:///etc/passwd"])
async def test_the_browser_is_not_sent_to_an_address_that_is_no_web_page(
    ada: Account, provider: OidcProvider, url: str
) -> None:
    provider.change(metadata={"authorization_endpoint": url})
    refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={})
    assert refused.status_code in (422, 502), refused.text
    provider.reset()
    assert (await ada.start()).startswith(provider.url)


@pytest.mark.parametrize("path", ["/.well-known/oauth-authorization-server", "/reg"])
async def test_a_redirect_into_our_network_is_not_followed(ada: Account, provider: OidcProvider, path: str) -> None:
    with listener() as inside:
        location = {"location": f"http://127.0.0.1:{inside.port}/x"}
        paths = [path, "/.well-known/openid-configuration"] if "well-known" in path else [path]
        with provider.failing(*paths, status=302, headers=location):
            refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={})
        assert refused.status_code in (422, 502), refused.text
        assert inside.connects == 0
    await assert_connects(ada, await ada.authorize(await ada.start()))


@pytest.mark.parametrize(
    "changes",
    [{"issuer": "https://evil.example.com"}, {"code_challenge_methods_supported": ["plain"]}, {"token_endpoint": 7}],
    ids=["issuer", "pkce", "type"],
)
async def test_metadata_that_cannot_be_trusted_begins_no_sign_in(
    ada: Account, provider: OidcProvider, changes: dict[str, Any]
) -> None:
    provider.change(metadata=changes)
    refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={})
    assert refused.status_code in (422, 502), refused.text
    provider.reset()
    await assert_connects(ada, await ada.authorize(await ada.start()))


@pytest.mark.parametrize("path", ["/.well-known/oauth-authorization-server", "/reg"])
@pytest.mark.parametrize(
    "body", ["rubbish", "[" * 100_000, "{}", "7", '{"client_id": "' + "x" * 300_000 + '"}'], ids=lambda body: body[:8]
)
async def test_rubbish_in_place_of_metadata_or_a_client_begins_no_sign_in(
    ada: Account, provider: OidcProvider, path: str, body: str
) -> None:
    paths = [path, "/.well-known/openid-configuration"] if "well-known" in path else [path]
    with provider.failing(*paths, status=200 if "well-known" in path else 201, body=body):
        refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={})
    assert refused.status_code in (422, 502), refused.text
    await assert_connects(ada, await ada.authorize(await ada.start()))


async def test_metadata_of_another_resource_begins_no_sign_in(ada: Account, server: ProtectedServer) -> None:
    """Otherwise a server could have us fetch a token for another one."""
    server.metadata = {"resource": "https://mcp.example.com/mcp"}
    refused = await ada.user.http.post(f"/servers/{ada.server_id}/connect", json={})
    assert refused.status_code in (422, 502), refused.text
    server.reset()
    await assert_connects(ada, await ada.authorize(await ada.start()))
