"""Pushing a server's tools: counts, refusals, and what stays in the index."""

import time
import uuid
from typing import Any

import httpx
import pytest

from app.indexing.parsing import MAX_NODES
from tests.support.checks import JSON_TYPE, assert_problem, finished_run
from tests.support.clients import TestUser, new_user
from tests.support.factories import OpenService, tool

ZERO_COUNTS = {"added": 0, "changed": 0, "unchanged": 0, "removed": 0, "embedded": 0, "refused": 0}
GOOD = tool("good", "The sibling of a refused tool.")


def make_new_tool(name: str) -> dict[str, Any]:
    """Return a tool that no test has pushed before, so that its vector is not cached."""
    return tool(name, f"Does {uuid.uuid4().hex}.")


def nested_json(levels: int) -> str:
    """Return JSON text, since json.dumps fails before our limit is reached."""
    return '{"a":' * levels + "{}" + "}" * levels


async def push_text(user: TestUser, server_id: str, text: str) -> httpx.Response:
    path = f"/servers/{server_id}/tools"
    return await user.http.put(path, content=text, headers=JSON_TYPE, params={"wait": True})


async def test_a_push_returns_at_once_and_finishes_later(user: TestUser) -> None:
    server_id = await user.add_server()
    answer = await user.http.put(f"/servers/{server_id}/tools", json={"tools": [tool("read_file")]})
    assert answer.status_code == 202
    assert (answer.json()["server_id"], answer.json()["state"]) == (server_id, "queued")
    assert answer.json()["finished_at"] is None
    run = await finished_run(user.http, answer.json()["id"])
    assert (run["state"], run["progress"], run["error"]) == ("succeeded", {"done": 1, "total": 1}, None)
    assert run["finished_at"] is not None
    assert list(await user.tools()) == ["read_file"]


async def test_a_push_with_wait_returns_the_finished_run(user: TestUser) -> None:
    server_id = await user.add_server()
    run = await user.push(server_id, [make_new_tool("read_file"), make_new_tool("write_file")])
    assert run["state"] == "succeeded"
    assert run["counts"] == {**ZERO_COUNTS, "added": 2, "embedded": 2}
    assert (run["refused"], run["warnings"], run["error"]) == ([], [], None)
    server = (await user.http.get(f"/servers/{server_id}")).json()
    assert (server["tool_count"], server["pending_count"], server["status"]) == (2, 0, "push")


async def test_a_push_counts_added_changed_unchanged_and_removed_tools(user: TestUser) -> None:
    kept, changed, removed = (make_new_tool(name) for name in ("kept", "changed", "removed"))
    server_id = await user.add_server()
    await user.push(server_id, [kept, changed, removed])
    run = await user.push(server_id, [kept, make_new_tool("changed"), make_new_tool("added")])
    assert run["counts"] == {"added": 1, "changed": 1, "unchanged": 1, "removed": 1, "embedded": 2, "refused": 0}
    assert set(await user.tools()) == {"kept", "changed", "added"}


async def test_an_identical_push_changes_and_embeds_nothing(user: TestUser) -> None:
    tools = [make_new_tool("read_file"), make_new_tool("write_file")]
    server_id = await user.add_server()
    await user.push(server_id, tools)
    before = await user.tools()
    run = await user.push(server_id, tools[::-1])
    assert run["counts"] == {**ZERO_COUNTS, "unchanged": 2}
    assert await user.tools() == before


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, 0),
        ({"description": "Does something else."}, 1),
        ({"title": "Another title"}, 1),
        ({"inputSchema": {"type": "object", "properties": {"b": {}, "a": {}}}}, 0),
        ({"inputSchema": {"type": "object", "properties": {"a": {}}}}, 1),
        ({"outputSchema": {"type": "object"}}, 1),
        ({"annotations": {"readOnlyHint": False}}, 1),
        ({"_meta": {"version": 2}}, 1),
    ],
    ids=str,
)
async def test_a_change_of_any_field_is_counted_and_another_key_order_is_not(
    user: TestUser, changes: dict[str, Any], changed: int
) -> None:
    before = {
        **make_new_tool("read_file"),
        "inputSchema": {"properties": {"a": {}, "b": {}}, "type": "object"},
        "annotations": {"readOnlyHint": True},
        "_meta": {"version": 1},
    }
    server_id = await user.add_server()
    await user.push(server_id, [before])
    key = (await user.tools())["read_file"]["id"]
    run = await user.push(server_id, [{**before, **changes}])
    assert (run["counts"]["changed"], run["counts"]["unchanged"]) == (changed, 1 - changed)
    assert (await user.tools())["read_file"]["id"] == key


