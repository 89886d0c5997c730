"""Signing in to the console at the identity provider."""

import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx
import pytest
from pydantic import SecretStr

from app.console import single_sign_on
from app.console.session_cookie import COOKIE_NAME as SESSION_COOKIE
from app.console.session_cookie import open_session, start_session
from app.console.single_sign_on import COOKIE_NAME
from app.container import Container
from tests.support.clients import open_client
from tests.support.console_client import ConsoleClient, find_error
from tests.support.factories import ADMIN_KEY, OpenService
from tests.support.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    PUBLIC_URL,
    FakeIdentityProvider,
    make_key,
    running_identity_provider,
)

START, CALLBACK = "/console/sign-in/provider", "/console/sign-in/callback"


CLIENT = {"oidc_client_id": CLIENT_ID, "oidc_client_secret": SecretStr(CLIENT_SECRET)}


@pytest.fixture(scope="module")
def running() -> Iterator[FakeIdentityProvider]:
    with running_identity_provider() as opened:
        yield opened


@pytest.fixture
def provider(running: FakeIdentityProvider) -> FakeIdentityProvider:
    """The provider as it is at the start. The person who signs in is a new one."""
    running.reset()
    running.claims["sub"] = f"user-{uuid.uuid4().hex[:12]}"
    return running


@pytest.fixture(scope="module")
async def service(open_shared_service: OpenService, running: FakeIdentityProvider) -> AsyncIterator[Container]:
    """It reads the metadata of the provider once: a test that changes these opens a service of its own."""
    async with open_shared_service(**running.settings(**CLIENT, oidc_name="Example Login")) as opened:
        yield opened


@pytest.fixture
async def console(service: Container) -> AsyncIterator[ConsoleClient]:
    async with open_client(service) as http:
        yield ConsoleClient(http)


@pytest.fixture
async def operator(service: Container) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}") as http:
        yield http


async def start(console: ConsoleClient, provider: FakeIdentityProvider, back: str = "") -> dict[str, str]:
    """Return the query with which the browser comes back from the provider."""
    response = await console.http.get(START, params={"back": back})
    assert response.status_code == 303, response.text
    assert response.headers["location"].startswith(f"{provider.issuer}/authorize?")
    return provider.authorize(response.headers["location"])


async def sign_in(console: ConsoleClient, provider: FakeIdentityProvider, back: str = "") -> httpx.Response:
    return await console.http.get(CALLBACK, params=await start(console, provider, back))


async def test_a_person_signs_in_and_out(console: ConsoleClient, provider: FakeIdentityProvider) -> None:
    page = await console.get_page("/console/sign-in")
    assert "Sign in with Example Login" in page
    assert 'name="key"' in page
    response = await sign_in(console, provider)
    assert response.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/console">' in response.text
    assert f"Signed in as</span> <strong>{provider.claims['sub']}" in await console.get_page("/console")
    signed_out = await console.submit("/console/sign-out")
    page = await console.get_page(signed_out.headers["location"])
    assert f'href="{provider.issuer}/sign-out?client_id={CLIENT_ID}"' in page
    assert (await console.http.get("/console/servers")).status_code == 303


async def test_the_request_has_what_the_provider_needs_and_no_secret(
    console: ConsoleClient, provider: FakeIdentityProvider
) -> None:
    location = (await console.http.get(START)).headers["location"]
    query = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
    assert query["redirect_uri"] == f"{PUBLIC_URL}{CALLBACK}"
    assert query["scope"] == "openid profile email"
    assert query["client_id"] == CLIENT_ID
    await console.http.get(CALLBACK, params=provider.authorize(location))
    [(form, headers)] = provider.token_requests
    assert form["redirect_uri"] == query["redirect_uri"]
    assert form["code_verifier"] not in location
    user, _, secret = base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode().partition(":")
    assert (user, unquote(secret)) == (CLIENT_ID, CLIENT_SECRET)
    assert CLIENT_SECRET not in json.dumps(form)


async def test_a_provider_without_basic_authentication_gets_the_secret_in_the_form(
    open_service: OpenService, provider: FakeIdentityProvider
) -> None:
    provider.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    async with open_service(**provider.settings(**CLIENT)) as service, open_client(service) as http:
        await sign_in(ConsoleClient(http), provider)
    [(form, headers)] = provider.token_requests
    assert form["client_secret"] == CLIENT_SECRET
    assert "authorization" not in headers


