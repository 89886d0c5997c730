"""A sign-in to a user's server, from the challenge to the first call."""

import asyncio
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.responses import Response

from app.connections.models import Callback
from app.connections.repository import expired_rows, require_scope, wants_sign_in
from app.connections.tickets import Ticket, make_link
from app.container import Container
from app.db.retention import delete_in_batches
from app.errors import AuthorizationRequired, RateLimited
from app.mcp_types import Endpoint
from tests.support.authorization_server import AuthorizationServer
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, new_user, open_client
from tests.support.factories import ADMIN_KEY, OpenService
from tests.support.mcp_server import hang
from tests.support.protected_server import ProtectedServer
from tests.support.shared_servers import share
from tests.support.sign_in import SignIn
from tests.support.worker_steps import until


async def test_a_server_with_a_challenge_needs_authorization(sign_in: SignIn) -> None:
    server = await sign_in.get_server(await sign_in.add_server())
    assert (server["status"], server["last_cause"]) == ("needs_authorization", "authorization_required")
    assert "wants you to sign in" in server["last_error"]


async def test_a_server_that_rejects_stored_headers_is_in_error(sign_in: SignIn) -> None:
    server = await sign_in.get_server(await sign_in.add_server(headers={"Authorization": "Bearer outdated"}))
    assert (server["status"], server["last_cause"]) == ("error", "unauthorized")


async def test_a_server_without_a_challenge_needs_authorization_if_its_metadata_can_be_read(sign_in: SignIn) -> None:
    sign_in.protected.challenge = "Basic"
    server = await sign_in.get_server(await sign_in.add_server())
    assert server["status"] == "needs_authorization"


@pytest.mark.parametrize("is_shared", [True, False])
async def test_the_page_after_a_sign_in_leads_to_the_server_in_the_console(sign_in: SignIn, is_shared: bool) -> None:
    async with open_client(sign_in.service, Authorization=f"Bearer {ADMIN_KEY}") as admin:
        if is_shared:
            fields = {"transport": "streamable_http", "url": sign_in.protected.url}
            server_id = (await share(admin, "team-notes", **fields))["id"]
            link = (await admin.post(f"/servers/{server_id}/connect")).json()["authorization_url"]
        else:
            server_id = await sign_in.add_server()
            link = await sign_in.start(server_id)
        page = await sign_in.come_back(sign_in.authorization.approve(link))
        if is_shared:
            assert (await admin.delete(f"/shared-servers/{server_id}")).status_code == 204
    pages = "/console/shared-servers" if is_shared else "/console/servers"
    assert f'href="{pages}/{server_id}"' in page.text


