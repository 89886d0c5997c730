"""The console's "Add a server" searches the registry, and a form asks for what the server needs."""

import re
from collections.abc import AsyncIterator

import pytest

from app.container import Container
from tests.support.checks import everything
from tests.support.clients import TestUser
from tests.support.console_client import ConsoleClient, find_error, open_console
from tests.support.mcp_server import FakeMcpServer
from tests.support.registry_server import FakeRegistry, entry, remote

NEW = "/console/servers/new"
ADD = "/console/servers/from-registry"
CANARY = "canary-19be44"


@pytest.fixture
async def console(service: Container, searcher: TestUser) -> AsyncIterator[ConsoleClient]:
    async with open_console(service, searcher.key) as signed_in:
        yield signed_in


async def test_a_search_lists_servers_with_a_link_to_add_them(console: ConsoleClient, registry: FakeRegistry) -> None:
    registry.reset(
        entry("com.acme/weather", remote("https://mcp.example.com/mcp"), title="<b>Weather</b>"),
        entry("com.acme/weather-local"),
        entry("com.other/weather", remote("https://mcp.example.com/mcp")),
    )
    assert "Find it in the registry" in await console.get_page(NEW)
    assert registry.requests == []
    page = await console.get_page(NEW, q="weather")
    assert f'href="{ADD}?name=com.acme/weather"' in page
    assert "runs locally only" in page
    assert "1 more is not allowed by the operator" in page
    assert "&lt;b&gt;Weather" in page
    assert "<b>Weather" not in page
    assert "no server whose name contains this" in await console.get_page(NEW, q="nothing-like-it")


async def test_the_search_is_missing_without_a_registry(container: Container, user: TestUser) -> None:
    async with open_console(container, user.key) as console:
        assert "Find it in the registry" not in await console.get_page(NEW, q="weather")
        assert "TOOLSCOUT_REGISTRY_URL" in await console.get_page(ADD, 404, name="com.acme/weather")


async def test_a_failing_registry_leaves_the_form_usable(console: ConsoleClient, registry: FakeRegistry) -> None:
    registry.mode = "status"
    page = await console.get_page(NEW, 502, q="weather")
    assert "The registry answered with status 503" in find_error(page)
    assert 'action="/console/servers"' in page


async def test_a_server_is_added_with_what_it_asks_for(
    console: ConsoleClient, registry: FakeRegistry, searcher: TestUser, upstream: FakeMcpServer
) -> None:
    headers = [
        {
            "name": "Authorization",
            "value": "Bearer {token}",
            "isRequired": True,
            "isSecret": True,
            "description": "Key",
        },
        {"name": "X-Region", "isRequired": True, "choices": ["eu", "us"], "default": "us"},
        {"name": "X-Note"},
    ]
    registry.reset(entry("com.acme/weather", remote(upstream.url, headers=headers), websiteUrl="https://acme.example"))
    page = await console.get_page(ADD, name="com.acme/weather")
    fields = re.findall(
        r'name="input_kind" value="(\w+)"><input type="hidden" name="input_name" value="([\w-]+)"', page
    )
    assert fields == [("variable", "token"), ("header", "X-Region"), ("header", "X-Note")]
    assert re.findall(r'name="input_value" type="(\w+)"', page) == ["password", "text"]
    assert '<option value="us" selected>' in page
    assert 'href="https://acme.example"' in page
    form = {
        "registry_name": "com.acme/weather",
        "name": "weather",
        "input_kind": [kind for kind, _ in fields],
        "input_name": [name for _, name in fields],
    }
    refused = await console.submit(ADD, **form, input_value=["", "eu", ""], do="add")
    assert (refused.status_code, find_error(refused.text)) == (422, "Variables.token: required: Key.")
    form["input_value"] = [CANARY, "eu", ""]
    tested = await console.submit(ADD, **form, do="test")
    assert "Connection successful: 1 tool found" in tested.text
    assert await everything(searcher.http, "/servers") == []
    added = await console.submit(ADD, **form, do="add", header_name="X-More", header_value="more")
    assert added.status_code == 303
    [server] = await everything(searcher.http, "/servers")
    assert (server["name"], server["url"]) == ("weather", upstream.url)
    assert server["header_names"] == ["Authorization", "X-More", "X-Region"]


async def test_the_inputs_follow_the_chosen_address(
    console: ConsoleClient, registry: FakeRegistry, searcher: TestUser, upstream: FakeMcpServer
) -> None:
    first = remote("https://{tenant}.example.com/mcp")
    second = remote(upstream.url, headers=[{"name": "X-Key", "isRequired": True}])
    registry.reset(entry("com.acme/weather", first, second))
    page = await console.get_page(ADD, name="com.acme/weather")
    assert 'name="input_name" value="tenant"' in page
    form = {"registry_name": "com.acme/weather", "name": "weather", "remote_url": upstream.url, "do": "add"}
    shown = await console.submit(ADD, **form, input_kind="variable", input_name="tenant", input_value="acme")
    assert (shown.status_code, find_error(shown.text)) == (422, "Headers.X-Key: required.")
    assert 'name="input_name" value="X-Key"' in shown.text
    added = await console.submit(ADD, **form, input_kind="header", input_name="X-Key", input_value="k")
    assert added.status_code == 303
    [server] = await everything(searcher.http, "/servers")
    assert server["url"] == upstream.url
