"""Who comes in, how long, and what another site's page can do with it."""

import base64
import time
from http.cookies import SimpleCookie

import httpx
import pytest

from app.auth.keys import hash_key
from app.console.session_cookie import COOKIE, LIFE_S, open_session, start_session
from app.container import Container
from app.crypto import SecretOwner
from tests.support.checks import everything
from tests.support.clients import TestUser, open_client
from tests.support.console_client import Visitor, error_in, visitor_of
from tests.support.factories import ADMIN_KEY, SECRET_KEY

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def cookie_in(answer: httpx.Response) -> SimpleCookie:
    return SimpleCookie(answer.headers["set-cookie"])


async def test_a_user_signs_in_with_a_key_and_out_again(browser: httpx.AsyncClient, user: TestUser) -> None:
    visitor = Visitor(browser)
    assert (await browser.get("/console/servers")).headers["location"] == "/console/sign-in?back=%2Fconsole%2Fservers"
    answer = await visitor.sign_in(user.key)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert user.id in await visitor.see("/console/servers")
    left = await visitor.send("/console/sign-out")
    assert left.headers["location"] == "/console/sign-in?said=signed-out"
    assert "You are signed out." in await visitor.see(left.headers["location"])
    assert (await browser.get("/console/servers")).status_code == 303


async def test_the_cookie_is_for_our_own_pages_alone_and_not_for_scripts(
    browser: httpx.AsyncClient, user: TestUser
) -> None:
    answer = await browser.post("/console/sign-in", data={"key": user.key})
    cookie = cookie_in(answer)[COOKIE]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/console")
    assert cookie["max-age"] == str(LIFE_S)
    assert not cookie["secure"]
    assert user.key not in answer.headers["set-cookie"]
    assert hash_key(user.key).hex().encode() not in base64.urlsafe_b64decode(cookie.value)


async def test_over_https_the_cookie_stays_on_https(container: Container, user: TestUser) -> None:
    async with open_client(container) as http:
        answer = await http.post("https://toolscout/console/sign-in", data={"key": user.key})
    assert cookie_in(answer)[COOKIE]["secure"] is True


@pytest.mark.parametrize("key", ["", "nonsense", "ts_user_" + "x" * 43, "ä" * 20])
async def test_wrong_keys_all_get_the_same_answer(browser: httpx.AsyncClient, key: str) -> None:
    answer = await browser.post("/console/sign-in", data={"key": key, "user_id": "somebody"})
    assert answer.status_code == 401
    assert error_in(answer.text) == "This key is not known here, or it has ended."
    assert "set-cookie" not in answer.headers
    assert 'value="somebody"' in answer.text
    assert "nonsense" not in answer.text


async def test_after_signing_in_one_is_where_one_wanted_to_be(browser: httpx.AsyncClient, user: TestUser) -> None:
    answer = await browser.post("/console/sign-in", data={"key": user.key, "back": "/console/tools"})
    assert answer.headers["location"] == "/console/tools"


@pytest.mark.parametrize(
    "back", ["https://evil.example/console/", "//evil.example", "/console/..//evil.example", "/docs", "/console/\\e"]
)
async def test_signing_in_leads_nowhere_else(browser: httpx.AsyncClient, user: TestUser, back: str) -> None:
    answer = await browser.post("/console/sign-in", data={"key": user.key, "back": back})
    assert answer.headers["location"] == "/console"


async def test_a_revoked_key_ends_the_session(
    container: Container, user: TestUser, visitor: Visitor, admin: httpx.AsyncClient
) -> None:
    await visitor.see("/console/tools")
    keys = await everything(admin, "/keys")
    [key_id] = [key["id"] for key in keys if key["user_id"] == user.id]
    assert (await admin.delete(f"/keys/{key_id}")).status_code == 204
    assert (await visitor.http.get("/console/tools")).headers["location"].startswith("/console/sign-in")
    assert (await visitor.ask("/console/try/answer", query="weather")).status_code == 401


async def test_a_session_ends_after_twelve_hours(container: Container, user: TestUser, visitor: Visitor) -> None:
    for ends_at, status in ((int(time.time()) + 60, 200), (int(time.time()) - 1, 303)):
        cookie = start_session(hash_key(user.key), None, ends_at).sealed(container.sealer)
        visitor.http.cookies.clear()
        visitor.http.cookies.set(COOKIE, cookie, path="/console")
        assert (await visitor.http.get("/console/tools")).status_code == status


@pytest.mark.parametrize("cookie", ["", "x", "%%%", base64.urlsafe_b64encode(b"0" * 80).decode(), SECRET_KEY])
def test_a_cookie_that_is_not_ours_opens_nothing(container: Container, cookie: str) -> None:
    assert open_session(container.sealer, cookie) is None


