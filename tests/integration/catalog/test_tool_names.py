"""Aliases lead back to the right tool, and to no other."""

import httpx

from app.catalog.tool_keys import UNKNOWN_TOOL
from tests.support.calls import assert_ok, result_text
from tests.support.checks import assert_problem
from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.mcp_server import FakeMcpServer

ODD = ["read file", "a.b:c", "a.b/c", "天气", "ü", "x" * 128, "x" * 127 + "y", "_" * 70, "%", "search_abcdef", "-"]


async def send_call(user: TestUser, alias: str) -> httpx.Response:
    call = {"type": "tool_use", "id": "t", "name": alias, "input": {}}
    return await user.http.post("/execute", json={"tool_call": call})


async def call_by_alias(user: TestUser, alias: str) -> tuple[str, str]:
    """Return the ids of the tool and the server that a model reaches by this alias."""
    answer = assert_ok(await send_call(user, alias))
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
    detail: str = assert_problem(await send_call(user, alias), 404, "TOOL_NOT_FOUND")["detail"]
    return detail


async def test_a_name_that_no_tool_has_is_rejected_with_the_reason(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    await user.http.put("/core-tools", json={"tools": [tool("native")]})
    mcp.tools, legacy_mcp.tools = [tool("search"), tool("read file")], [tool("search")]
    await user.connect(mcp, "here")
    await user.connect(legacy_mcp, "there")
    shown = await user.discover("search", keep=[each["id"] for each in (await user.tools()).values()], limit=50)
    made = {hit["tool"]["name"]: hit["alias"] for hit in shown["tools"]}

    assert "core tool" in await call_and_get_error(user, "native")
    nobody = await call_and_get_error(user, "nothing")
    assert nobody == UNKNOWN_TOOL
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
    assert_problem(await send_call(user, "search"), 409, "conflict")
    await user.http.patch(f"/servers/{here}", json={"enabled": False})
    assert (await call_by_alias(user, "search"))[1] == there


async def test_a_name_that_several_tools_have_is_a_conflict_whose_choices_can_be_called(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("search")], [tool("search")]
    there, here = await user.connect(mcp, "there"), await user.connect(legacy_mcp, "here")
    await user.add_tools(tool("search"), server="hidden")
    await user.http.patch("/tools/hidden.search", json={"enabled": False})
    ids = {each["server_name"]: each["id"] for each in (await user.http.get("/tools")).json()["items"]}
    problem = assert_problem(await send_call(user, "search"), 409, "conflict")
    assert problem["detail"] == "several tools are named 'search': choose one of here.search, there.search"
    assert problem["choices"] == [{"tool_key": ids[name], "name": f"{name}.search"} for name in ("here", "there")]
    for choice, server_id in zip(problem["choices"], (here, there), strict=True):
        assert await call_by_alias(user, choice["name"]) == (choice["tool_key"], server_id)
        assert await call_by_alias(user, choice["tool_key"]) == (choice["tool_key"], server_id)


async def test_a_suggested_name_can_be_called(user: TestUser, mcp: FakeMcpServer) -> None:
    mcp.tools = [tool("calculate"), tool("read file")]
    server_id = await user.connect(mcp, "toolbox")
    for nearly, name in {"calculat": "calculate", "read_file": "read file"}.items():
        suggested = (await call_and_get_error(user, nearly)).removesuffix("?").rpartition("did you mean ")[2]
        assert suggested == f"toolbox.{name}"
        called = [await call_by_alias(user, key) for key in (suggested, f"{server_id}:{name}")]
        assert {called_server for _, called_server in called} == {server_id}
    assert [name for name, _ in mcp.calls] == ["calculate", "calculate", "read file", "read file"]


async def test_a_name_is_read_as_an_alias_before_it_is_read_as_a_key(
    user: TestUser, mcp: FakeMcpServer, legacy_mcp: FakeMcpServer
) -> None:
    mcp.tools, legacy_mcp.tools = [tool("b.read")], [tool("read")]
    plain, keyed = await user.connect(mcp, "a"), await user.connect(legacy_mcp, "b")
    assert (await call_by_alias(user, "b.read"))[1] == plain
    await user.http.patch("/tools/a.b.read", json={"enabled": False})
    assert (await call_by_alias(user, "b.read"))[1] == keyed


async def test_the_key_of_a_hidden_or_foreign_tool_answers_as_a_missing_one(
    user: TestUser, other_user: TestUser, mcp: FakeMcpServer
) -> None:
    mcp.tools = [tool("read")]
    server_id = await user.connect(mcp, "files")
    tool_id = (await user.tools())["read"]["id"]
    keys = ["files.read", f"{server_id}:read", tool_id]
    for key in keys:
        assert await call_by_alias(user, key) == (tool_id, server_id)
        assert await call_and_get_error(other_user, key) == UNKNOWN_TOOL
    await user.http.patch(f"/tools/{tool_id}", json={"enabled": False})
    assert {await call_and_get_error(user, key) for key in keys} == {UNKNOWN_TOOL}


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
