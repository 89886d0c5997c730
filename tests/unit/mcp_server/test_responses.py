"""The words and the structures of the meta-tools, from what was found to what a model reads."""

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
from tests.support.mcp_client import Json, error_of, text_of

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def offer(**changes: Any) -> ToolDefinitionView:
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


def selected(score: float | None = 0.5, similarity: float | None = 0.4, **changes: Any) -> SelectedTool:
    return SelectedTool(offer(**changes), "semantic", similarity, score)


NOT_RUN: list[ToolscoutError] = [
    ToolNotFound("there is no such tool"),
    ArgumentsInvalid("arguments: 'city' is a required property", errors=[]),
    ServerUnreachable("refused", "its server does not answer"),
    Unavailable("the database does not answer"),
]


@pytest.mark.parametrize("error", NOT_RUN, ids=lambda error: error.code)
def test_an_error_says_what_is_wrong_and_what_to_do(error: ToolscoutError) -> None:
    result = responses.failure(error)
    wrong, advice = text_of(result).split("\n")
    assert wrong == f"{error.code}: {error.message}"
    assert len(advice) > 20
    assert error_of(result).items() >= {"code": error.code, "message": error.message, **error.members}.items()


@pytest.mark.parametrize("error", [NotFound("there is no such project"), Forbidden("this key may not do that")])
def test_an_error_that_says_it_all_is_left_alone(error: ToolscoutError) -> None:
    result = responses.failure(error)
    assert text_of(result) == f"{error.code}: {error.message}"
    assert error_of(result) == {"code": error.code, "message": error.message}


@pytest.mark.parametrize("kind", [ToolFailed, ToolTimedOut])
def test_what_may_have_run_is_not_to_be_called_again_blindly(kind: type[ToolFailed]) -> None:
    unknown, failed = (responses.failure(kind("it broke", outcome=outcome)) for outcome in ("unknown", "failed"))
    assert "may have run" in text_of(unknown)
    assert error_of(unknown)["outcome"] == "unknown"
    assert "may have run" not in text_of(failed)
    assert error_of(failed)["outcome"] == "failed"


def test_what_is_wrong_with_arguments_is_told_with_the_schema_that_they_should_fit() -> None:
    told = text_of(responses.failure(ArgumentsInvalid("arguments: no", errors=[], schema='{"type": "object"}')))
    assert told.endswith('call again.\nThe input schema: {"type": "object"}')
    assert "schema" not in text_of(responses.failure(ArgumentsInvalid("no", errors=[], schema="x" * 10_001)))


def test_every_wrong_argument_is_named_once() -> None:
    errors = [{"loc": ["arguments", "list", n], "msg": f"wrong {n}", "type": "type"} for n in range(8)]
    message = "; ".join(f"arguments.list.{n}: wrong {n}" for n in range(5))
    result = responses.failure(ArgumentsInvalid(message, errors=errors))
    assert [text_of(result).count(f"arguments.list.{n}: wrong {n}") for n in range(8)] == [1] * 8
    assert error_of(result)["errors"] == errors


def test_a_result_that_was_cut_says_so_to_the_model_and_to_the_program() -> None:
    whole: Json = {"content": [{"type": "text", "text": "a"}], "isError": True}
    result = responses.truncate_result(whole, 1_000)
    assert result["content"][0] == whole["content"][0]
    assert "1000 bytes" in result["content"][1]["text"]
    assert (result["isError"], result["_meta"]) == (True, {responses.TRUNCATED_META: True})
    assert whole == {"content": [{"type": "text", "text": "a"}], "isError": True}, "what was kept elsewhere stays whole"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"content": [], "isError": True}, {"content": [], "isError": True}),
        ({"content": [], "_meta": {}}, {"content": []}),
        ({"content": [], "_meta": {SERVER_INFO_META_KEY: {"name": "x"}}}, {"content": []}),
        (
            {"content": [], "_meta": {SERVER_INFO_META_KEY: {"name": "x"}, "a/b": 1}},
            {"content": [], "_meta": {"a/b": 1}},
        ),
    ],
    ids=["no meta", "empty meta", "the name of the server", "more beside it"],
)
def test_a_result_is_passed_on_whole_but_in_our_name(given: Json, passed: Json) -> None:
    assert responses.forward_result(given) == passed


@pytest.mark.parametrize("structured", [[1], "text", 1, None, True], ids=str)
def test_only_objects_are_structured_content_to_an_older_client(structured: Any) -> None:
    content = [{"type": "text", "text": "1"}]
    assert responses.fit_for_older_clients({"content": content, "structuredContent": structured}) == {
        "content": content
    }
    for fitting in ({"content": content}, {"content": content, "structuredContent": {"a": [1]}}):
        assert responses.fit_for_older_clients(fitting) == fitting


def test_a_tool_that_was_found_is_told_in_few_words_with_its_key_and_schema() -> None:
    result = responses.render_tools([selected()], None, brief=False)
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
    assert text_of(result).split("\n") == [
        "get_forecast of weather (0.50)",
        "toolKey: key-1",
        "Weather forecast for a city.",
        f"arguments: {orjson.dumps(CITY).decode()}",
    ]


