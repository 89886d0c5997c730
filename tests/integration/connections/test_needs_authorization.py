"""A server that wants its user to sign in: all interfaces say so, its tools are found and marked, and nothing runs."""

import json
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from app.connections import tickets
from app.connections.tickets import Ticket, make_link
from app.container import Container
from tests.support.calls import assert_ok, connect_with_tools, list_executions
from tests.support.checks import assert_problem
from tests.support.clients import TestUser, open_client
from tests.support.console_client import find_error, open_console
from tests.support.factories import ADMIN_KEY, OpenService, tool
from tests.support.mcp_client import call_meta_tool, get_error, get_text
from tests.support.mcp_server import FakeMcpServer, Fault, status

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="files"'}
WORDS = "this server wants you to sign in"


def lock(mcp: FakeMcpServer) -> None:
    """Let the server want a sign-in from now on."""
    mcp.fault = Fault(status(401, headers=CHALLENGE))


async def add_locked_server(user: TestUser, mcp: FakeMcpServer, name: str = "files") -> str:
    """Register a server whose tools are known from before."""
    server_id = await connect_with_tools(user, mcp, "read_file", server=name)
    lock(mcp)
    run = await user.reindex(server_id)
    assert run["error"]["cause"] == "authorization_required", run
    return server_id


async def test_rest_and_mcp_show_the_status_and_what_to_do(user: TestUser, mcp: FakeMcpServer) -> None:
    server_id = await add_locked_server(user, mcp)
    server = (await user.http.get(f"/servers/{server_id}")).json()
    assert (server["status"], server["last_cause"]) == ("needs_authorization", "authorization_required")
    assert WORDS in server["last_error"]
    assert (server["tool_count"], server["signed_in"]) == (1, False)
    [shown] = (await user.http.get("/tools")).json()["items"]
    assert (shown["server_status"], shown["runnable"], shown["visible"]) == ("needs_authorization", True, True)
    [found] = (await user.discover("read_file"))["tools"]
    assert found["server_status"] == "needs_authorization"

    listed = await call_meta_tool(user.http, "list_servers", {}, "/mcp/full")
    assert [each["status"] for each in listed["structuredContent"]["servers"]] == ["needs_authorization"]
    assert "needs a sign-in" in get_text(listed)
    discovered = await call_meta_tool(user.http, "tool_discovery", {"query": ["read_file"]})
    assert "running it needs you to sign in to its server first" in get_text(discovered)


async def test_a_server_that_rejects_stored_headers_is_an_error_and_no_sign_in(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("read_file")]
    server_id = await user.connect(mcp, headers={"Authorization": "Bearer outdated"})
    lock(mcp)
    assert (await user.reindex(server_id))["error"]["cause"] == "unauthorized"
    assert (await user.http.get(f"/servers/{server_id}")).json()["status"] == "error"


async def test_an_imported_server_without_credentials_ends_with_the_status(user: TestUser, mcp: FakeMcpServer) -> None:
    lock(mcp)
    config = {"mcpServers": {"files": {"type": "http", "url": mcp.url}}}
    [imported] = assert_ok(await user.http.post("/servers/import", json={"config": config}))["imported"]
    await user.reindex(imported["id"])
    server = (await user.http.get(f"/servers/{imported['id']}")).json()
    assert server["status"] == "needs_authorization"
    assert "POST /servers/{id}/connect" in server["last_error"]