async def test_the_session_opens_the_page_that_was_asked_for(
    console: ConsoleClient, provider: FakeIdentityProvider
) -> None:
    asked = await console.http.get("/console/tools")
    page = await console.get_page(asked.headers["location"])
    assert 'href="/console/sign-in/provider?back=/console/tools"' in page
    assert "url=/console/tools" in (await sign_in(console, provider, "/console/tools")).text
    for back in ("https://evil.example.com", "//evil.example.com", "/console/\\evil"):
        assert "evil" not in (await sign_in(console, provider, back)).text


async def test_cookies_are_hidden_from_scripts_and_the_pending_one_survives_the_way_back(
    console: ConsoleClient, provider: FakeIdentityProvider
) -> None:
    response = await console.http.get(START)
    pending = SimpleCookie(response.headers["set-cookie"])[COOKIE_NAME]
    assert (pending["httponly"], pending["samesite"], pending["path"]) == (True, "lax", "/console/sign-in")
    answer = provider.authorize(response.headers["location"])
    finished = await console.http.get(CALLBACK, params=answer)
    cookies = SimpleCookie()
    for header in finished.headers.get_list("set-cookie"):
        cookies.load(header)
    assert (cookies[SESSION_COOKIE]["httponly"], cookies[SESSION_COOKIE]["samesite"]) == (True, "strict")
    assert cookies[COOKIE_NAME]["max-age"] == "0"


async def test_groups_make_an_administrator_who_can_act_for_users(
    console: ConsoleClient, provider: FakeIdentityProvider, operator: httpx.AsyncClient
) -> None:
    await operator.post("/users", json={"id": "bob"})
    provider.claims = {"sub": "carol", "groups": ["operators", "staff"]}
    await sign_in(console, provider)
    page = await console.get_page("/console/users")
    assert "<strong>carol</strong>" in page
    assert (await console.submit("/console/act-for", user_id="bob")).status_code == 303
    assert "Acting for <strong>bob" in await console.get_page("/console/servers")
    added = await console.submit("/console/servers", name="files", transport="push", do="add")
    assert added.status_code == 303
    events = (await operator.get("/audit", params={"action": "server.create"})).json()["items"]
    assert [(event["user_id"], event["actor"]) for event in events] == [("bob", "admin:oidc:carol")]
    assert (await operator.get("/users/carol")).json()["groups"] == ["operators", "staff"]


async def test_others_are_users(console: ConsoleClient, provider: FakeIdentityProvider) -> None:
    provider.claims = {"sub": "carol", "groups": ["staff"]}
    await sign_in(console, provider)
    assert (await console.http.get("/console/users")).status_code == 403
    assert (await console.http.get("/console/servers")).status_code == 200


async def test_signing_in_is_audited_and_creates_the_user(
    console: ConsoleClient, provider: FakeIdentityProvider, operator: httpx.AsyncClient
) -> None:
    person = provider.claims["sub"]
    await sign_in(console, provider)
    await console.get_page("/console")
    await console.submit("/console/sign-out")
    events = (await operator.get("/audit", headers={"X-User-Id": person})).json()["items"]
    assert [(event["action"], event["actor"]) for event in reversed(events)] == [
        (action, f"user:oidc:{person}") for action in ("user.create", "console.sign_in", "console.sign_out")
    ]


async def test_a_session_ends_with_its_user_and_does_not_pass_to_a_namesake(
    console: ConsoleClient, provider: FakeIdentityProvider, operator: httpx.AsyncClient
) -> None:
    await sign_in(console, provider)
    assert (await console.http.get("/console/servers")).status_code == 200
    cookie = console.http.cookies[SESSION_COOKIE]
    assert (await operator.delete(f"/users/{provider.claims['sub']}")).status_code == 204
    assert (await console.http.get("/console/servers")).status_code == 303
    await operator.post("/users", json={"id": provider.claims["sub"]})
    console.http.cookies.clear()
    console.http.cookies.set(SESSION_COOKIE, cookie, path="/console")
    assert (await console.http.get("/console/servers")).status_code == 303
    await sign_in(console, provider)
    assert (await console.http.get("/console/servers")).status_code == 200