def test_our_own_cookie_opens(container: Container) -> None:
    made = start_session(b"digest", "alice")
    assert open_session(container.sealer, made.sealed(container.sealer)) == made


def test_what_was_sealed_for_something_else_is_no_session(container: Container) -> None:
    sealed = container.sealer.seal(b'["00", null, "token", 99999999999]', SecretOwner("alice", "files", "headers"))
    assert open_session(container.sealer, base64.urlsafe_b64encode(sealed).decode()) is None


async def test_a_form_without_the_sessions_token_is_refused(visitor: Visitor, other_user: TestUser) -> None:
    body = {"name": "files", "transport": "push", "do": "add"}
    own_token = visitor.token
    for token in ("", "x" * 32, start_session(b"", None).token):
        answer = await visitor.http.post("/console/servers", data={**body, "csrf": token})
        assert answer.status_code == 403
        assert "another session" in error_in(answer.text)
    assert "No server yet" in await visitor.see("/console/servers")
    assert (await visitor.http.post("/console/servers", data={**body, "csrf": own_token})).status_code == 303


async def test_a_form_from_another_sites_page_is_refused_though_it_had_the_token(visitor: Visitor) -> None:
    body = {"csrf": visitor.token, "name": "files", "transport": "push", "do": "add"}
    foreign = await visitor.http.post("/console/servers", data=body, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    own = await visitor.http.post("/console/servers", data=body, headers={"Origin": "http://toolscout"})
    assert own.status_code == 303


async def test_a_name_that_is_not_ours_is_sent_away(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/console/sign-in", headers={"Host": "evil.example"})).status_code == 421
    assert (await browser.get("/console/sign-in")).status_code == 200


@pytest.mark.parametrize("path", ["/console/sign-in", "/console/servers", "/console/nowhere", "/console"])
async def test_every_page_says_what_a_browser_may_do_with_it(visitor: Visitor, path: str) -> None:
    headers = (await visitor.http.get(path)).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


async def test_no_page_has_a_script_or_a_style_of_its_own(visitor: Visitor, user: TestUser) -> None:
    await user.add_server()
    for path in ("/console/try", "/console/servers", "/console/tools", "/console/rules", "/console/projects/new"):
        page = await visitor.see(path)
        assert "<script>" not in page
        assert "<style" not in page
        assert " style=" not in page
        assert " onclick=" not in page


async def test_signing_in_and_out_is_audited(visitor: Visitor, user: TestUser) -> None:
    await visitor.send("/console/sign-out")
    events = (await user.http.get("/audit")).json()["items"]
    assert [event["action"] for event in events][:2] == ["console.sign_out", "console.sign_in"]
    assert {event["actor"].split(":")[0] for event in events[:2]} == {"user"}


async def test_a_service_key_must_name_its_user(container: Container, admin: httpx.AsyncClient, user: TestUser) -> None:
    key = (await admin.post("/keys", json={"kind": "service"})).json()["key"]
    async with open_client(container) as http:
        refused = await Visitor(http).sign_in(key)
        assert refused.status_code == 422
        assert "name the one" in error_in(refused.text)
    async with visitor_of(container, key, user.id) as service:
        page = await service.see("/console/servers")
    assert f"Acting for</span> <strong>{user.id}" in page


async def test_a_users_key_cannot_act_for_another(
    browser: httpx.AsyncClient, user: TestUser, other_user: TestUser
) -> None:
    refused = await Visitor(browser).sign_in(user.key, other_user.id)
    assert refused.status_code == 403
    assert "belongs to one user" in error_in(refused.text)


async def test_an_administrator_chooses_whom_to_act_for(administrator: Visitor, user: TestUser) -> None:
    await user.add_server("papers")
    assert "Choose a user to act for" in await administrator.see("/console/servers")
    assert (await administrator.send("/console/act-for", user_id="nobody-at-all")).status_code == 404
    assert (await administrator.send("/console/act-for", user_id=user.id)).status_code == 303
    page = await administrator.see("/console/servers")
    assert "papers" in page
    await administrator.send("/console/act-for", user_id="")
    assert "Choose a user to act for" in await administrator.see("/console/servers")


async def test_a_browser_at_the_root_is_led_to_the_console_and_a_program_is_not(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert (await browser.get("/")).status_code == 404


async def test_the_bootstrap_key_signs_in(browser: httpx.AsyncClient) -> None:
    assert (await Visitor(browser).sign_in(ADMIN_KEY)).status_code == 303