async def test_a_tool_that_another_user_has_pushed_counts_as_embedded(user: TestUser, other_user: TestUser) -> None:
    """Otherwise a push would tell what other users have."""
    secret = make_new_tool("read_file")
    first = await user.push(await user.add_server(), [secret])
    second = await other_user.push(await other_user.add_server(), [secret])
    assert first["counts"] == second["counts"] == {**ZERO_COUNTS, "added": 1, "embedded": 1}
    for each in (user, other_user):
        assert (await each.tools())["read_file"]["embedded"] is True
        [hit] = (await each.discover("read a file", similarity_threshold=0))["tools"]
        assert hit["similarity"] is not None


async def test_a_tool_that_is_removed_and_returns_keeps_its_id(user: TestUser) -> None:
    server_id = await user.add_tools(GOOD, tool("read_file", "Reads a file."))
    key = (await user.tools())["read_file"]["id"]
    await user.push(server_id, [GOOD])
    assert "read_file" not in await user.tools()
    run = await user.push(server_id, [GOOD, tool("read_file", "Reads a file.")])
    assert run["state"] == "succeeded", run["error"]
    assert (await user.tools())["read_file"]["id"] == key


async def test_a_tool_listed_twice_is_indexed_once_with_a_warning(user: TestUser) -> None:
    run = await user.push(await user.add_server(), [tool("read_file", "first"), tool("read_file", "second"), GOOD])
    assert (run["state"], run["counts"]["added"], len(run["warnings"])) == ("succeeded", 2, 1)
    assert "read_file" in run["warnings"][0]
    assert (await user.tools())["read_file"]["description"] == "first"


REFUSED: list[tuple[str, Any, str | None, str]] = [
    ("not an object", "read_file", None, "object"),
    ("null", None, None, "object"),
    ("no name", {"description": "x", "inputSchema": {}}, None, "name"),
    ("blank name", tool("  "), "  ", "name"),
    ("name not a string", {"name": 7}, None, "name"),
    ("name too long", tool("n" * 129), "n" * 128, "longer than 128"),
    ("name that cannot be displayed", tool("read\u202efile"), "read\ufffdfile", "cannot be displayed"),
    ("name with a control character", tool("read\x1b[2Jfile"), "read\ufffd[2Jfile", "cannot be displayed"),
    ("description not a string", {"name": "bad", "description": ["x"]}, "bad", "description"),
    ("title not a string", {"name": "bad", "title": {}}, "bad", "title"),
    ("input schema not an object", {"name": "bad", "inputSchema": []}, "bad", "inputSchema"),
    ("output schema not an object", {"name": "bad", "outputSchema": "x"}, "bad", "outputSchema"),
    ("annotations not an object", {"name": "bad", "annotations": True}, "bad", "annotations"),
    ("too many parts", tool("bad", inputSchema={"allOf": [{}] * MAX_NODES}), "bad", "objects and lists"),
    ("too large", tool("bad", "x" * (256 * 1024)), "bad", "KiB"),
    ("too large by far", tool("bad", "x" * 10_000_000), "bad", "KiB"),
]