async def test_a_user_signs_in_and_calls_a_tool(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    assert (await sign_in.get_server(server_id))["status"] == "connected"
    answer = await sign_in.user.execute("list_notes")
    assert answer.json()["result"]["content"][0]["text"] == "the notes of ada"
    assert sign_in.protected.calls == [("ada", "list_notes")]


async def test_the_link_asks_for_the_servers_scope_and_resource_and_hides_who_asks(sign_in: SignIn) -> None:
    url = await sign_in.start(await sign_in.add_server())
    asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert url.startswith(f"{sign_in.authorization.url}/auth?")
    assert (asked["resource"], asked["scope"]) == (sign_in.protected.url, "tools:read")
    assert asked["redirect_uri"] == "http://127.0.0.1:8000/oauth/callback"
    assert sign_in.user.id not in url
    assert sign_in.authorization.find_requests("/reg")[0]["application_type"] == "native"


async def test_a_link_is_returned_again_while_it_can_be_used(sign_in: SignIn) -> None:
    server_id = await sign_in.add_server()
    first = await sign_in.start(server_id)
    assert await sign_in.start(server_id) == first
    assert await sign_in.start(server_id, redirect_url="https://chat.example.com/done") != first
    assert len(sign_in.authorization.find_requests("/reg")) == 2


async def test_a_server_that_asks_for_a_sign_in_only_when_a_tool_is_called_stays_marked(
    sign_in: SignIn,
) -> None:
    server_id = await sign_in.connect()
    await sign_in.user.http.delete(f"/servers/{server_id}/connection")
    connector = sign_in.service.connector
    endpoint = await connector.get_endpoint(sign_in.user.id, server_id, listing=True)

    async def refuse(_: Endpoint) -> None:
        raise AuthorizationRequired(required_scope="tools:write", http_status=401)

    with pytest.raises(AuthorizationRequired):
        await connector.use(endpoint, refuse)
    async with sign_in.service.database.transaction(sign_in.user.id) as session:
        assert await wants_sign_in(session, sign_in.user.id, server_id)
    url = await sign_in.start(server_id)
    assert parse_qs(urlsplit(url).query)["scope"] == ["tools:write"]


async def test_the_browser_is_sent_to_the_redirect_url_with_the_outcome(sign_in: SignIn) -> None:
    server_id = await sign_in.add_server()
    url = await sign_in.start(server_id, redirect_url="https://chat.example.com/done?tab=1#end")
    answer = await sign_in.come_back(sign_in.authorization.approve(url))
    expected = f"https://chat.example.com/done?tab=1&server_id={server_id}&status=connected#end"
    assert (answer.status_code, answer.headers["location"]) == (303, expected)
    assert (answer.headers["referrer-policy"], answer.headers["cache-control"]) == ("no-referrer", "no-store")


@pytest.mark.parametrize(
    "redirect_url",
    [
        "https://evil.example/",
        "https://chat.example.com.evil.example/",
        "https://chat.example.com@evil.example/",
        "http://chat.example.com/",
        "javascript:alert(1)",
        "//chat.example.com/",
        "/console",
        "https://chat.example.com:8443/",
    ],
)
async def test_other_redirect_urls_are_refused(sign_in: SignIn, redirect_url: str) -> None:
    server_id = await sign_in.add_server()
    answer = await sign_in.user.http.post(f"/servers/{server_id}/connect", json={"redirect_url": redirect_url})
    assert "TOOLSCOUT_REDIRECT_ORIGINS" in assert_problem(answer, 422)["detail"]


async def test_a_link_needs_no_body(sign_in: SignIn) -> None:
    answer = await sign_in.user.http.post(f"/servers/{await sign_in.add_server()}/connect")
    assert answer.status_code == 200, answer.text


async def test_a_denied_consent_connects_nothing_and_says_so(sign_in: SignIn) -> None:
    server_id = await sign_in.add_server()
    page = await sign_in.come_back(sign_in.authorization.deny(await sign_in.start(server_id)))
    assert page.status_code == 400
    assert "You have declined" in page.text
    url = await sign_in.start(server_id, redirect_url="https://chat.example.com/done")
    answer = await sign_in.come_back(sign_in.authorization.deny(url))
    assert answer.headers["location"].endswith("&status=failed&error=access_denied")
    assert (await sign_in.get_server(server_id))["status"] == "needs_authorization"
    events = (await sign_in.user.http.get("/audit")).json()["items"]
    assert [each["outcome"] for each in events if each["action"] == "server.connect"] == ["access_denied"] * 2


async def test_a_callback_is_accepted_once(sign_in: SignIn) -> None:
    callback = sign_in.authorization.approve(await sign_in.start(await sign_in.add_server()))
    assert (await sign_in.come_back(callback)).status_code == 200
    replayed = await sign_in.come_back(callback)
    assert (replayed.status_code, "used already" in replayed.text) == (400, True)
    assert len(sign_in.authorization.find_requests("/token", grant_type="authorization_code")) == 1


@pytest.mark.parametrize("state", ["", "x", "AAAA" * 40, "%00", "é", "a=b"])
async def test_a_wrong_state_is_refused_before_anything_is_asked(sign_in: SignIn, state: str) -> None:
    url = await sign_in.start(await sign_in.add_server())
    answer = await sign_in.come_back(sign_in.authorization.approve(url, state=state))
    assert answer.status_code in (400, 422)
    assert sign_in.authorization.find_requests("/token") == []
    assert (await sign_in.come_back(sign_in.authorization.approve(url))).status_code == 200


@pytest.mark.parametrize("iss", ["https://evil.example", None])
async def test_an_answer_of_another_issuer_is_refused(sign_in: SignIn, iss: str | None) -> None:
    url = await sign_in.start(await sign_in.add_server())
    answer = await sign_in.come_back(sign_in.authorization.approve(url, iss=iss))
    assert (answer.status_code, "does not come from" in answer.text) == (400, True)
    assert sign_in.authorization.find_requests("/token") == []


async def test_an_expired_sign_in_is_refused(sign_in: SignIn) -> None:
    callback = sign_in.authorization.approve(await sign_in.start(await sign_in.add_server()))
    async with sign_in.service.database.transaction(sign_in.user.id) as session:
        await session.rows("UPDATE authorization_requests SET expires_at = now() - interval '1 second'")
    assert (await sign_in.come_back(callback)).status_code == 400
    assert sign_in.authorization.find_requests("/token") == []


async def test_a_sign_in_for_a_server_that_has_moved_is_refused(
    sign_in: SignIn, authorization: AuthorizationServer
) -> None:
    server_id = await sign_in.add_server()
    callback = authorization.approve(await sign_in.start(server_id))
    await sign_in.user.http.patch(f"/servers/{server_id}", json={"url": f"{authorization.url}/mcp"})
    assert (await sign_in.come_back(callback)).status_code == 400
    assert authorization.find_requests("/token") == []


async def test_a_sign_in_that_began_in_a_browser_ends_in_the_same_one(sign_in: SignIn) -> None:
    server_id, connector = await sign_in.add_server(), sign_in.service.connector
    for cookie, error in ((None, "wrong_browser"), ("another", "wrong_browser"), ("the browser's", None)):
        link = await connector.start(sign_in.user.id, server_id, "test", browser="the browser's")
        query = parse_qs(urlsplit(sign_in.authorization.approve(link.authorization_url)).query)
        callback = Callback(query["state"][0], query["code"][0], query["iss"][0])
        assert (await connector.finish(callback, cookie)).error == error


async def test_a_page_shows_no_parameter_of_the_request(sign_in: SignIn) -> None:
    url = await sign_in.start(await sign_in.add_server())
    hostile = "<script>alert(1)</script>"
    denied = sign_in.authorization.deny(url).replace("access_denied", hostile)
    page = await sign_in.come_back(denied)
    assert page.status_code == 400
    assert "alert(1)" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_a_server_without_oauth_has_no_sign_in(
    sign_in: SignIn, authorization: AuthorizationServer, owner: TestUser
) -> None:
    """Its authorization server is not one: nothing is published there."""
    server_id = await owner.add_server("plain", transport="streamable_http", url=f"{authorization.url}/mcp")
    authorization.faults["/.well-known/oauth-authorization-server"] = Response(status_code=404)
    answer = await owner.http.post(f"/servers/{server_id}/connect")
    assert "offers no sign-in" in assert_problem(answer, 422)["detail"]
    pushed = await owner.add_server("pushed")
    assert_problem(await owner.http.post(f"/servers/{pushed}/connect"), 422)


async def test_a_service_without_a_known_address_says_what_to_set(
    open_service: OpenService, protected: ProtectedServer
) -> None:
    async with open_service(outbound_allow=protected.address, host="0.0.0.0") as service, new_user(service) as user:  # noqa: S104
        server_id = await user.add_server("notes", transport="streamable_http", url=protected.url)
        answer = await user.http.post(f"/servers/{server_id}/connect")
        assert "TOOLSCOUT_PUBLIC_URL" in assert_problem(answer, 422)["detail"]


async def test_old_sign_ins_of_a_user_are_dropped(sign_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.connections.repository.MAX_PENDING", 2)
    server_id = await sign_in.add_server()
    urls = [await sign_in.start(server_id, redirect_url=f"https://chat.example.com/{number}") for number in range(3)]
    answers = [await sign_in.come_back(sign_in.authorization.approve(url)) for url in urls]
    assert [answer.status_code for answer in answers] == [400, 303, 303]


async def test_expired_sign_ins_are_deleted(sign_in: SignIn) -> None:
    server_id = await sign_in.add_server()
    await sign_in.start(server_id)
    await delete_in_batches(sign_in.service.database, expired_rows())  # those of other tests
    assert await delete_in_batches(sign_in.service.database, expired_rows()) == 0
    async with sign_in.service.database.transaction(sign_in.user.id) as session:
        await session.rows("UPDATE authorization_requests SET expires_at = now() - interval '1 second'")
    assert await delete_in_batches(sign_in.service.database, expired_rows()) == 1


async def test_another_users_server_cannot_be_connected(sign_in: SignIn, service: Container) -> None:
    server_id = await sign_in.connect()
    async with new_user(service) as stranger:
        assert_problem(await stranger.http.post(f"/servers/{server_id}/connect"), 404)
        assert_problem(await stranger.http.delete(f"/servers/{server_id}/connection"), 404)
    assert (await sign_in.user.http.delete(f"/servers/{server_id}/connection")).status_code == 204


async def test_a_challenge_need_not_be_ascii(sign_in: SignIn) -> None:
    metadata = f"http://{sign_in.protected.address}/.well-known/oauth-protected-resource/mcp"
    sign_in.protected.challenge = f'Bearer realm="Büro", scope="tools:read é", resource_metadata="{metadata}"'
    server_id = await sign_in.add_server()
    asked = parse_qs(urlsplit(await sign_in.start(server_id)).query)
    assert asked["scope"] == ["tools:read é"]
    async with sign_in.service.database.transaction(sign_in.user.id) as session:
        await require_scope(session, sign_in.user.id, server_id, "notes:é")
    assert "notes:é" in parse_qs(urlsplit(await sign_in.start(server_id)).query)["scope"][0]


async def test_a_scope_that_is_none_is_not_stored(sign_in: SignIn) -> None:
    sign_in.authorization.on_token = lambda answer: {**answer, "scope": "tools:read\0"}
    await sign_in.connect()
    answer = await sign_in.user.execute("list_notes")
    assert answer.json()["result"]["content"][0]["text"] == "the notes of ada"


async def test_one_users_sign_ins_do_not_take_the_slots_of_all_who_have_no_key(
    sign_in: SignIn, service: Container
) -> None:
    server_id, connector, authorization = await sign_in.add_server(), service.connector, sign_in.authorization

    async def approve() -> Callback:
        link = await connector.start(sign_in.user.id, server_id, "test", browser="b")
        query = parse_qs(urlsplit(authorization.approve(link.authorization_url)).query)
        return Callback(query["state"][0], query["code"][0], query["iss"][0])

    async def are_waiting() -> bool:
        return len(authorization.find_requests("/token")) == 2

    callbacks = [await approve() for _ in range(3)]
    authorization.faults["/token"] = hang
    waiting = [asyncio.create_task(connector.finish(callback, "b")) for callback in callbacks[:2]]
    await until(are_waiting)
    with pytest.raises(RateLimited):
        await connector.finish(callbacks[2], "b")
    ticket = Ticket(sign_in.user.id, server_id, "test")
    link = make_link(service.sealer, "http://127.0.0.1:8000", ticket).authorization_url
    assert (await sign_in.come_back(link)).status_code == 200  # it only names the server
    assert (await sign_in.come_back(f"{link}&continue=1")).status_code == 429
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    authorization.faults.clear()
    assert (await sign_in.come_back(f"{link}&continue=1")).status_code == 303
    assert (await connector.finish(callbacks[2], "b")).error is None
