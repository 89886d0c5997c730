"""Tests of the results of the meta-tools: errors, results of tools, and servers."""

from typing import Any

import pytest
from mcp_types import SERVER_INFO_META_KEY

from app.catalog.definitions import ServerSummary
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
