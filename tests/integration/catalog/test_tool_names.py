"""Aliases lead back to the right tool, and to no other."""

from tests.support.calls import assert_ok, result_text
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

ODD = ["read file", "a.b:c", "a.b/c", "天气", "ü", "x" * 128, "x" * 127 + "y", "_" * 70, "%", "search_abcdef", "-"]


async def call_by_alias(user: TestUser, alias: str) -> tuple[str, str]:
    """Return the ids of the tool and the server that a model reaches by this alias."""
    body = {"tool_call": {"type": "tool_use", "id": "t", "name": alias, "input": {}}}
    answer = assert_ok(await user.http.post("/execute", json=body))
    return answer["tool_key"], answer["server_id"]


async def test_aliases_of_odd_and_shared_names_can_be_called(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool(name) for name in [*ODD, "search"]]
    legacy_mcp.tools = [tool("search"), tool("read")]
    here, there = await user.connect(mcp, "here ü"), await user.connect(legacy_mcp, "there")
    answer = await user.http.get("/tools", params={"limit": 200})
    known = {each["id"]: (each["server_id"], each["name"]) for each in answer.json()["items"]}
    assert len(known) == len(ODD) + 3
    shown = await user.discover("anything", keep=list(known), include_core_tools=False)
    for hit in shown["tools"]:
        assert await call_by_alias(user, hit["alias"]) == (hit["tool_key"], known[hit["tool_key"]][0])
    assert sorted(name for name, _ in mcp.calls) == sorted([*ODD, "search"])
    assert sorted(name for name, _ in legacy_mcp.calls) == ["read", "search"]
    assert {server_id for server_id, name in known.values() if name == "search"} == {here, there}


async def call_and_get_error(user: TestUser, alias: str) -> str:
    body = {"tool_call": {"type": "tool_use", "id": "t", "name": alias, "input": {}}}
    detail: str = assert_problem(await user.http.post("/execute", json=body), 404, "TOOL_NOT_FOUND")["detail"]
    return detail


async def test_an_ambiguous_name_is_rejected_with_the_reason(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    await user.http.put("/core-tools", json={"tools": [tool("native")]})
    mcp.tools, legacy_mcp.tools = [tool("search"), tool("read file")], [tool("search")]
    await user.connect(mcp, "here")
    await user.connect(legacy_mcp, "there")
    shown = await user.discover("search", keep=[each["id"] for each in (await user.tools()).values()], limit=50)
    made = {hit["tool"]["name"]: hit["alias"] for hit in shown["tools"]}

    assert "core tool" in await call_and_get_error(user, "native")
    assert "several servers" in await call_and_get_error(user, "search")
    nobody = await call_and_get_error(user, "nothing")
    assert "no tool has this name" in nobody
    unknown = ["", "abcdef", "%", "x" * 256, "_"]
    assert {await call_and_get_error(user, alias) for alias in unknown} == {nobody}
    nearly = ["read_file", "read_file_abcdef", made["read file"].upper()]
    suggestion = f"{nobody}; did you mean here.read file?"
    assert {await call_and_get_error(user, alias) for alias in nearly} <= {nobody, suggestion}
    assert await call_and_get_error(user, "read_file") == suggestion
    assert await call_and_get_error(other_user, made["read file"]) == nobody
    assert (mcp.calls, legacy_mcp.calls) == ([], [])
    await call_by_alias(user, made["read file"])
    await call_by_alias(user, "read file")
    assert [name for name, _ in mcp.calls] == ["read file", "read file"]


async def test_a_hidden_tool_cannot_be_called_by_its_name(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("read"), tool("odd one")]
    await user.connect(mcp)
    known = await user.tools()
    shown = await user.discover("read", keep=[each["id"] for each in known.values()])
    names = [hit["alias"] for hit in shown["tools"]]
    for enabled in (False, True):
        for each in known.values():
            await user.http.patch(f"/tools/{each['id']}", json={"enabled": enabled})
        for alias in names:
            if enabled:
                await call_by_alias(user, alias)
            else:
                await call_and_get_error(user, alias)
    assert len(mcp.calls) == 2


async def test_a_name_means_the_visible_one_of_two_tools(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("search")], [tool("search")]
    here, there = await user.connect(mcp, "here"), await user.connect(legacy_mcp, "there")
    await call_and_get_error(user, "search")
    await user.http.patch(f"/servers/{here}", json={"enabled": False})
    assert (await call_by_alias(user, "search"))[1] == there


async def test_arguments_reach_the_tool_that_was_called_by_its_alias(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("odd one")]
    await user.connect(mcp)
    [alias] = [hit["alias"] for hit in (await user.discover("odd one"))["tools"]]
    function = {"name": alias, "arguments": '{"a": "ü"}'}
    body = {"tool_call": {"type": "function", "id": "c", "function": function}}
    assert result_text(await user.http.post("/execute", json=body)) == r'{"a": "\u00fc"}'


async def test_a_tool_that_is_named_like_a_core_tool_can_be_called(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("native", "Does the same, elsewhere.")]
    await user.connect(mcp)
    await user.http.put("/core-tools", json={"tools": [tool("native")]})
    for shown in (True, False):
        found = await user.discover("native", include_core_tools=shown, strategy="bm25")
        [alias] = [hit["alias"] for hit in found["tools"] if hit["server_id"] is not None]
        call = {"type": "tool_use", "name": alias, "input": {}}
        assert (await user.http.post("/execute", json={"tool_call": call})).status_code == 200
    assert len(mcp.calls) == 2
