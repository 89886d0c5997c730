"""Tests that `POST /execute` checks the arguments before it calls the server."""

from typing import Any

import pytest

from tests.support.calls import assert_ok
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer, listener

Json = dict[str, Any]

ORDER = {
    "type": "object",
    "required": ["customer", "lines"],
    "properties": {
        "customer": {"type": "string", "minLength": 1},
        "lines": {"type": "array", "items": {"type": "object", "required": ["sku"]}},
    },
}


def schema_with(a: Json) -> Json:
    return {"type": "object", "properties": {"a": a}}


async def test_invalid_arguments_are_rejected_with_all_errors_and_the_server_is_not_called(
    user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("order", inputSchema=ORDER)]
    await user.connect(mcp)
    problem = assert_problem(await user.execute("order", {"customer": "", "lines": [{}]}), 422, "TOOL_VALIDATION_ERROR")
    assert [item["loc"] for item in problem["errors"]] == [["arguments", "customer"], ["arguments", "lines", 0]]
    assert problem["errors"][1]["msg"] == "'sku' is a required property"
    assert mcp.calls == []
    valid = {"customer": "c", "lines": [{"sku": "s"}]}
    assert_ok(await user.execute("order", valid))
    assert mcp.calls == [("order", valid)]


@pytest.mark.parametrize("reason", ["invalid", "unreachable"])
async def test_a_call_with_an_unusable_schema_is_sent_unchecked(
    user: TestUser, mcp: FakeMcpServer, reason: str
) -> None:
    with listener() as somebody:
        schema = {
            "invalid": {"type": "object", "minProperties": "a"},
            "unreachable": schema_with({"$ref": f"http://127.0.0.1:{somebody.port}/x.json"}),
        }[reason]
        mcp.tools = [tool("free", inputSchema=schema)]
        await user.connect(mcp)
        assert_ok(await user.execute("free", {"a": 1}))
        assert somebody.connects == 0
    assert mcp.calls == [("free", {"a": 1})]


async def test_a_cached_schema_is_not_confused_with_another(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [
        tool("number", inputSchema=schema_with({"type": "integer"})),
        tool("text", inputSchema=schema_with({"type": "string"})),
    ]
    server_id = await user.connect(mcp)
    for _ in range(2):
        assert_ok(await user.execute("number", {"a": 1}))
        assert_problem(await user.execute("number", {"a": "1"}), 422, "TOOL_VALIDATION_ERROR")
        assert_ok(await user.execute("text", {"a": "1"}))
        assert_problem(await user.execute("text", {"a": 1}), 422, "TOOL_VALIDATION_ERROR")
    mcp.tools[0] = tool("number", inputSchema=schema_with({"type": "string"}))
    await user.reindex(server_id)
    assert_ok(await user.execute("number", {"a": "1"}))
    assert_problem(await user.execute("number", {"a": 1}), 422, "TOOL_VALIDATION_ERROR")


@pytest.mark.parametrize("key", [None, "deep"])
async def test_arguments_that_are_nested_too_deeply_are_rejected(
    user: TestUser, mcp: FakeMcpServer, key: str | None
) -> None:
    mcp.tools = [tool("echo")]
    await user.connect(mcp)
    tool_key = (await user.tools())["echo"]["id"]
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
    for depth, status in ((1_000, 422), (254, 422), (250, 200)):
        arguments = '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)
        body = f'{{"tool_key": "{tool_key}", "arguments": {arguments}}}'
        answer = await user.http.post("/execute", content=body, headers=headers)
        assert answer.status_code == status, answer.text
    assert len(mcp.calls) == 1
