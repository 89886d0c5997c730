"""Signing in, the session and its end, and protection against requests from other sites."""

import base64
import time
from http.cookies import SimpleCookie

import httpx
import pytest

from app.auth.keys import hash_key
from app.cli.serve import _make_config
from app.console.session_cookie import COOKIE_NAME, LIFETIME_S, open_session, start_session
from app.container import Container
from app.crypto import SecretOwner
from tests.support.checks import everything
from tests.support.clients import TestUser, get_app, open_client
from tests.support.console_client import ConsoleClient, find_error, open_console
from tests.support.factories import ADMIN_KEY, SECRET_KEY

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def parse_cookie(response: httpx.Response) -> SimpleCookie:
    return SimpleCookie(response.headers["set-cookie"])


async def test_a_user_signs_in_with_a_key_and_signs_out(anonymous: httpx.AsyncClient, user: TestUser) -> None:
    console = ConsoleClient(anonymous)
    assert (await anonymous.get("/console/servers")).headers["location"] == "/console/sign-in?back=%2Fconsole%2Fservers"
    response = await console.sign_in(user.key)
    assert (response.status_code, response.headers["location"]) == (303, "/console")
    assert user.id in await console.get_page("/console/servers")
    signed_out = await console.submit("/console/sign-out")
    assert signed_out.headers["location"] == "/console/sign-in?notice=signed-out"
    assert "You are signed out." in await console.get_page(signed_out.headers["location"])
    assert (await anonymous.get("/console/servers")).status_code == 303


async def test_a_repeated_authorization_header_is_refused_on_every_page(
    anonymous: httpx.AsyncClient, user: TestUser
) -> None:
    await ConsoleClient(anonymous).sign_in(user.key)
    once = [("Authorization", "Basic for-a-proxy")]
    for path in ("/console/servers", "/console/sign-in", "/docs"):
        assert (await anonymous.get(path, headers=once)).status_code == 200
        repeated = await anonymous.get(path, headers=once * 2)
        assert repeated.status_code == 400
        assert "more than once" in repeated.text


async def test_the_cookie_is_only_sent_to_the_console_and_hidden_from_scripts(
    anonymous: httpx.AsyncClient, user: TestUser
) -> None:
    response = await anonymous.post("/console/sign-in", data={"key": user.key})
    cookie = parse_cookie(response)[COOKIE_NAME]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/console")
    assert cookie["max-age"] == str(LIFETIME_S)
    assert not cookie["secure"]
    assert user.key not in response.headers["set-cookie"]
    assert hash_key(user.key).hex().encode() not in base64.urlsafe_b64decode(cookie.value)


async def test_over_https_the_cookie_is_secure(container: Container, user: TestUser) -> None:
    async with open_client(container) as http:
        response = await http.post("https://toolscout/console/sign-in", data={"key": user.key})
    assert parse_cookie(response)[COOKIE_NAME]["secure"] is True


@pytest.mark.parametrize(("proxy", "is_secure"), [("10.1.2.3", True), ("203.0.113.7", False)])
async def test_the_cookie_is_secure_behind_a_trusted_proxy_that_terminates_tls(
    container: Container, user: TestUser, proxy: str, is_secure: bool
) -> None:
    """What a stranger says in `X-Forwarded-Proto` is not believed."""
    settings = container.settings.model_copy(update={"trusted_proxies": "10.0.0.0/8"})
    config = _make_config(get_app(container), settings)
    config.load()
    transport = httpx.ASGITransport(config.loaded_app, client=(proxy, 1))
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.1"}
    async with httpx.AsyncClient(transport=transport, base_url="http://toolscout", headers=headers) as http:
        response = await http.post("/console/sign-in", data={"key": user.key})
    assert response.status_code == 303
    assert bool(parse_cookie(response)[COOKIE_NAME]["secure"]) is is_secure


@pytest.mark.parametrize("key", ["", "nonsense", "ts_user_" + "x" * 43, "ä" * 20])
async def test_all_invalid_keys_get_the_same_response(anonymous: httpx.AsyncClient, key: str) -> None:
    response = await anonymous.post("/console/sign-in", data={"key": key, "user_id": "somebody"})
    assert response.status_code == 401
    assert find_error(response.text) == "This key is invalid, expired or revoked."
    assert "set-cookie" not in response.headers
    assert 'value="somebody"' in response.text
    assert "nonsense" not in response.text


async def test_signing_in_leads_to_the_requested_page(anonymous: httpx.AsyncClient, user: TestUser) -> None:
    response = await anonymous.post("/console/sign-in", data={"key": user.key, "back": "/console/tools"})
    assert response.headers["location"] == "/console/tools"


@pytest.mark.parametrize(
    "back", ["https://evil.example/console/", "//evil.example", "/console/..//evil.example", "/docs", "/console/\\e"]
)
async def test_signing_in_does_not_redirect_to_other_sites(
    anonymous: httpx.AsyncClient, user: TestUser, back: str
) -> None:
    response = await anonymous.post("/console/sign-in", data={"key": user.key, "back": back})
    assert response.headers["location"] == "/console"


async def test_a_revoked_key_ends_the_session(
    container: Container, user: TestUser, console: ConsoleClient, admin: httpx.AsyncClient
) -> None:
    await console.get_page("/console/tools")
    keys = await everything(admin, "/keys")
    [key_id] = [key["id"] for key in keys if key["user_id"] == user.id]
    assert (await admin.delete(f"/keys/{key_id}")).status_code == 204
    assert (await console.http.get("/console/tools")).headers["location"].startswith("/console/sign-in")
    assert (await console.fetch_fragment("/console/try/answer", query="weather")).status_code == 401