async def test_a_session_of_another_provider_does_not_count(
    console: ConsoleClient, provider: FakeIdentityProvider, service: Container
) -> None:
    await sign_in(console, provider)
    session = open_session(service.sealer, console.http.cookies[SESSION_COOKIE])
    assert session is not None
    for issuer, status in ((provider.issuer, 200), ("https://other.example.com", 303)):
        identity: Any = session.subject
        other = start_session(type(identity)(**{**identity.__dict__, "issuer": issuer}), None)
        console.http.cookies.clear()
        console.http.cookies.set(SESSION_COOKIE, other.seal(service.sealer), path="/console")
        assert (await console.http.get("/console/servers")).status_code == status


async def test_claims_that_only_userinfo_tells_are_asked_for_there(
    console: ConsoleClient, provider: FakeIdentityProvider
) -> None:
    provider.claims, provider.only_userinfo = {"sub": "carol", "groups": ["operators"]}, True
    await sign_in(console, provider)
    assert provider.requests[-1] == "/realm/userinfo"
    assert (await console.http.get("/console/users")).status_code == 200


ANSWERS: dict[str, tuple[dict[str, str | None], str]] = {
    "wrong state": ({"state": "invented"}, "not started here"),
    "no state": ({"state": None}, "not started here"),
    "another issuer": ({"iss": "https://other.example.com"}, "another identity provider"),
    "no issuer, though the provider sends it": ({"iss": None}, "another identity provider"),
    "refused": ({"error": "access_denied", "code": None}, "refused the sign-in"),
    "no code": ({"code": None}, "refused the sign-in"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_an_answer_that_is_not_as_it_should_be_is_refused(
    console: ConsoleClient, provider: FakeIdentityProvider, case: str
) -> None:
    changes, words = ANSWERS[case]
    answer: dict[str, str | None] = {**await start(console, provider), **changes}
    response = await console.http.get(CALLBACK, params={name: value for name, value in answer.items() if value})
    assert response.status_code == 401
    assert words in find_error(response.text)
    assert not provider.token_requests
    assert SESSION_COOKIE not in console.http.cookies
    await sign_in(console, provider)
    assert SESSION_COOKIE in console.http.cookies


ID_TOKENS: dict[str, tuple[dict[str, Any], str]] = {
    "of another sign-in": ({"nonce": "invented"}, "another sign-in"),
    "without a nonce": ({"nonce": None}, "another sign-in"),
    "for another client": ({"aud": "another"}, "another audience"),
    "for several clients, of which ours did not ask": ({"aud": [CLIENT_ID, "another"]}, "another client"),
    "for ours, but asked for by another": ({"azp": "another"}, "another client"),
    "of another issuer": ({"iss": "https://other.example.com"}, "another issuer"),
    "expired": ({"exp": 1_000_000_000}, "has expired"),
    "of another access token": ({"at_hash": "invented"}, "another access token"),
    "of a user whose id is not allowed": ({"sub": "not allowed"}, "does not name a user"),
}


@pytest.mark.parametrize("case", ID_TOKENS)
async def test_an_id_token_that_is_not_as_it_should_be_is_refused(
    console: ConsoleClient, provider: FakeIdentityProvider, case: str
) -> None:
    provider.id_token_claims, words = ID_TOKENS[case]
    response = await sign_in(console, provider)
    assert response.status_code == 401
    assert words in find_error(response.text)
    assert SESSION_COOKIE not in console.http.cookies
    provider.id_token_claims = {}
    await sign_in(console, provider)
    assert SESSION_COOKIE in console.http.cookies


async def test_an_id_token_of_a_strangers_key_is_refused(
    console: ConsoleClient, provider: FakeIdentityProvider
) -> None:
    answer = await start(console, provider)
    provider.keys = [make_key("first", "PS256")]
    response = await console.http.get(CALLBACK, params=answer)
    assert "wrong signature" in find_error(response.text)


@pytest.mark.parametrize("answer", [b"{}", b'{"id_token": 7}', b"[]", b"<html>"])
async def test_rubbish_of_the_token_endpoint_is_an_error_on_the_sign_in_page(
    console: ConsoleClient, provider: FakeIdentityProvider, answer: bytes
) -> None:
    provider.token_answer = answer
    response = await sign_in(console, provider)
    assert response.status_code in (401, 503)
    assert find_error(response.text)
    provider.token_answer = None
    assert (await sign_in(console, provider)).status_code == 200


@pytest.mark.parametrize(("error", "logged"), [("invalid_client", "invalid_client"), ("code-0 is wrong", None)])
async def test_the_log_tells_the_operator_why_the_provider_refused(
    console: ConsoleClient,
    provider: FakeIdentityProvider,
    caplog: pytest.LogCaptureFixture,
    error: str,
    logged: str | None,
) -> None:
    provider.token_answer = json.dumps({"error": error}).encode()
    assert (await sign_in(console, provider)).status_code == 401
    [record] = [record for record in caplog.records if record.message == "sign-in refused by the identity provider"]
    assert (record.__dict__["step"], record.__dict__["error"]) == ("token", logged)


async def test_an_answer_counts_only_in_the_browser_that_asked_and_only_once(
    console: ConsoleClient, provider: FakeIdentityProvider, service: Container
) -> None:
    answer = await start(console, provider)
    async with open_client(service) as other_browser:
        refused = await other_browser.get(CALLBACK, params=answer)
        assert "not started in this browser" in find_error(refused.text)
        await other_browser.get(START)
        assert "not started here" in find_error((await other_browser.get(CALLBACK, params=answer)).text)
    assert (await console.http.get(CALLBACK, params=answer)).status_code == 200
    assert (await console.http.get(CALLBACK, params=answer)).status_code == 401
    assert len(provider.token_requests) == 1


async def test_a_sign_in_that_takes_too_long_is_refused(
    console: ConsoleClient, provider: FakeIdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_sign_on, "_LIFETIME_S", 0)
    answer = await start(console, provider)
    cookie = f"{COOKIE_NAME}={console.http.cookies.get(COOKIE_NAME) or 'gone'}"
    response = await console.http.get(CALLBACK, params=answer, headers={"Cookie": cookie})
    assert "took too long" in find_error(response.text)


async def test_a_provider_that_is_down_is_an_error_on_the_sign_in_page_and_keys_still_work(
    open_service: OpenService, provider: FakeIdentityProvider
) -> None:
    provider.status = 500
    settings = provider.settings(oidc_client_id=CLIENT_ID)
    async with open_service(**settings) as service, open_client(service) as http:
        response = await http.get(START)
        assert response.status_code == 503
        assert "identity provider cannot be used now" in find_error(response.text)
        assert (await ConsoleClient(http).sign_in(ADMIN_KEY)).status_code == 303


async def test_without_a_client_there_is_no_button(open_service: OpenService, provider: FakeIdentityProvider) -> None:
    async with open_service(**provider.settings()) as service, open_client(service) as http:
        assert "Sign in with an API key." in (await http.get("/console/sign-in")).text
        for path in (START, CALLBACK):
            assert (await http.get(path)).status_code == 404


async def test_over_https_the_pending_cookie_is_secure(
    open_service: OpenService, provider: FakeIdentityProvider
) -> None:
    settings = provider.settings(oidc_client_id=CLIENT_ID, public_url="https://tools.example.com/")
    async with open_service(**settings) as service, open_client(service) as http:
        response = await http.get(START, headers={"Host": "tools.example.com"})
        assert SimpleCookie(response.headers["set-cookie"])[COOKIE_NAME]["secure"] is True
        redirect_uri = urlencode({"redirect_uri": f"https://tools.example.com{CALLBACK}"})
        assert redirect_uri in response.headers["location"]


async def test_nothing_of_a_sign_in_is_logged(
    console: ConsoleClient, provider: FakeIdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "toolscout")
    answer = await start(console, provider)
    pending = console.http.cookies[COOKIE_NAME]
    await console.http.get(CALLBACK, params=answer)
    [(form, _)] = provider.token_requests
    logged = "\n".join(
        json.dumps(record.__dict__, default=str) for record in caplog.records if record.name.startswith("toolscout")
    )
    assert logged
    secrets = [*answer.values(), pending, form["code_verifier"], CLIENT_SECRET, console.http.cookies[SESSION_COOKIE]]
    assert [secret for secret in secrets if secret != provider.issuer and secret in logged] == []
