"""Tests of what is sent to the cloud and of how its answers are validated."""

from typing import Any

import orjson
import pytest

from app.api.middleware.body_limit import MAX_PUSH_BYTES
from app.catalog.definitions import SearchableTool
from app.cloud import wire
from app.cloud.wire import CloudMatch, encode_request, parse_answer
from app.discovery.cloud_search import HIGH_RELEVANCE, judge_matches
from app.errors import CloudFailed
from app.schemas import inline_search

SCHEMA = '{"type":"object","properties":{"city":{"type":"string"}}}'


def make_tool(number: int = 1, description: str = "Weather forecast for a city.") -> SearchableTool:
    return SearchableTool(f"key-{number}", "weather", f"get_forecast_{number}", description, SCHEMA, ["secret-tag"])


def answer(*results: Any) -> bytes:
    return orjson.dumps({"results": results})


def result(key: str = "a", relevance: Any = 0.5, **fields: Any) -> dict[str, Any]:
    return {"toolKey": key, "relevance": relevance, **fields}


def test_a_request_has_the_query_and_the_tools_and_nothing_else() -> None:
    request = encode_request("will it rain?", "we talk about Vienna", [make_tool()], 5)
    assert orjson.loads(request.body) == {
        "query": ["will it rain?"],
        "context": "we talk about Vienna",
        "max_results": 5,
        "tools": [
            {
                "toolKey": "key-1",
                "toolName": "get_forecast_1",
                "serverName": "weather",
                "description": "Weather forecast for a city.",
                "inputSchema": orjson.loads(SCHEMA),
            }
        ],
    }
    assert (request.tool_keys, request.limit) == (frozenset({"key-1"}), 5)
    assert "context" not in orjson.loads(encode_request("will it rain?", "", [make_tool()], 5).body)


def test_a_request_is_what_catalog_search_takes() -> None:
    request = encode_request("will it rain?", "Vienna", [make_tool(n) for n in range(3)], 5)
    assert len(inline_search.SearchBody.model_validate(orjson.loads(request.body)).tools) == 3
    inline_search.SearchBody.model_validate(orjson.loads(encode_request("?", "", (), 1).body))


def test_a_request_has_the_first_tools_within_the_limits_of_catalog_search() -> None:
    assert wire.MAX_TOOLS <= inline_search.MAX_TOOLS
    many = encode_request("rain", "", [make_tool(n) for n in range(wire.MAX_TOOLS + 10)], 5)
    assert many.tool_keys == {f"key-{n}" for n in range(wire.MAX_TOOLS)}
    large = encode_request("x" * 4_000, "y" * 4_000, [make_tool(n, "é" * 100_000) for n in range(200)], 5)
    assert wire.MAX_TOOLS_BYTES - 200_500 < len(large.body) < MAX_PUSH_BYTES
    assert large.tool_keys == {f"key-{n}" for n in range(len(large.tool_keys))}
    assert len(orjson.loads(large.body)["tools"]) == len(large.tool_keys) < 200


def test_matches_are_known_tools_by_relevance_each_once_up_to_the_limit() -> None:
    body = answer(
        result("b", 0.5), result("unknown", 1), result("a", 0.9), result("b", 1), result("c", 0.5), result("d", 0)
    )
    matches = parse_answer(body, {"a", "b", "c", "d"}, 3)
    assert [(match.tool_key, match.relevance) for match in matches] == [("a", 0.9), ("b", 0.5), ("c", 0.5)]
    assert parse_answer(answer(), {"a"}, 3) == []


def test_an_explanation_is_one_short_line_without_hidden_characters() -> None:
    def explain(explanation: Any) -> str | None:
        return parse_answer(answer(result(explanation=explanation)), {"a"}, 1)[0].explanation

    assert explain("matches “rain”") == "matches “rain”"
    assert explain("one\n\ntwo\u200b \u202ethree\x1b[31m") == "one two three"
    assert explain("x" * 10_000) == "x" * 300
    assert [explain(missing) for missing in (None, 1, ["x"], "", " \u200b")] == [None] * 5
    assert parse_answer(answer(result()), {"a"}, 1)[0].explanation is None


INVALID = {
    "no JSON": b"<html>",
    "nothing": b"",
    "a list": b"[]",
    "no results": b"{}",
    "results that are no list": orjson.dumps({"results": {}}),
    "a result that is no object": answer(1),
    "a result without a key": answer({"relevance": 1}),
    "a key that is no text": answer(result(1)),  # type: ignore[arg-type]
    "no relevance": answer({"toolKey": "a"}),
    "a text as relevance": answer(result(relevance="0.5")),
    "true as relevance": answer(result(relevance=True)),
    "a relevance above 1": answer(result(relevance=1.01)),
    "a relevance below 0": answer(result(relevance=-0.01)),
    "a relevance that is no number": b'{"results": [{"toolKey": "a", "relevance": NaN}]}',
    "a wrong relevance of an unknown tool": answer(result("unknown", 7)),
}


@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
def test_an_answer_of_another_shape_is_rejected(body: bytes) -> None:
    with pytest.raises(CloudFailed) as caught:
        parse_answer(body, {"a"}, 5)
    assert caught.value.reason == "invalid_answer"


def test_confidence_follows_the_relevance_of_the_best_match() -> None:
    assert judge_matches([]) == "none"
    assert judge_matches([CloudMatch("a", HIGH_RELEVANCE, None), CloudMatch("b", 0, None)]) == "high"
    assert judge_matches([CloudMatch("a", HIGH_RELEVANCE - 0.01, None)]) == "low"