async def test_a_session_ends_after_twelve_hours(container: Container, user: TestUser, console: ConsoleClient) -> None:
    for expires_at, status in ((int(time.time()) + 60, 200), (int(time.time()) - 1, 303)):
        cookie = start_session(hash_key(user.key), None, expires_at).seal(container.sealer)
        console.http.cookies.clear()
        console.http.cookies.set(COOKIE_NAME, cookie, path="/console")
        assert (await console.http.get("/console/tools")).status_code == status


@pytest.mark.parametrize("cookie", ["", "x", "%%%", base64.urlsafe_b64encode(b"0" * 80).decode(), SECRET_KEY])
def test_an_invalid_cookie_is_rejected(container: Container, cookie: str) -> None:
    assert open_session(container.sealer, cookie) is None


def test_a_valid_cookie_is_accepted(container: Container) -> None:
    session = start_session(b"digest", "alice")
    assert open_session(container.sealer, session.seal(container.sealer)) == session


def test_a_secret_sealed_for_another_purpose_is_not_a_session(container: Container) -> None:
    sealed = container.sealer.seal(b'["00", null, "token", 99999999999]', SecretOwner("alice", "files", "headers"))
    assert open_session(container.sealer, base64.urlsafe_b64encode(sealed).decode()) is None


async def test_a_form_without_the_csrf_token_is_rejected(console: ConsoleClient, other_user: TestUser) -> None:
    body = {"name": "files", "transport": "push", "do": "add"}
    own_token = console.token
    for token in ("", "x" * 32, start_session(b"", None).csrf_token):
        response = await console.http.post("/console/servers", data={**body, "csrf": token})
        assert response.status_code == 403
        assert "another session" in find_error(response.text)
    assert "No servers yet" in await console.get_page("/console/servers")
    assert (await console.http.post("/console/servers", data={**body, "csrf": own_token})).status_code == 303


async def test_a_form_from_another_origin_is_rejected_even_with_the_token(console: ConsoleClient) -> None:
    body = {"csrf": console.token, "name": "files", "transport": "push", "do": "add"}
    foreign = await console.http.post("/console/servers", data=body, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    own = await console.http.post("/console/servers", data=body, headers={"Origin": "http://toolscout"})
    assert own.status_code == 303


async def test_an_unknown_host_name_is_rejected(anonymous: httpx.AsyncClient) -> None:
    assert (await anonymous.get("/console/sign-in", headers={"Host": "evil.example"})).status_code == 421
    assert (await anonymous.get("/console/sign-in")).status_code == 200


@pytest.mark.parametrize("path", ["/console/sign-in", "/console/servers", "/console/nowhere", "/console"])
async def test_every_page_has_the_security_headers(console: ConsoleClient, path: str) -> None:
    headers = (await console.http.get(path)).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


async def test_no_page_has_inline_scripts_or_styles(console: ConsoleClient, user: TestUser) -> None:
    await user.add_server()
    for path in ("/console/try", "/console/servers", "/console/tools", "/console/rules", "/console/projects/new"):
        page = await console.get_page(path)
        assert "<script>" not in page
        assert "<style" not in page
        assert " style=" not in page
        assert " onclick=" not in page


async def test_signing_in_and_out_is_audited(console: ConsoleClient, user: TestUser) -> None:
    await console.submit("/console/sign-out")
    events = (await user.http.get("/audit")).json()["items"]
    assert [event["action"] for event in events][:2] == ["console.sign_out", "console.sign_in"]
    assert {event["actor"].split(":")[0] for event in events[:2]} == {"user"}


async def test_a_service_key_must_name_its_user(container: Container, admin: httpx.AsyncClient, user: TestUser) -> None:
    key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    async with open_client(container) as http:
        response = await ConsoleClient(http).sign_in(key)
        assert response.status_code == 422
        assert "name the one" in find_error(response.text)
    async with open_console(container, key, user.id) as service:
        page = await service.get_page("/console/servers")
    assert f"Acting for</span> <strong>{user.id}" in page


async def test_a_users_key_cannot_act_for_another(
    anonymous: httpx.AsyncClient, user: TestUser, other_user: TestUser
) -> None:
    response = await ConsoleClient(anonymous).sign_in(user.key, other_user.id)
    assert response.status_code == 403
    assert "belongs to one user" in find_error(response.text)


async def test_an_administrator_selects_the_user_to_act_for(admin_console: ConsoleClient, user: TestUser) -> None:
    await user.add_server("papers")
    assert "Select a user first" in await admin_console.get_page("/console/servers")
    assert (await admin_console.submit("/console/act-for", user_id="nobody-at-all")).status_code == 404
    assert (await admin_console.submit("/console/act-for", user_id=user.id)).status_code == 303
    page = await admin_console.get_page("/console/servers")
    assert "papers" in page
    await admin_console.submit("/console/act-for", user_id="")
    assert "Select a user first" in await admin_console.get_page("/console/servers")


async def test_the_root_redirects_browsers_and_no_other_clients(anonymous: httpx.AsyncClient) -> None:
    response = await anonymous.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert (response.status_code, response.headers["location"]) == (303, "/console")
    assert (await anonymous.get("/")).status_code == 404


async def test_the_bootstrap_key_signs_in(anonymous: httpx.AsyncClient) -> None:
    assert (await ConsoleClient(anonymous).sign_in(ADMIN_KEY)).status_code == 303