@pytest.mark.parametrize(("raw", "name", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_an_invalid_tool_is_refused_with_a_reason_and_its_sibling_is_indexed(
    user: TestUser, raw: Any, name: str | None, reason: str
) -> None:
    run = await user.push(await user.add_server(), [raw, GOOD])
    assert run["state"] == "succeeded", run["error"]
    assert (run["counts"]["added"], run["counts"]["refused"]) == (1, 1)
    [refused] = run["refused"]
    shown = name and "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert refused["name"] == shown
    assert reason in refused["reason"]
    assert list(await user.tools()) == ["good"]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "n" * 128},
        {"description": "x" * (200 * 1024)},
        {"inputSchema": {"enum": [0] * 1_900}},
        {"inputSchema": {}},
        {"inputSchema": {"$ref": "#"}},
        {"inputSchema": {"$ref": "http://127.0.0.1:9/schema"}},
        {"description": None, "title": None, "annotations": None},
        {"unknownField": {"is": "ignored"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_tool_within_the_limits_is_accepted(user: TestUser, fields: dict[str, Any]) -> None:
    run = await user.push(await user.add_server(), [{**tool("fine"), **fields}, GOOD])
    assert (run["state"], run["counts"]["added"], run["refused"]) == ("succeeded", 2, []), run["error"]


@pytest.mark.parametrize(
    "fields",
    [
        {"title": "x" * 12_000},
        {"description": "x" * 12_000},
        {"inputSchema": {"type": "object", "properties": {"x" * 12_000: {}}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_long_word_in_a_definition_is_indexed_quickly(user: TestUser, fields: dict[str, Any]) -> None:
    server_id = await user.add_server()
    started = time.process_time()
    run = await user.push(server_id, [{**tool("wordy"), **fields}])
    assert (run["state"], run["counts"]["added"]) == ("succeeded", 1)
    assert time.process_time() - started < 20  # it takes half a second, but took minutes before a fix


@pytest.mark.parametrize(("levels", "refused"), [(20, 0), (33, 1), (950, 1)])
async def test_a_schema_that_is_too_deep_is_refused_and_its_sibling_is_indexed(
    user: TestUser, levels: int, refused: int
) -> None:
    text = f'{{"tools": [{{"name": "deep", "inputSchema": {nested_json(levels)}}}, {{"name": "good"}}]}}'
    answer = await push_text(user, await user.add_server(), text)
    assert answer.status_code == 200, answer.text
    run = answer.json()
    assert (run["state"], run["counts"]["added"], run["counts"]["refused"]) == ("succeeded", 2 - refused, refused)
    assert "good" in await user.tools()
    assert all("deeper" in refusal["reason"] for refusal in run["refused"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"tools": null}',
        '{"tools": {}}',
        '{"tools": [], "more": 1}',
        '{"tools": [{"name": "a\\u0000b"}]}',
        '{"tools": [{"name": "\\ud800"}]}',
        '{"tools": [{"name": "x", "_meta": {"n": NaN}}]}',
        f'{{"tools": [{nested_json(2_000)}]}}',
    ],
    ids=lambda text: text[:40],
)
async def test_a_body_that_cannot_be_parsed_is_refused(user: TestUser, text: str) -> None:
    server_id = await user.add_tools(GOOD)
    assert_problem(await push_text(user, server_id, text), 422)
    assert (await push_text(user, server_id, '{"tools": [{"name": "better"}]}')).status_code == 200
    assert list(await user.tools()) == ["better"]


@pytest.mark.parametrize("tools", [[], [{"description": "nameless"}]], ids=["empty", "no valid tool"])
async def test_a_list_without_a_valid_tool_keeps_the_old_tools(user: TestUser, tools: list[Any]) -> None:
    server_id = await user.add_tools(GOOD)
    run = await user.push(server_id, tools)
    assert (run["state"], run["error"]["cause"]) == ("failed", "empty_listing")
    assert run["counts"] == {**ZERO_COUNTS, "refused": len(tools)}
    assert list(await user.tools()) == ["good"]
    assert (await user.discover("sibling", similarity_threshold=0))["total_searched"] == 1

    forced = await user.push(server_id, tools, force=True)
    assert (forced["state"], forced["counts"]["removed"]) == ("succeeded", 1)
    assert await user.tools() == {}
    assert (await user.discover("sibling", similarity_threshold=0))["total_searched"] == 0


async def test_an_empty_list_is_accepted_for_a_server_without_tools(user: TestUser) -> None:
    run = await user.push(await user.add_server(), [])
    assert (run["state"], run["counts"]) == ("succeeded", ZERO_COUNTS)


async def test_tools_beyond_the_limit_are_refused(open_service: OpenService) -> None:
    async with open_service(max_tools_per_server=3) as service, new_user(service) as user:
        run = await user.push(await user.add_server(), [tool(f"tool_{number}") for number in range(5)])
        assert (run["state"], run["counts"]["added"]) == ("succeeded", 3)
        assert [refusal["name"] for refusal in run["refused"]] == ["tool_3", "tool_4"]
        assert all("3 tools" in refusal["reason"] for refusal in run["refused"])
        assert set(await user.tools()) == {"tool_0", "tool_1", "tool_2"}
        another = await user.push(await user.add_server("another"), [tool("tool_0")])
        assert another["counts"]["added"] == 1