def test_what_a_tool_does_not_have_is_left_out() -> None:
    full = selected(output_schema='{"type":"object"}', annotations='{"readOnlyHint":true}', flags=("instructions",))
    [result] = responses.render_tools([full], None, brief=False)["structuredContent"]["results"]
    assert (result["outputSchema"], result["annotations"]) == ({"type": "object"}, {"readOnlyHint": True})
    assert result["flags"] == ["instructions"]
    [bare] = responses.render_tools([selected(description="")], None, brief=False)["structuredContent"]["results"]
    assert result.keys() - bare.keys() == {"outputSchema", "annotations", "flags"}
    assert "\n\n" not in text_of(responses.render_tools([selected(description="")], None, brief=False))


def test_a_brief_answer_has_first_lines_and_no_schemas_but_still_warns() -> None:
    long = selected(description=f"Forecast. {'word ' * 100}\nSecond line.", flags=("hidden_characters",))
    result = responses.render_tools([long], None, brief=True)
    [found] = result["structuredContent"]["results"]
    assert found.keys() == {"toolKey", "toolName", "serverName", "description", "relevance", "flags"}
    assert len(found["description"]) <= 161
    assert "arguments" not in text_of(result)
    assert 'ask again with detail "full"' in text_of(result)
    assert "Beware, flagged: hidden_characters" in text_of(result)


@pytest.mark.parametrize(("score", "relevance"), [(None, 0.0), (-0.1, 0.0), (0.12345, 0.123), (1.0, 1.0), (1.4, 1.0)])
def test_relevance_lies_between_none_and_all(score: float | None, relevance: float) -> None:
    [result] = responses.render_tools([selected(score)], None, brief=True)["structuredContent"]["results"]
    assert result["relevance"] == relevance


def test_only_as_many_schemas_are_shown_as_there_is_room_for_and_always_the_first() -> None:
    small, large = selected(), selected(output_schema=orjson.dumps({"title": "x" * 200_000}).decode())
    shown = responses.render_tools([large, small], None, brief=False)
    assert ["inputSchema" in result for result in shown["structuredContent"]["results"]] == [True, False]
    assert "ask for less at once" in shown["structuredContent"]["hint"]
    assert len(responses.schemas([large, small], None)["structuredContent"]["tools"]) == 1
    whole = responses.render_tools([small] * 50, None, brief=False)["structuredContent"]
    assert all("inputSchema" in result for result in whole["results"])
    assert "hint" not in whole


def test_a_hint_stands_in_both_forms_and_nowhere_without_one() -> None:
    hinted = responses.render_tools([], "Ask again.", brief=False)
    assert hinted == responses.answer({"results": [], "hint": "Ask again."}, "Ask again.")
    assert text_of(responses.render_tools([selected()], "Ask again.", brief=False)).endswith("\n\nAsk again.")
    assert "hint" not in responses.render_tools([selected()], None, brief=False)["structuredContent"]


def test_schemas_are_the_same_in_both_forms() -> None:
    result = responses.schemas([selected(similarity=0.123456), selected(similarity=None)], "Ask again.")
    assert orjson.loads(text_of(result)) == result["structuredContent"]
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
    assert responses.schemas([], None)["structuredContent"] == {"tools": []}


def test_servers_are_told_one_a_line_or_that_there_are_none() -> None:
    result = responses.servers(
        [ServerSummary("weather", "Forecasts.\nMore.", "ok", 2), ServerSummary("x", None, "ok", 3)]
    )
    assert text_of(result) == "weather (2 tools) Forecasts.\nx (3 tools)"
    assert result["structuredContent"]["servers"][0] == {
        "name": "weather",
        "description": "Forecasts.\nMore.",
        "tools": 2,
        "status": "ok",
    }
    assert responses.servers([])["structuredContent"] == {"servers": []}
    assert "no server" in text_of(responses.servers([]))


def test_a_list_of_tools_says_how_to_get_the_rest() -> None:
    more, last = responses.tool_list([offer()], "get_forecast"), responses.tool_list([offer()], None)
    assert more["structuredContent"]["nextCursor"] == "get_forecast"
    assert "call again with cursor 'get_forecast'" in text_of(more)
    assert "nextCursor" not in last["structuredContent"]
    assert text_of(last) == "key-1 get_forecast: Weather forecast for a city."
    assert text_of(responses.tool_list([], None)) == "there are no more"


def test_details_are_all_that_is_known_and_the_same_in_both_forms() -> None:
    bare = responses.details(offer(server_status="ok", input_schema="{}"))
    assert bare["structuredContent"] == {
        "toolKey": "key-1",
        "name": "get_forecast",
        "serverName": "weather",
        "serverStatus": "ok",
        "description": "Weather forecast for a city.",
        "inputSchema": {},
    }
    whole = responses.details(offer(title="Forecast", flags=("instructions",), annotations="{}", output_schema="{}"))
    assert whole["structuredContent"].keys() >= {"title", "flags", "annotations", "outputSchema"}
    for result in (bare, whole):
        assert orjson.loads(text_of(result)) == result["structuredContent"]


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
def test_a_description_is_shortened_to_what_one_reads_when_skimming(description: str, short: str) -> None:
    assert responses.shorten_description(description) == short
