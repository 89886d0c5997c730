"""Tests of the results of the meta-tools: structured content and text."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from mcp_types import SERVER_INFO_META_KEY

from app.catalog.definitions import ServerSummary, ToolDefinitionView
from app.discovery.selection import SelectedTool
from app.errors import (
    ArgumentsInvalid,
    Forbidden,
    NotFound,
    ServerUnreachable,
    ToolFailed,
    ToolNotFound,
    ToolscoutError,
    ToolTimedOut,
    Unavailable,
)
from app.mcp_server import responses
from tests.support.mcp_client import Json, get_error, get_text

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def make_definition(**changes: Any) -> ToolDefinitionView:
    fields = {
        "tool_id": "key-1",
        "server_id": "server-1",
        "server_name": "weather",
        "name": "get_forecast",
        "title": None,
        "description": "Weather forecast for a city.",
        "input_schema": orjson.dumps(CITY).decode(),
        "output_schema": None,
        "annotations": None,
        "tokens": 10,
        "has_shared_name": False,
    }
    return ToolDefinitionView(**fields | changes)


def select_tool(score: float | None = 0.5, similarity: float | None = 0.4, **changes: Any) -> SelectedTool:
    return SelectedTool(make_definition(**changes), "semantic", similarity, score)


ERRORS_WITH_ADVICE: list[ToolscoutError] = [
    ToolNotFound("this tool does not exist"),
    ArgumentsInvalid("arguments: 'city' is a required property", errors=[]),
    ServerUnreachable("refused", "its server does not answer"),
    Unavailable("the database does not answer"),
]


@pytest.mark.parametrize("error", ERRORS_WITH_ADVICE, ids=lambda error: error.code)
def test_an_error_says_what_is_wrong_and_what_to_do(error: ToolscoutError) -> None:
    result = responses.render_error(error)
    problem, advice = get_text(result).split("\n")
    assert problem == f"{error.code}: {error.message}"
    assert len(advice) > 20
    assert get_error(result).items() >= {"code": error.code, "message": error.message, **error.members}.items()


@pytest.mark.parametrize("error", [NotFound("this project does not exist"), Forbidden("this key may not do that")])
def test_an_error_without_advice_has_only_its_message(error: ToolscoutError) -> None:
    result = responses.render_error(error)
    assert get_text(result) == f"{error.code}: {error.message}"
    assert get_error(result) == {"code": error.code, "message": error.message}


@pytest.mark.parametrize("kind", [ToolFailed, ToolTimedOut])
def test_the_advice_for_an_unknown_outcome_warns_that_the_tool_may_have_run(kind: type[ToolFailed]) -> None:
    unknown, failed = (responses.render_error(kind("it broke", outcome=outcome)) for outcome in ("unknown", "failed"))
    assert "may have run" in get_text(unknown)
    assert get_error(unknown)["outcome"] == "unknown"
    assert "may have run" not in get_text(failed)
    assert get_error(failed)["outcome"] == "failed"


def test_an_argument_error_contains_the_input_schema_unless_it_is_long() -> None:
    text = get_text(responses.render_error(ArgumentsInvalid("arguments: no", errors=[], schema='{"type": "object"}')))
    assert text.endswith('call again.\nThe input schema: {"type": "object"}')
    assert "schema" not in get_text(responses.render_error(ArgumentsInvalid("no", errors=[], schema="x" * 10_001)))


def test_every_invalid_argument_is_named_once() -> None:
    errors = [{"loc": ["arguments", "list", n], "msg": f"wrong {n}", "type": "type"} for n in range(8)]
    message = "; ".join(f"arguments.list.{n}: wrong {n}" for n in range(5))
    result = responses.render_error(ArgumentsInvalid(message, errors=errors))
    assert [get_text(result).count(f"arguments.list.{n}: wrong {n}") for n in range(8)] == [1] * 8
    assert get_error(result)["errors"] == errors


def test_a_truncated_result_is_marked_for_models_and_for_programs() -> None:
    whole: Json = {"content": [{"type": "text", "text": "a"}], "isError": True}
    result = responses.mark_truncated(whole, 1_000)
    assert result["content"][0] == whole["content"][0]
    assert "1000 bytes" in result["content"][1]["text"]
    assert (result["isError"], result["_meta"]) == (True, {responses.TRUNCATED_META: True})
    assert whole == {"content": [{"type": "text", "text": "a"}], "isError": True}, "the original is not changed"


@pytest.mark.parametrize(
    ("result", "forwarded"),
    [
        ({"content": [], "isError": True}, {"content": [], "isError": True}),
        ({"content": [], "_meta": {}}, {"content": []}),
        ({"content": [], "_meta": {SERVER_INFO_META_KEY: {"name": "x"}}}, {"content": []}),
        (
            {"content": [], "_meta": {SERVER_INFO_META_KEY: {"name": "x"}, "a/b": 1}},
            {"content": [], "_meta": {"a/b": 1}},
        ),
    ],
    ids=["no meta", "empty meta", "server info", "server info and more"],
)
def test_a_result_is_forwarded_without_the_reserved_meta_keys(result: Json, forwarded: Json) -> None:
    assert responses.forward_result(result) == forwarded


@pytest.mark.parametrize("structured", [[1], "text", 1, None, True], ids=str)
def test_older_clients_get_only_objects_as_structured_content(structured: Any) -> None:
    content = [{"type": "text", "text": "1"}]
    assert responses.adapt_to_older_clients({"content": content, "structuredContent": structured}) == {
        "content": content
    }
    for unchanged in ({"content": content}, {"content": content, "structuredContent": {"a": [1]}}):
        assert responses.adapt_to_older_clients(unchanged) == unchanged


ICON = {"src": "https://example.com/rain.png"}
UI = {"ui": {"resourceUri": "ui://weather/forecast.html"}}
FOR_HOSTS: dict[str, Any] = {"icons": orjson.dumps([ICON]).decode(), "meta": orjson.dumps(UI).decode()}


def test_icons_and_meta_are_for_hosts_and_in_nothing_that_a_model_reads() -> None:
    expected = {responses.TOOLS_META: {"key-1": {"icons": [ICON], "_meta": UI}}}
    for result in (
        responses.render_tools([select_tool(**FOR_HOSTS)], None, brief=False),
        responses.render_details(make_definition(**FOR_HOSTS)),
    ):
        assert result["_meta"] == expected
        for read_by_models in (result["content"], result["structuredContent"]):
            assert b"rain.png" not in orjson.dumps(read_by_models)
            assert b"ui://" not in orjson.dumps(read_by_models)


def test_a_result_without_definitions_has_no_icons_and_no_meta() -> None:
    assert "_meta" not in responses.render_tools([select_tool(**FOR_HOSTS)], None, brief=True)
    assert "_meta" not in responses.render_tools([select_tool()], None, brief=False)


def test_icons_and_meta_of_many_tools_are_bounded() -> None:
    long = orjson.dumps({"example/long": "x" * 15_000}).decode()
    tools = [select_tool(tool_id=f"key-{n}", meta=long) for n in range(50)]
    shown = responses.render_tools(tools, None, brief=False)["_meta"][responses.TOOLS_META]
    assert list(shown) == [f"key-{n}" for n in range(13)]


def test_a_found_tool_is_rendered_with_its_key_and_schema() -> None:
    result = responses.render_tools([select_tool()], None, brief=False)
    assert result["structuredContent"] == {
        "results": [
            {
                "toolKey": "key-1",
                "toolName": "get_forecast",
                "serverName": "weather",
                "description": "Weather forecast for a city.",
                "relevance": 0.5,
                "inputSchema": CITY,
            }
        ]
    }
    assert get_text(result).split("\n") == [
        "get_forecast of weather (0.50)",
        "toolKey: key-1",
        "Weather forecast for a city.",
        f"arguments: {orjson.dumps(CITY).decode()}",
    ]


@pytest.mark.parametrize("brief", [True, False])
def test_a_found_tool_says_why_in_a_sentence(brief: bool) -> None:
    found = replace(select_tool(), explanation="matches “rain”")
    result = responses.render_tools([found], None, brief=brief)
    assert result["structuredContent"]["results"][0]["explanation"] == "matches “rain”"
    assert "why: matches “rain”" in get_text(result).split("\n")
    without = responses.render_tools([select_tool()], None, brief=brief)
    assert "explanation" not in without["structuredContent"]["results"][0]
    assert "why:" not in get_text(without)


def test_missing_fields_of_a_tool_are_left_out() -> None:
    full = select_tool(output_schema='{"type":"object"}', annotations='{"readOnlyHint":true}', flags=("instructions",))
    [result] = responses.render_tools([full], None, brief=False)["structuredContent"]["results"]
    assert (result["outputSchema"], result["annotations"]) == ({"type": "object"}, {"readOnlyHint": True})
    assert result["flags"] == ["instructions"]
    [bare] = responses.render_tools([select_tool(description="")], None, brief=False)["structuredContent"]["results"]
    assert result.keys() - bare.keys() == {"outputSchema", "annotations", "flags"}
    assert "\n\n" not in get_text(responses.render_tools([select_tool(description="")], None, brief=False))


def test_a_brief_result_has_first_lines_and_flags_but_no_schemas() -> None:
    long = select_tool(description=f"Forecast. {'word ' * 100}\nSecond line.", flags=("hidden_characters",))
    result = responses.render_tools([long], None, brief=True)
    [found] = result["structuredContent"]["results"]
    assert found.keys() == {"toolKey", "toolName", "serverName", "description", "relevance", "flags"}
    assert len(found["description"]) <= 161
    assert "arguments" not in get_text(result)
    assert 'ask again with detail "full"' in get_text(result)
    assert "Beware, flagged: hidden_characters" in get_text(result)


@pytest.mark.parametrize(("score", "relevance"), [(None, 0.0), (-0.1, 0.0), (0.12345, 0.123), (1.0, 1.0), (1.4, 1.0)])
def test_relevance_is_clamped_to_0_and_1(score: float | None, relevance: float) -> None:
    [result] = responses.render_tools([select_tool(score)], None, brief=True)["structuredContent"]["results"]
    assert result["relevance"] == relevance


def test_schemas_are_included_up_to_the_size_limit_and_always_the_first() -> None:
    small, large = select_tool(), select_tool(output_schema=orjson.dumps({"title": "x" * 200_000}).decode())
    rendered = responses.render_tools([large, small], None, brief=False)
    assert ["inputSchema" in result for result in rendered["structuredContent"]["results"]] == [True, False]
    assert "ask for fewer tools" in rendered["structuredContent"]["hint"]
    schemas = responses.render_schemas([large, small], None)["structuredContent"]
    assert len(schemas["tools"]) == 1
    assert schemas["hint"].startswith("1 more left out, because the schemas are long")
    assert "hint" not in responses.render_schemas([small, small], None)["structuredContent"]
    whole = responses.render_tools([small] * 50, None, brief=False)["structuredContent"]
    assert all("inputSchema" in result for result in whole["results"])
    assert "hint" not in whole


def test_a_hint_is_in_the_text_and_in_the_structured_content() -> None:
    hinted = responses.render_tools([], "Ask again.", brief=False)
    assert hinted == responses.make_result({"results": [], "hint": "Ask again."}, "Ask again.")
    assert get_text(responses.render_tools([select_tool()], "Ask again.", brief=False)).endswith("\n\nAsk again.")
    assert "hint" not in responses.render_tools([select_tool()], None, brief=False)["structuredContent"]


def test_the_text_of_schemas_is_the_structured_content() -> None:
    result = responses.render_schemas([select_tool(similarity=0.123456), select_tool(similarity=None)], "Ask again.")
    assert orjson.loads(get_text(result)) == result["structuredContent"]
    first, second = result["structuredContent"]["tools"]
    assert first == {
        "toolKey": "key-1",
        "name": "get_forecast",
        "serverName": "weather",
        "description": "Weather forecast for a city.",
        "inputSchema": CITY,
        "similarity": 0.1235,
    }
    assert second["similarity"] is None
    assert result["structuredContent"]["hint"] == "Ask again."
    assert responses.render_schemas([], None)["structuredContent"] == {"tools": []}


def test_servers_are_rendered_one_per_line() -> None:
    result = responses.render_servers(
        [ServerSummary("weather", "Forecasts.\nMore.", "ok", 2), ServerSummary("x", None, "ok", 3)]
    )
    assert get_text(result) == "weather (2 tools) Forecasts.\nx (3 tools)"
    assert result["structuredContent"]["servers"][0] == {
        "name": "weather",
        "description": "Forecasts.\nMore.",
        "tools": 2,
        "status": "ok",
    }
    assert responses.render_servers([])["structuredContent"] == {"servers": []}
    assert "no server" in get_text(responses.render_servers([]))


def test_a_tool_list_says_how_to_get_the_next_page() -> None:
    more, last = (
        responses.render_tool_list([make_definition()], "get_forecast"),
        responses.render_tool_list([make_definition()], None),
    )
    assert more["structuredContent"]["nextCursor"] == "get_forecast"
    assert "call again with cursor 'get_forecast'" in get_text(more)
    assert "nextCursor" not in last["structuredContent"]
    assert get_text(last) == "key-1 get_forecast: Weather forecast for a city."
    assert get_text(responses.render_tool_list([], None)) == "there are no more tools"


def test_details_contain_all_known_fields_as_text_and_structured_content() -> None:
    bare = responses.render_details(make_definition(server_status="ok", input_schema="{}"))
    assert bare["structuredContent"] == {
        "toolKey": "key-1",
        "name": "get_forecast",
        "serverName": "weather",
        "serverStatus": "ok",
        "description": "Weather forecast for a city.",
        "inputSchema": {},
    }
    whole = responses.render_details(
        make_definition(title="Forecast", flags=("instructions",), annotations="{}", output_schema="{}")
    )
    assert whole["structuredContent"].keys() >= {"title", "flags", "annotations", "outputSchema"}
    for result in (bare, whole):
        assert orjson.loads(get_text(result)) == result["structuredContent"]


@pytest.mark.parametrize(
    ("description", "short"),
    [
        ("", ""),
        ("  \n ", ""),
        ("\n\n Reads a file. \nThen more.", "Reads a file."),
        ("a" * 160, "a" * 160),
        ("a" * 161, "a" * 160 + "…"),
        ("a" * 159 + " bc", "a" * 159 + "…"),
    ],
    ids=["empty", "blank", "first line", "just fits", "too long", "cut at a space"],
)
def test_a_description_is_shortened_to_its_first_line(description: str, short: str) -> None:
    assert responses.shorten_description(description) == short