async def test_a_tool_of_a_server_that_was_never_listed_leads_to_the_sign_in_and_to_no_other_server(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    await user.add_tools(tool("list_notes"), server="toolbox")
    missing = await user.http.post("/execute", json={"tool_key": "notes.list_notes"})
    assert "did you mean toolbox.list_notes?" in assert_problem(missing, 404, "TOOL_NOT_FOUND")["detail"]
    lock(mcp)
    await user.reindex(await user.add_server("notes", transport=mcp.transport, url=mcp.url))
    unlisted = await user.http.post("/execute", json={"tool_key": "notes.list_notes"})
    detail = assert_problem(unlisted, 404, "TOOL_NOT_FOUND")["detail"]
    assert "the tools of 'notes' are listed once you have signed in" in detail
    assert "toolbox" not in detail


async def test_a_call_runs_nothing_is_audited_and_leaves_its_idempotency_key_free(
    user: TestUser, container: Container, mcp: FakeMcpServer
) -> None:
    await connect_with_tools(user, mcp, "read_file")
    body = {"tool_key": (await user.tools())["read_file"]["id"]}
    headers = {"Idempotency-Key": "one"}
    lock(mcp)
    for _ in range(2):  # the first asks the server, the second knows
        refused = await user.http.post("/execute", json=body, headers=headers)
        problem = assert_problem(refused, 403, "AUTHORIZATION_REQUIRED")
        assert (problem["server"], problem["tool"]) == ("files", "read_file")
    assert [outcome for outcome, _ in await list_executions(container, user.id)] == ["AUTHORIZATION_REQUIRED"] * 2
    mcp.fault = None
    await user.reindex((await user.http.get("/servers")).json()["items"][0]["id"])
    assert_ok(await user.http.post("/execute", json=body, headers=headers))


async def test_a_server_without_a_usable_sign_in_gives_no_link_and_says_why(user: TestUser, mcp: FakeMcpServer) -> None:
    """It answers 401 with a bearer challenge, and publishes no metadata."""
    await add_locked_server(user, mcp)
    problem = assert_problem(await user.execute("read_file"), 403, "AUTHORIZATION_REQUIRED")
    assert (problem["authorization_url"], problem["expires_at"]) == (None, None)
    assert "offers no sign-in" in problem["detail"]


async def test_with_a_stream_the_error_comes_as_an_ordinary_response(user: TestUser, mcp: FakeMcpServer) -> None:
    await add_locked_server(user, mcp)
    body = {"tool_key": (await user.tools())["read_file"]["id"]}
    answer = await user.http.post("/execute", json=body, headers={"Accept": "text/event-stream"})
    assert_problem(answer, 403, "AUTHORIZATION_REQUIRED")


async def test_over_mcp_an_error_without_a_link_tells_the_model_to_ask_the_user(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    await add_locked_server(user, mcp)
    key = (await user.tools())["read_file"]["id"]
    result = await call_meta_tool(user.http, "tool_execute", {"toolKey": key})
    assert get_error(result)["code"] == "AUTHORIZATION_REQUIRED"
    assert "Ask the user to sign in" in get_text(result)


async def test_a_discovery_makes_links_only_on_request_and_only_for_such_servers(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    await add_locked_server(user, mcp)
    await user.add_tools(tool("read_mail", "Read a file of mail."), server="mail")
    query = {"fill": True, "similarity_threshold": 0}
    plain = await user.discover("read a file", **query)
    assert not any("connect_url" in each for each in plain["tools"])
    requests = len(mcp.requests)
    linked = {
        each["tool"]["name"]: each for each in (await user.discover("read a file", connect=True, **query))["tools"]
    }
    assert linked["read_mail"]["connect_url"] is None
    assert linked["read_file"]["connect_url"].startswith("http://127.0.0.1:8000/oauth/start?ticket=")
    assert len(mcp.requests) == requests  # nobody is asked for it


async def test_both_routes_of_discover_make_the_link(user: TestUser, mcp: FakeMcpServer) -> None:
    await add_locked_server(user, mcp)
    for content_type in ("application/json", "application/json;charset=UTF-8"):
        body = json.dumps({"query": "read_file", "connect": True})
        answer = await user.http.post("/discover", content=body, headers={"Content-Type": content_type})
        assert answer.json()["tools"][0]["connect_url"] is not None


async def test_a_service_that_does_not_know_its_address_makes_no_link(open_service: OpenService) -> None:
    async with open_service(host="0.0.0.0") as service:  # noqa: S104 nothing listens
        assert service.connector.config.base_url is None
        async with open_client(service, Authorization=f"Bearer {ADMIN_KEY}", **{"X-User-Id": "alice"}) as http:
            await http.post("/core-tools", json={"tools": [tool("native")]})
            answer = await http.post("/discover", json={"query": "anything", "connect": True})
            assert answer.status_code == 200, answer.text


def ticket_path(container: Container, user_id: str, server_id: str) -> str:
    url = make_link(container.sealer, "http://toolscout", Ticket(user_id, server_id, "user:key")).authorization_url
    return url.removeprefix("http://toolscout")


async def test_a_link_opens_without_a_key_and_names_the_server_and_the_user(
    client: httpx.AsyncClient, container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await add_locked_server(user, mcp)
    requests = len(mcp.requests)
    page = await client.get(ticket_path(container, user.id, server_id))
    assert page.status_code == 200
    assert (user.id in page.text, "Sign in to files" in page.text) == (True, True)
    assert len(mcp.requests) == requests
    assert "form-action" in page.headers["content-security-policy"]


async def test_a_link_that_is_damaged_expired_or_about_nothing_opens_nothing(
    client: httpx.AsyncClient,
    container: Container,
    user: TestUser,
    other_user: TestUser,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server_id = await user.add_server()
    path = ticket_path(container, user.id, server_id)
    foreign = ticket_path(container, other_user.id, server_id)
    with monkeypatch.context() as patched:
        patched.setattr(tickets, "LINK_LIFETIME", -tickets.LINK_LIFETIME)
        expired = ticket_path(container, user.id, server_id)
    for wrong in (path[:-5], "/oauth/start", "/oauth/start?ticket=x", foreign, expired):
        for suffix in ("", "&continue=1" if "?" in wrong else ""):
            answer = await client.get(wrong + suffix)
            assert answer.status_code in (404, 422), wrong
            assert "text/html" in answer.headers["content-type"]
            assert user.id not in answer.text
    assert (await client.get(path)).status_code == 200


async def test_a_key_in_the_request_for_a_link_changes_nothing(
    container: Container, user: TestUser, other_user: TestUser
) -> None:
    """The ticket alone decides: the person who opens it may be signed in as somebody else."""
    path = ticket_path(container, user.id, await user.add_server())
    assert user.id in (await other_user.http.get(path)).text


async def test_the_console_shows_the_status_on_every_page(
    container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    server_id = await add_locked_server(user, mcp)
    tool_id = (await user.tools())["read_file"]["id"]
    async with open_console(container, user.key) as console:
        assert "sign-in needed" in await console.get_page("/console/servers")
        page = await console.get_page(f"/console/servers/{server_id}")
        assert "This server wants you to sign in. Its tools are found" in page
        assert f'action="/console/servers/{server_id}/connect"' in page
        assert "Disconnect" not in page
        overview = await console.get_page("/console/overview")
        assert "1 server wants you to sign in" in overview
        assert "failing" not in overview
        assert "sign-in needed" in await console.get_page("/console/tools")
        assert "wants you to sign in" in await console.get_page(f"/console/tools/{tool_id}/run")


async def test_the_console_does_not_claim_that_tools_are_found_which_were_never_listed(
    container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    lock(mcp)
    server_id = await user.add_server("files", transport=mcp.transport, url=mcp.url)
    await user.reindex(server_id)
    async with open_console(container, user.key) as console:
        page = await console.get_page(f"/console/servers/{server_id}")
    assert "This server wants you to sign in. Its tools are listed once you have." in page


async def test_the_test_of_a_server_that_is_not_stored_says_to_add_it_first(
    container: Container, user: TestUser, mcp: FakeMcpServer
) -> None:
    lock(mcp)
    fields = {"name": "files", "transport": mcp.transport, "url": mcp.url}
    async with open_console(container, user.key) as console:
        page = await console.submit("/console/servers", do="test", **fields)
    assert find_error(page.text) == "This server wants you to sign in: add it, then connect your account."


async def test_the_links_state_is_not_in_the_url_of_the_page(
    client: httpx.AsyncClient, container: Container, user: TestUser
) -> None:
    path = ticket_path(container, user.id, await user.add_server())
    assert list(parse_qs(urlsplit(path).query)) == ["ticket"]
    assert (await client.get(path)).headers["referrer-policy"] == "same-origin"
