"""The console imports the configuration file of an MCP client."""

import html
import json
import re

from tests.support.checks import everything
from tests.support.clients import TestUser
from tests.support.console_client import ConsoleClient, find_error
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

URL = "https://mcp.example.com/mcp"
CANARY = "canary-d21f90"
PATH = "/console/servers/import"


async def test_a_pasted_configuration_is_imported(console: ConsoleClient, user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read_file")]
    assert PATH in await console.get_page("/console/servers")
    assert "<textarea" in await console.get_page(PATH)
    text = f"""{{ // mine
      "mcpServers": {{
        "files": {{"url": "{mcp.url}", "headers": {{"X-Token": "{CANARY}"}}, "autoApprove": []}},
        "<b>local</b>": {{"command": "npx", "env": {{"KEY": "{CANARY}"}}}},
      }}}}"""
    response = await console.submit(PATH, config=text)
    assert response.status_code == 201
    assert "1 server imported, 1 skipped" in response.text
    assert "not imported: `autoApprove`" in response.text
    assert "it runs a program" in response.text
    assert "<b>local" not in response.text
    assert CANARY not in response.text
    [server] = await everything(user.http, "/servers")
    assert f'href="/console/servers/{server["id"]}"' in response.text
    await user.reindex(server["id"])
    assert (await user.tools()).keys() == {"read_file"}
    again = await console.submit(PATH, config=text)
    assert (again.status_code, "0 servers imported, 2 skipped" in again.text) == (200, True)


async def test_values_that_are_missing_are_asked_for_before_anything_is_imported(
    console: ConsoleClient, user: TestUser
) -> None:
    inputs = [
        {"id": "key", "type": "promptString", "description": "The <key>", "password": True},
        {"id": "region", "type": "pickString", "options": ["eu", "us"], "default": "us"},
        {"id": "team", "type": "promptString"},
    ]
    headers = {"Authorization": "Bearer ${input:key}", "X-Team": "${input:team}", "X-Size": "${SIZE:-small}"}
    servers = {
        "tickets": {"url": "https://${input:region}.example.com", "headers": headers, "disabled": True},
        "mail": {"url": URL, "headers": {"Authorization": "${env:MAIL_TOKEN}"}, "disabled": True},
    }
    config = json.dumps({"servers": servers, "inputs": inputs})
    asked = await console.submit(PATH, config=config)
    assert asked.status_code == 200
    assert re.findall(r'name="value_name" value="(\w+)"', asked.text) == ["region", "key", "team", "SIZE", "MAIL_TOKEN"]
    assert re.findall(r'name="value" type="(\w+)"', asked.text) == ["password", "text", "text", "password"]
    assert '<option value="us" selected>' in asked.text
    assert "The &lt;key&gt;" in asked.text
    assert html.escape(config, quote=False) in asked.text.replace("&#34;", '"')
    assert await everything(user.http, "/servers") == []

    names = ["region", "key", "team", "SIZE", "MAIL_TOKEN"]
    answered = await console.submit(
        PATH, config=config, asked="yes", value_name=names, value=["eu", CANARY, "blue", "small", ""]
    )
    assert "1 server imported, 1 skipped" in answered.text
    assert "there is no value for `MAIL_TOKEN`" in answered.text
    assert CANARY not in answered.text
    [server] = await everything(user.http, "/servers")
    assert (server["name"], server["url"]) == ("tickets", "https://eu.example.com")
    assert server["header_names"] == ["Authorization", "X-Size", "X-Team"]


async def test_a_value_without_its_placeholder_is_refused(console: ConsoleClient, user: TestUser) -> None:
    servers = {"tickets": {"url": URL, "headers": {"X-Team": "${TEAM}"}, "disabled": True}}
    fields = {"config": json.dumps({"mcpServers": servers}), "asked": "yes", "value": ["blue"]}
    response = await console.submit(PATH, **fields, value_name=["TEEM"])
    assert response.status_code == 422
    assert find_error(response.text).startswith("Unknown placeholder `TEEM`; did you mean `TEAM`?")
    assert await everything(user.http, "/servers") == []
    assert (await console.submit(PATH, **fields, value_name=["TEAM"])).status_code == 201


async def test_defaults_need_not_be_asked_for(console: ConsoleClient) -> None:
    servers = {"tickets": {"url": "${BASE:-https://mcp.example.com}/mcp", "disabled": True}}
    assert (await console.submit(PATH, config=json.dumps({"mcpServers": servers}))).status_code == 201


async def test_a_text_that_is_no_configuration_is_refused_and_kept(console: ConsoleClient) -> None:
    for text, reason in (("{bad", "The text is not valid JSON"), ("[1]", "A configuration is a JSON object")):
        response = await console.submit(PATH, config=text)
        assert response.status_code == 422
        assert find_error(response.text).startswith(reason)
        assert f">{text}</textarea>" in response.text
