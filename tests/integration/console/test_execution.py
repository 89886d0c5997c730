"""The page of the console that runs a tool."""

import html
import re

import pytest

from app.container import Container
from tests.support.clients import TestUser, new_user
from tests.support.console_client import ConsoleClient, find_error, open_console
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1, "examples": ["Oslo"]}},
    "required": ["city"],
}


@pytest.fixture
async def run_page(user: TestUser, mcp: FakeMcpServer) -> str:
    """The path of the page that runs `get_forecast`."""
    mcp.tools = [tool("get_forecast", "The weather of the coming days", inputSchema=CITY)]
    mcp.on_call["get_forecast"] = lambda arguments: {
        "content": [{"type": "text", "text": f"<b>snow</b> in {arguments['city']}"}]
    }
    await user.connect(mcp, "weather")
    return f"/console/tools/{(await user.tools())['get_forecast']['id']}/run"


def read_call_id(page: str) -> str:
    match = re.search(r'name="call_id" value="([^"]+)"', page)
    assert match is not None
    return match[1]


async def test_a_tool_is_run_once_for_each_form_and_its_result_is_shown(
    console: ConsoleClient, mcp: FakeMcpServer, run_page: str
) -> None:
    form = await console.get_page(run_page)
    assert "&#34;Oslo&#34;" in form
    fields = {"arguments": '{"city": "Wien"}', "call_id": read_call_id(form)}
    first = (await console.submit(run_page, **fields)).text
    assert "&lt;b&gt;snow&lt;/b&gt; in Wien" in first
    assert "succeeded" in first
    assert '{"city": "Wien"}' in html.unescape(first)  # the form keeps what was typed
    reloaded = (await console.submit(run_page, **fields)).text
    assert "&lt;b&gt;snow&lt;/b&gt; in Wien" in reloaded
    assert mcp.calls == [("get_forecast", {"city": "Wien"})]
    await console.submit(run_page, **fields | {"call_id": read_call_id(first)})
    assert len(mcp.calls) == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("{", "not valid JSON"), ("[]", "must be a JSON object"), ('{"city": ""}', "city")],
)
async def test_arguments_that_are_wrong_are_refused_and_nothing_runs(
    console: ConsoleClient, mcp: FakeMcpServer, run_page: str, arguments: str, reason: str
) -> None:
    answer = await console.submit(run_page, arguments=arguments)
    assert answer.status_code == 422
    assert reason in find_error(answer.text)
    assert f">{arguments}</textarea>" in html.unescape(answer.text)  # the form keeps what was typed
    assert mcp.calls == []


async def test_an_error_of_the_tool_is_shown_as_one(console: ConsoleClient, mcp: FakeMcpServer, run_page: str) -> None:
    mcp.on_call["get_forecast"] = lambda _: {"content": [{"type": "text", "text": "no such city"}], "isError": True}
    page = (await console.submit(run_page, arguments='{"city": "Atlantis"}')).text
    assert "no such city" in page
    assert "the tool reports an error" in page
    assert "succeeded" not in page


async def test_a_tool_that_toolscout_does_not_run_has_no_form(console: ConsoleClient, user: TestUser) -> None:
    await user.add_tools(tool("send_mail", "Send a letter"), server="mail")
    tool_id = (await user.tools())["send_mail"]["id"]
    page = await console.get_page(f"/console/tools/{tool_id}/run")
    assert "found by Toolscout, run by your backend" in page
    assert "<textarea" not in page
    assert "Run this tool" not in await console.get_page(f"/console/tools/{tool_id}")
    refused = await console.submit(f"/console/tools/{tool_id}/run", arguments="{}")
    assert "your backend runs them" in find_error(refused.text)


async def test_the_tool_and_the_answer_to_a_message_lead_to_the_form(console: ConsoleClient, run_page: str) -> None:
    link = f'href="{run_page}"'
    assert link in await console.get_page(run_page.removesuffix("/run"))
    assert link in (await console.submit("/console/try", query="what will the weather be like?")).text


async def test_another_users_tool_cannot_be_run(container: Container, mcp: FakeMcpServer, run_page: str) -> None:
    async with new_user(container) as stranger, open_console(container, stranger.key) as theirs:
        await theirs.get_page(run_page, status=404)
        assert (await theirs.submit(run_page, arguments='{"city": "Oslo"}')).status_code == 404
    assert mcp.calls == []


async def test_a_run_in_the_console_is_audited(console: ConsoleClient, user: TestUser, run_page: str) -> None:
    await console.submit(run_page, arguments='{"city": "Oslo"}')
    events = (await user.http.get("/audit", params={"action": "tool.execute"})).json()["items"]
    assert [event["outcome"] for event in events] == ["succeeded"]
